"""Training on edges in memory, into a plain PBG directory.

Preparation and training are those of the commands.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from pbg_tasks.api.edges import edge_table
from pbg_tasks.api.loading import open_contents
from pbg_tasks.api.model import Model
from pbg_tasks.api.presets import model_keys
from pbg_tasks.config import ConfigSchema, GraphSpec, SnapshotFile, Snapshots, Split
from pbg_tasks.config.base import parse
from pbg_tasks.config.names import check_entity_names
from pbg_tasks.errors import ConfigError, InputError
from pbg_tasks.prepare.buckets import write_buckets
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.ids import assign_ids
from pbg_tasks.prepare.validate import check_rows
from pbg_tasks.storage import open_store
from pbg_tasks.storage.columnar import list_files
from pbg_tasks.storage.staging import Scratch, put_all_new
from pbg_tasks.tasks.model_source import locate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from pbg_tasks.api.edges import Edges
    from pbg_tasks.storage import Store

ENTITIES, EDGES, CHECKPOINT = "entities", "edges", "checkpoint"
_PATHS = {"entity_path": ENTITIES, "edge_paths": EDGES, "checkpoint_path": CHECKPOINT}


def train(
    edges: Edges,
    *,
    relations: Sequence[str | Mapping[str, Any]] | None = None,
    entity_types: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    operator: str | None = None,
    out: str | Path | None = None,
    dimension: int = 100,
    seed: int = 0,
    **config: Any,  # noqa: ANN401 - PBG's keys, each of its own type
) -> Model:
    """Train embeddings of edges and return the model.

    Args:
        edges: a numpy array (n, 2) of lhs, rhs or (n, 3) of lhs, rel, rhs; a tuple of two to four columns (lhs, rhs;
            lhs, rel, rhs; with weight); a list of such rows; or columns by name in a dict, an Arrow table, a pandas or
            polars data frame: ``lhs``, ``rhs`` and perhaps ``rel``, ``weight``, ``lhs_type`` and ``rhs_type``. Names
            are text or whole numbers.
        relations: names, or PBG's keys of each. By default those of the edges: with one pair of entity types they are
            PBG's dynamic relations, with more one relation for each name and pair.
        entity_types: names, or PBG's keys of each, such as ``num_partitions``. Without type columns: the type of all
            entities, or two of them, of the left and the right ends.
        operator: of all relations that do not name theirs; by default ``complex_diagonal``, without relations ``none``.
        out: directory or ``s3://`` URL of the result, which must not hold one yet; by default a private directory that
            goes away with the model.
        dimension: of the embeddings.
        seed: decides every random choice; with ``workers=1`` the same seed gives the same bits.
        config: any other key of PBG's config; what is not given is as in ``presets.PRESET``, else PBG's default.

    Returns:
        The model of the last epoch.

    Raises:
        InputError: the edges are of no known form, there are none, or a row is bad.
        ConfigError: a key is unknown (the nearest is named) or contradictory, or ``out`` is not empty.
        TrainingDivergedError: numbers grew out of bounds: lower ``lr``.
    """
    import torch  # an import of this module need not wait for it

    from pbg_tasks.tasks.training.train import train_directory

    table = edge_table(edges)
    if not len(table):
        raise InputError("edges: there are none to train on")
    keys = model_keys(table, relations, entity_types, operator) | {"dimension": dimension}
    if "num_batch_negs" in config:
        del keys["batch_size"]  # PBG's default is a multiple of more values of num_batch_negs
    keys |= config
    if taken := sorted(_PATHS.keys() & config.keys()):
        raise ConfigError(f"train: {', '.join(taken)} follow from out")
    with ExitStack() as resources:
        target = out if out is not None else resources.enter_context(Scratch()).path / "trained"
        store = open_store(target)
        paths: dict[str, Any] = {key: f"{store.url}/{name}" for key, name in _PATHS.items()}
        schema = parse(ConfigSchema, keys | paths | {"edge_paths": [paths["edge_paths"]]}, source="train")
        check_entity_names(schema.entities, source="train")
        _check_ids(schema)
        if next(store.list(), None) is not None:
            raise ConfigError(f"out {store.url} is not empty: name another place, or open the model that is there")
        write_dataset(table, schema, store)
        threads = torch.get_num_threads()
        try:
            train_directory(schema, seed=seed)
        finally:
            torch.set_num_threads(threads)  # an engine sets one, which would stay the caller's
        contents = open_contents(resources, partial(locate, schema.checkpoint_path))
        return Model(contents, resources.pop_all())


def _check_ids(config: ConfigSchema) -> None:
    for name, entity in config.entities.items():
        if entity.featurized:
            raise ConfigError(f"entity_types.{name}.featurized: train gives every name a vector; use `pbg import`")


def write_dataset(table: pa.Table, config: ConfigSchema, store: Store) -> None:
    """Give entities their ids and write the buckets.

    They are written as ``entities/`` and ``edges/`` of a store.

    Args:
        table: result of ``edge_table``.
        config: of the model.
        store: to write to.

    Raises:
        InputError: a row is bad.
    """
    graph = _graph(table, config)
    with Scratch() as scratch, connect(graph.resources, scratch.path) as connection:
        source, entities, edges = (scratch.path / name for name in ("edges.parquet", "entities", "split"))
        pq.write_table(table, source)
        files = [SnapshotFile(uri=uri, size=size, version=tag) for uri, size, tag in list_files(str(source))]
        entities.mkdir()
        edges.mkdir()
        try:
            check_rows(connection, graph, files)
        except InputError as error:
            raise InputError(str(error).replace(str(source), "edges")) from None
        assign_ids(connection, graph, files, snapshot="edges", previous=None, out=entities)
        write_buckets(connection, graph, files, entities=entities, returned_previous=None, out=edges)
        put_all_new(
            store, {f"{ENTITIES}/{path.name}": path for path in entities.iterdir() if path.suffix != ".parquet"}
        )
        put_all_new(store, {f"{EDGES}/{path.name}": path for path in (edges / "train").iterdir()})


def _graph(table: pa.Table, config: ConfigSchema) -> GraphSpec:
    """Return a graph spec of the edges, without held-out ones."""
    columns = {name: name if name in table.column_names else None for name in ("rel", "weight", "lhs_type", "rhs_type")}
    fields = {
        "graph": "edges",
        "store": "memory",
        "snapshots": Snapshots(location="{snapshot}"),
        "columns": columns,
        "model": config,
        "split": Split(valid=0, test=0),
    }
    return parse(GraphSpec, fields, source="train")
