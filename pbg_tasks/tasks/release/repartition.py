"""``repartition``: move a release to other partitions, or drop vanished entities.

The next night continues the result. Nights never move a row; this does, once and on purpose: rows with their optimizer
sums go, bit by bit, to the place that a hash of their names gives them, and the result is a release of its own with the
same snapshot. The old one stays to roll back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from pbg_tasks.advice import way_to
from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.checkpoint.preserve import read_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.config.base import parse
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.run import id_layout
from pbg_tasks.config.schema import ConfigSchema
from pbg_tasks.errors import ConflictError, InputError, NotFoundError
from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.formats.directory import read_config
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.formats.tables import present_files
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.difference import EDGE_HASHES
from pbg_tasks.prepare.ids import entity_ids_file_name
from pbg_tasks.prepare.reassignment import follow
from pbg_tasks.prepare.split import RETURNED
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.compatibility import space_of
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import graph_store
from pbg_tasks.tasks.files import Directory
from pbg_tasks.tasks.model_source import CONFIG, Source
from pbg_tasks.tasks.partitioning import partition_counts
from pbg_tasks.tasks.release.moved_release import move_model, store_release

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from pbg_tasks.config import GraphSpec
    from pbg_tasks.publish import Release
    from pbg_tasks.publish.release import Candidate
    from pbg_tasks.storage import Store
    from pbg_tasks.tasks.release.moved_release import Moved, Stored


class _Channel(TypedDict):
    """A channel and its release; ``partitions`` by entity type."""

    task: str
    channel: str
    release: int
    partitions: dict[str, int]


class Unmoved(_Channel):
    """A channel whose rows are in the wanted partitions already."""

    moved: bool


class Repartitioned(Unmoved):
    """A channel with a release in place of ``was``; entities by type."""

    was: int
    directory: str
    entities: dict[str, int]
    dropped: dict[str, int]


def repartition(spec: Path, *, partitions: int | None = None, compact: bool = False) -> Unmoved | Repartitioned:
    """Move the rows of a channel's release, and publish the result.

    The channel then points to it.

    Args:
        spec: the graph spec's file; its ``num_partitions`` are what is wanted, ``auto`` leaves them as they are.
        partitions: instead of the spec's, of every entity type that is partitioned (of all, when none is).
        compact: leave out entities that ``vanished.nights`` nights or more have not seen.

    Raises:
        InputError: the channel has no release.
        ConflictError: the channel was moved meanwhile, or was rolled back from this very result before.
        FormatError: the release is damaged.
    """
    graph = load_graph_spec(spec)
    store = graph_store(graph)
    channel = Channel(store, graph.channel)
    release = channel.current().release
    if release is None:
        raise InputError(f"channel {graph.channel!r} of {store.url} has no release yet, so there is nothing to move")
    files = open_preserved(store, release.directory, expected_sha256=release.manifest_sha256)
    directory = Directory.of(files)
    present = read_config(directory.read(CONFIG) or b"", source=f"{directory.url}/{CONFIG}")
    config = _wanted(present, graph, partitions)
    was, now = partition_counts(present), partition_counts(config)
    for name, count in partition_counts(graph.model).items():
        if count and name in now and count != now[name]:
            say(
                f"warning: {spec}: model.entities.{name}.num_partitions is {count}; write {now[name]} before the next "
                "night, whose ids and vectors would start anew"
            )
    nothing: _Channel = {
        "task": "repartition",
        "channel": graph.channel,
        "release": release.seq,
        "partitions": now,
    }
    if was == now and not compact:
        say(f"repartition: release {release.seq} has these partitions already")
        return {**nothing, "moved": False}
    with Scratch() as scratch, connect(graph.resources, scratch.path) as connection:
        ids, out = scratch.path / "ids", scratch.path / "release"
        for path in (ids, out):
            path.mkdir()
        files.fetch_all(files.of_tables(*map(entity_ids_file_name, config.entities)), ids)
        moved = move_model(
            connection,
            Source(files.version, present, directory, directory),
            config,
            ids,
            out=out,
            scratch=scratch.path,
            nights=graph.vanished.nights if compact else None,
        )
        if was == now and not any(moved.dropped.values()):
            say(f"repartition: no entity has vanished for {graph.vanished.nights} nights, so nothing is to be dropped")
            return {**nothing, "moved": False}
        kept = [name for table in (RETURNED, EDGE_HASHES) for name in present_files(table, files.names)]
        files.fetch_all(kept, out)
        if EXPIRED in files.names:
            hidden = EntitySet.from_bytes(directory.read(EXPIRED) or b"", source=f"{directory.url}/{EXPIRED}")
            if (left := follow(connection, hidden, ids, out)).partition:
                (out / EXPIRED).write_bytes(left.to_bytes())
        epochs = read_preserved(store, release.directory).epochs
        stored = store_release(
            store, moved, out, snapshot=release.snapshot, epochs=epochs, continues=space_of(store, release)
        )
        _move_candidates(connection, store, release, stored, ids, out)
    return _publish(channel, release, moved, stored, nothing)


def _wanted(present: ConfigSchema, graph: GraphSpec, partitions: int | None) -> ConfigSchema:
    """Return the release's config with the wanted numbers of partitions."""
    data = present.model_dump(mode="json")
    entities = data["entities"]
    if partitions is None:
        for name, count in partition_counts(graph.model).items():
            if name in entities and count:
                entities[name]["num_partitions"] = count
    else:
        partitioned = [entity for entity in entities.values() if entity["num_partitions"] != 1]
        for entity in partitioned or entities.values():
            entity["num_partitions"] = partitions
    return parse(ConfigSchema, data, source="--partitions" if partitions else f"graph {graph.graph}")


def _move_candidates(
    connection: duckdb.DuckDBPyConnection, store: Store, release: Release, stored: Stored, before: Path, after: Path
) -> None:
    """Move the sample of candidates with its entities.

    With the same sample the figures before and after can be compared.
    """
    try:
        data = store.get(f"runs/{release.run}/{RunLayout.candidates}").data
    except NotFoundError:
        return  # without a sample all entities are candidates
    sample = Candidates.from_bytes(data)
    # The moved sample may be smaller, so that its size no longer shows the limit that it was drawn with.
    found = follow(connection, replace(sample, limit=sample.drawn_with), before, after)
    key = f"runs/{stored.run}/{RunLayout.candidates}"
    if found.partition and store.head(key) is None:
        store.put_new(key, found.to_bytes())


def _check_not_moved(channel: Channel, release: Release, there: Release | None) -> None:
    if there is None or there.seq != release.seq:
        raise ConflictError(f"channel {channel.name!r} was moved while release {release.seq} was: run this again")


def _publish(channel: Channel, release: Release, moved: Moved, stored: Stored, before: _Channel) -> Repartitioned:
    copied = release.candidate()
    data = copied.get("data", {})
    known = data.get("entities")
    if isinstance(known, dict):  # of a compact one, fewer than its night had
        data = {**data, "entities": {**known, "total": moved.total}}
    candidate: Candidate = {
        **copied,
        "data": data,
        "run": stored.run,
        "directory": stored.directory,
        "manifest_sha256": stored.manifest.sha256(),
        "id_layout": id_layout(moved.config),
    }
    published, points = channel.publish(
        candidate, planned_on=release.seq, check=lambda pointer: _check_not_moved(channel, release, pointer.release)
    )
    if not points:
        _check_not_moved(channel, release, channel.current().release)
        raise ConflictError(
            f"channel {channel.name!r} was rolled back from release {published.seq}, which has these rows in these "
            f"partitions; {way_to(channel.name, published.seq)} brings it back"
        )
    directory = f"{channel.store.url}/{stored.directory}"
    say(f"repartition: release {published.seq} of channel {channel.name}, in place of {release.seq}: {directory}")
    return {
        **before,
        "moved": True,
        "release": published.seq,
        "was": release.seq,
        "directory": directory,
        "entities": {entity: sum(counts) for entity, counts in moved.counts.items()},
        "dropped": moved.dropped,
    }
