"""``adopt``: make an existing PBG checkpoint a graph's first release.

With its names it becomes night zero of the graph, release 1 of its channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from pbg_tasks.config import ConfigSchema
from pbg_tasks.config.base import digest
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.run import check_snapshot_key, id_layout, vector_space
from pbg_tasks.config.support import check_nightly
from pbg_tasks.errors import ConfigError, InputError
from pbg_tasks.formats.entities import RELATION_NAMES, entity_names_file_name, read_entity_names
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.ids import write_known
from pbg_tasks.prepare.split import RETURNED
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.release import ADOPTED, NIGHT_ZERO
from pbg_tasks.storage.probe import probe
from pbg_tasks.storage.staging import Scratch, named
from pbg_tasks.tasks.context import graph_store
from pbg_tasks.tasks.model_source import locate
from pbg_tasks.tasks.partitioning import partition_counts, with_partitions
from pbg_tasks.tasks.release.moved_release import move_model, store_release

if TYPE_CHECKING:
    from pathlib import Path

    from pbg_tasks.config import GraphSpec, ModelConfig
    from pbg_tasks.publish import Release
    from pbg_tasks.publish.release import Candidate, Pointer
    from pbg_tasks.tasks.model_source import Source


class Adopted(TypedDict):
    """The release of a checkpoint, with entities and partitions by type."""

    task: str
    channel: str
    release: int
    snapshot: str
    directory: str
    entities: dict[str, int]
    partitions: dict[str, int]


def adopt(checkpoint: str, entities: str, spec: Path, *, snapshot: str = NIGHT_ZERO) -> Adopted:
    """Make a release of a checkpoint.

    The first night then keeps the vectors and optimizer sums of all its names. Entities go to the partitions that
    follow from the hashes of their names, so the spec may have another number of partitions. Adopting the same again
    changes nothing.

    Args:
        checkpoint: a checkpoint directory of PBG or of this package, local or ``s3://``.
        entities: the entity path with its names.
        spec: the graph spec's file.
        snapshot: key of night zero, before those of all nights.

    Raises:
        ConfigError: the spec's model is another one than the checkpoint's.
        InputError: entities or relations have no names, or the channel has releases already.
        NotFoundError: there is no checkpoint.
        FormatError: files are damaged or do not belong together.
    """
    check_snapshot_key(snapshot)
    graph = load_graph_spec(spec)
    check_nightly(graph.model, source=f"{spec}: model")
    store = graph_store(graph)
    probe(store)
    channel = Channel(store, graph.channel)
    there = channel.current().release
    if there is not None and not there.is_adopted:
        raise _taken(channel, there)  # before anything is moved; whether it is this checkpoint shows later
    with Scratch() as scratch, connect(graph.resources, scratch.path) as connection:
        ids, out = scratch.path / "ids", scratch.path / "release"
        for directory in (ids, out):
            directory.mkdir()
        source = locate(checkpoint, scratch.path, entity_path=entities)
        graph = _with_partitions_of(graph, source)
        _check_model(source, graph.model, str(spec))
        _write_ids(source, ids, scratch.path, snapshot)
        config = ConfigSchema(**graph.model.model_dump(), entity_path="", edge_paths=(), checkpoint_path="")
        moved = move_model(connection, source, config, ids, out=out, scratch=scratch.path)
        # Its training edges are unknown, so no pair is known to have returned to training.
        pairs = {"least_key": pa.array([], pa.string()), "greatest_key": pa.array([], pa.string())}
        pq.write_table(pa.table(pairs), out / RETURNED)
        stored = store_release(store, moved, out, snapshot=snapshot, epochs=0)
    candidate: Candidate = {
        "graph": graph.graph,
        "run": stored.run,
        "snapshot": snapshot,
        "directory": stored.directory,
        "manifest_sha256": stored.manifest.sha256(),
        "id_layout": id_layout(graph.model),
        "vector_space": vector_space(graph.model),
        "split": digest(graph.split.model_dump(mode="json")),
        "data": {ADOPTED: source.checkpoint.url, "entities": {"total": moved.total}},
    }

    def check(pointer: Pointer) -> None:
        if pointer.release is not None:  # also of a night that was published meanwhile
            raise _taken(channel, pointer.release)

    release, _ = channel.publish(candidate, planned_on=None, check=check)
    say(
        f"adopt: release {release.seq} of channel {graph.channel}: {store.url}/{stored.directory}. What it was trained "
        "on is not known: figures of the coming nights are too good where it has seen edges that they hold out"
    )
    return {
        "task": "adopt",
        "channel": graph.channel,
        "release": release.seq,
        "snapshot": snapshot,
        "directory": f"{store.url}/{stored.directory}",
        "entities": {entity: sum(counts) for entity, counts in moved.counts.items()},
        "partitions": partition_counts(graph.model),
    }


def _taken(channel: Channel, release: Release) -> InputError:
    return InputError(
        f"channel {channel.name!r} of {channel.store.url} has release {release.seq} already; a checkpoint can only be "
        "adopted as the first: choose another channel or store"
    )


def _with_partitions_of(graph: GraphSpec, source: Source) -> GraphSpec:
    """Put the checkpoint's numbers of partitions in place of ``auto``."""
    theirs = partition_counts(source.config)
    open_counts = {name: theirs[name] for name in graph.model.auto_partitioned if name in theirs}
    return with_partitions(graph, open_counts)


def _check_model(source: Source, model: ModelConfig, spec: str) -> None:
    if vector_space(source.config) == vector_space(model):
        return
    theirs, ours = _traits(source.config), _traits(model)
    differing = [name for name in ours if theirs[name] != ours[name]]
    listed = "; ".join(f"{name} is {_short(theirs[name])} there and {_short(ours[name])} here" for name in differing)
    raise ConfigError(f"{spec}: model is not that of {source.checkpoint.url}: {listed}")


def _traits(model: ModelConfig) -> dict[str, object]:
    """Return the values that ``vector_space`` hashes, by name."""
    relations = [(r.name, r.lhs, r.rhs, r.operator, *(["reciprocal"] * r.reciprocal)) for r in model.relations]
    return {
        "entities (with dimension)": {name: model.entity_dimension(name) for name in model.entities},
        "relations": [r[1:] for r in relations] if model.relations_from_data else relations,
        **{name: getattr(model, name) for name in ("dynamic_relations", "comparator", "bias", "global_emb")},
    }


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."  # noqa: PLR2004 (of a message that has to be read)


def _write_ids(source: Source, ids: Path, scratch: Path, snapshot: str) -> None:
    if source.config.relations_from_data and source.entities.read(RELATION_NAMES) is None:
        raise InputError(
            f"{source.entities.url}/{RELATION_NAMES}: missing; relations of a night are told apart by their names: "
            "put the list of those names there, by id"
        )
    for entity, schema in source.config.entities.items():
        lacking = [
            name
            for part in range(schema.num_partitions)
            if source.entities.store.head(name := entity_names_file_name(entity, part)) is None
        ]
        if lacking:
            raise InputError(
                f"{source.entities.url}/{lacking[0]}: missing; entities of a night are told apart by their names"
            )
        names = []
        for part, path in enumerate(source.entity_names(entity, scratch)):
            with named(path, f"{source.entities.url}/{path.name}"):
                names.append(read_entity_names(path.parent, entity, part))
        write_known(ids, entity, names, seen=snapshot)
