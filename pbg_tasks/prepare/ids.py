"""Stable ids: partition and offset of each entity.

An entity's partition follows from its name; its offset is given once and never changes. A night adds rows at the end of
a partition and moves none, so last night's checkpoint is tonight's starting point. Entities that vanish from the
snapshot keep their place.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.entities import (
    read_relation_names,
    write_entity_columns,
    write_entity_count,
    write_relation_names,
)
from pbg_tasks.formats.entity_sets import EXPIRED, EntitySet
from pbg_tasks.formats.tables import file_names, files_in_order
from pbg_tasks.prepare.connection import batches, load_table, phase
from pbg_tasks.prepare.relations import make_relations, whole_sides
from pbg_tasks.prepare.snapshot import open_snapshot, reading
from pbg_tasks.prepare.sql import DUCKDB, ids, quoted, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import duckdb
    import numpy as np
    from pydantic import JsonValue

    from pbg_tasks.config import GraphSpec, SnapshotFile

_ROWS_AT_ONCE = 10_000  # whose text stays in the processor's cache
ID_COLUMNS = {
    "name": "VARCHAR",
    "partition": "INTEGER",
    "offset": "BIGINT",
    "first_seen": "VARCHAR",
    "last_seen": "VARCHAR",
    "unseen": "INTEGER",
}
YOUNGER_COLUMNS = {"unseen": "0"}
"""Columns that older files lack, with the value that stands for them."""
FATES = ("total", "new", "kept", "gone", "returned", "absent")


@dataclass(frozen=True, slots=True)
class EntityReport:
    """Report on the entities of a night.

    Attributes:
        entities: over all types, each counted once: those that the release before had seen in its own snapshot are kept
            (in this one, too) or gone (not in it); those that it knew only from earlier ones have returned (are in this
            one) or stay absent; the others are new. Their sum is the total.
        types: the same by entity type.
        counts: entities of each partition, by type.
        relations: number of relations.
        expired: entities that the spec's rule for vanished ones hides, by type.
    """

    entities: dict[str, int]
    types: dict[str, dict[str, int]]
    counts: dict[str, list[int]]
    relations: int
    expired: dict[str, int]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the report as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Minimum:
    """Least number of occurrences with which a new name gets an id.

    Attributes:
        entity: of an entity, as either end of the edges.
        relation: of a relation, when relations come from the data.
    """

    entity: int = 1
    relation: int = 1


def entity_ids_file_name(entity: str) -> str:
    """Return the Parquet file of a type's ids; see ``formats.tables``.

    Its columns are name, partition, offset, first_seen, last_seen, unseen. The last is the number of nights since
    ``last_seen`` whose snapshots had no edge of the entity.
    """
    return f"entity_ids_{entity}.parquet"


def partition_of(name: str, partitions: int) -> int:
    """Return an entity's partition by its name.

    It is the last 8 bytes of the name's MD5, little-endian, modulo ``partitions``.
    """
    digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[8:], "little") % partitions


def assign_ids(
    connection: duckdb.DuckDBPyConnection,
    spec: GraphSpec,
    files: Sequence[SnapshotFile],
    *,
    snapshot: str,
    previous: Path | None,
    out: Path,
    minimum: Minimum = Minimum(),
    hashed: bool = True,
    stored: bool = True,
    feature_separator: str = ",",
) -> EntityReport:
    """Give every entity of the snapshot its partition and offset.

    The entity path is written.

    Args:
        connection: for the work.
        spec: of the graph.
        files: of the snapshot, validated before.
        snapshot: its key, kept as first_seen and last_seen.
        previous: directory with the ids and relation names of the release this run continues.
        out: directory for the files; every (type, partition) gets its own, empty ones too.
        minimum: names that occur less often get no id, and their edges are dropped.
        hashed: whether known entities are in the partitions of ``partition_of``; PBG's importer puts them anywhere.
        stored: whether the ids' own files will be; those that only this task reads are compressed in half the time.
        feature_separator: between two features in the column of a featurized type, whose features get the ids.

    Raises:
        ConfigError: ``previous`` was made with another ``num_partitions``.
        FormatError: ``previous`` lacks a file, or one is damaged.
    """
    open_snapshot(connection, spec, files)
    names = _relation_names(connection, spec, previous, minimum.relation)
    rare = spec.model.relations_from_data and minimum.relation > 1
    matches = make_relations(connection, spec, names if rare else None)
    types, counts = {}, {}
    partitions: dict[str, np.ndarray] = {}
    offsets: dict[str, np.ndarray] = {}
    for entity, schema in spec.model.entities.items():
        with phase(connection, f"ids of {entity}"):
            _load_known(connection, entity, schema.num_partitions if hashed else None, previous)
            with reading(files):
                separator = feature_separator if schema.featurized else None
                whole = [] if rare else whole_sides(spec, entity)  # edges of rare relations do not count
                found = ids.present(DUCKDB, entity, matches, minimum.entity, separator, whole=whole)
                connection.execute(f"CREATE OR REPLACE TEMP TABLE present AS {found}")
            types[entity] = _assign(connection, schema.num_partitions, snapshot)
            counts[entity] = write_ids(connection, entity, schema.num_partitions, out, stored=stored)
            if spec.vanished.rule == "expire":
                partitions[entity], offsets[entity] = _unseen(connection, spec.vanished.nights)
    write_relation_names(out, names, dynamic=spec.model.dynamic_relations)
    expired = {entity: len(found) for entity, found in offsets.items()}
    if any(expired.values()):
        (out / EXPIRED).write_bytes(EntitySet(partitions, offsets).to_bytes())
    return EntityReport(total_fates(types.values()), types, counts, len(names), expired)


def write_known(directory: Path, entity: str, partitions: Iterable[Sequence[str]], *, seen: str) -> None:
    """Write ids of which only the names are known.

    The format is that of the release before, as ``assign_ids`` reads it.

    Args:
        directory: for the file.
        entity: type.
        partitions: names of each, by offset.
        seen: snapshot that stands for the first and the last one that had them.
    """
    import pyarrow as pa  # here, because a night's own ids are written by DuckDB
    import pyarrow.parquet as pq

    fields = [("name", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
    fields += [("first_seen", pa.string()), ("last_seen", pa.string()), ("unseen", pa.int32())]
    schema = pa.schema(fields)
    with pq.ParquetWriter(directory / entity_ids_file_name(entity), schema, compression="zstd") as writer:
        for partition, names in enumerate(partitions):
            count = len(names)
            columns = [names, [partition] * count, range(count), [seen] * count, [seen] * count, [0] * count]
            writer.write_table(pa.table(columns, schema=schema))


def _load_known(
    connection: duckdb.DuckDBPyConnection, entity: str, partitions: int | None, previous: Path | None
) -> None:
    """Make the table ``known``: the ids of the release before.

    With ``partitions``, check that they fit that number of partitions.
    """
    path = previous / entity_ids_file_name(entity) if previous else None
    load_table(connection, "known", ID_COLUMNS, path, younger=YOUNGER_COLUMNS)
    if partitions is None:
        return
    (row,) = connection.execute(ids.misplaced(DUCKDB, partitions)).fetchall()
    if row[0]:
        raise ConfigError(
            f"{path}: these ids were not given with model.entities.{entity}.num_partitions = {partitions}; "
            "ids cannot be kept when the number of partitions changes"
        )


def _assign(connection: duckdb.DuckDBPyConnection, partitions: int, snapshot: str) -> dict[str, int]:
    """Make the table ``ids`` of a type, from ``known`` and ``present``."""
    connection.execute(f"CREATE OR REPLACE TEMP VIEW fresh AS {ids.fresh(DUCKDB, partitions)}")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE ids AS {ids.ids(DUCKDB, snapshot, ids.RANKED)}")
    return fates(connection.execute(ids.FATES).fetchall()[0])


def fates(counts: Sequence[int]) -> dict[str, int]:
    """Return the numbers of ``FATES`` from the counts of ``sql.ids.FATES``.

    Entities of the snapshot before that are not in this one have been away for one night, those that it lacked too for
    more.
    """
    total, gone, absent, were, seen = map(int, counts)
    found = {"kept": seen - gone, "gone": gone, "returned": were - seen - absent, "absent": absent}
    return {"total": total, "new": total - were, **found}


def total_fates(types: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up the numbers of ``FATES`` over the types."""
    total = dict.fromkeys(FATES, 0)
    for figures in types:
        for fate in FATES:
            total[fate] += figures[fate]
    return total


def _unseen(connection: duckdb.DuckDBPyConnection, nights: int) -> tuple[np.ndarray, np.ndarray]:
    """Return partition and offset of entities unseen for some nights.

    They are rows of the table ``ids``.
    """
    found = connection.execute(f"{ids.unseen(DUCKDB, 0, 'ids', nights)} ORDER BY ALL").fetchnumpy()
    return found["partition"], found["offset"]


def write_ids(
    connection: duckdb.DuckDBPyConnection, entity: str, partitions: int, out: Path, *, stored: bool = True
) -> list[int]:
    """Write the ids of a type, and its partitions' names and counts.

    With ``stored`` as in ``assign_ids``.

    Returns:
        Number of entities of each partition.
    """
    found = dict(connection.execute("SELECT partition, count(*) FROM ids GROUP BY partition").fetchall())
    counts = [found.get(partition, 0) for partition in range(partitions)]
    names = file_names(entity_ids_file_name(entity), files_in_order(sum(counts)))
    compression = "COMPRESSION zstd" if stored else "COMPRESSION zstd, COMPRESSION_LEVEL 1"
    for number, name in enumerate(names):
        own = f"WHERE {ids.file(DUCKDB, counts)} = {number}" if len(names) > 1 else ""
        sorted_rows, target = f'FROM ids {own} ORDER BY partition, "offset"', quoted(str(out / name))
        connection.execute(f"COPY ({sorted_rows}) TO {target} (FORMAT parquet, {compression})")
    # Queries read the files, which are sorted: unlike the table, they are not read as a whole for each partition.
    files = table(out / entity_ids_file_name(entity))
    for partition in range(partitions):
        rows = connection.sql(f"SELECT name FROM {files} WHERE partition = {partition}")
        columns = (batch.column("name") for batch in batches(rows, _ROWS_AT_ONCE))
        write_entity_count(out, entity, partition, write_entity_columns(out, entity, partition, columns))
    return counts


def _relation_names(
    connection: duckdb.DuckDBPyConnection, spec: GraphSpec, previous: Path | None, least: int
) -> list[str]:
    """Return the relations' names by id.

    Those known before keep their ids; new ones follow by name.
    """
    if not spec.model.relations_from_data:
        return [relation.name for relation in spec.model.relations]
    known = read_relation_names(previous) if previous else []
    counted = connection.execute("SELECT rel FROM raw GROUP BY rel HAVING count(*) >= ?", [least]).fetchall()
    present = {name for (name,) in counted}
    return [*known, *sorted(present - set(known))]
