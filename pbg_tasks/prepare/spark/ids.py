"""Ids on Spark.

Offsets of new names are sums over ranges of names, so no task ranks a whole partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.tables import file_names, files_in_order, present_files
from pbg_tasks.prepare.ids import EntityReport, entity_ids_file_name, fates, total_fates
from pbg_tasks.prepare.relations import matching, relation_rows, whole_sides
from pbg_tasks.prepare.spark.files import OUTCOME
from pbg_tasks.prepare.spark.reading import ReadTable
from pbg_tasks.prepare.spark.snapshot import STORED, read_staged
from pbg_tasks.prepare.spark.writing import WriteExpired, WriteNames, WriteTable
from pbg_tasks.prepare.sql import DUCKDB
from pbg_tasks.prepare.sql import ids as text
from pbg_tasks.prepare.sql.spark import SPARK

if TYPE_CHECKING:
    from pbg_tasks.config import GraphSpec
    from pbg_tasks.prepare.spark.files import Destination, StoredFile, StoredFiles
    from pbg_tasks.prepare.spark.session import Tables

_ARROW = {
    "name": "string",
    "partition": "int32",
    "offset": "int64",
    "first_seen": "string",
    "last_seen": "string",
    "unseen": "int32",
}
_COLUMNS = "name string, partition int, `offset` long, first_seen string, last_seen string, unseen int"


def assign_ids(
    tables: Tables,
    spec: GraphSpec,
    staged: StoredFiles,
    *,
    snapshot: str,
    previous: StoredFiles | None,
    known_relations: list[str],
    destination: Destination,
) -> tuple[EntityReport, list[str], dict[str, StoredFile]]:
    """Give every entity of the snapshot its partition and offset.

    Args:
        tables: of the task; the table of a type's ids is left as ``ids_{number}``, by the type's number.
        spec: of the graph.
        staged: rows of the snapshot.
        snapshot: its key.
        previous: files of the release this run continues.
        known_relations: its relations' names by id, where they come from the data.
        destination: of the files, without those of the relations' names.

    Returns:
        The report, the relations' names by id, and the files that were stored.

    Raises:
        ConfigError: ``previous`` was made with another ``num_partitions``.
        FormatError: ``previous`` lacks a file, or one is damaged.
    """
    tables.expect(staged.size)
    names = [relation.name for relation in spec.model.relations]
    if spec.model.relations_from_data:
        read_staged(tables, spec, staged, "found", "SELECT DISTINCT rel FROM raw", "rel string")
        present = {name for (name,) in tables.rows("SELECT DISTINCT rel FROM found")}
        names = [*known_relations, *sorted(present - set(known_relations))]
    matches = matching(spec, relation_rows(spec, None))
    types, counts = {}, {}
    stored: dict[str, StoredFile] = {}
    for number, (entity, schema) in enumerate(spec.model.entities.items()):
        partitions = schema.num_partitions
        read_ids(tables, "known", entity, previous)
        ((misplaced,),) = tables.rows(text.misplaced(SPARK, partitions))
        if misplaced:
            raise ConfigError(
                f"{entity_ids_file_name(entity)}: these ids were not given with model.entities.{entity}.num_partitions "
                f"= {partitions}; ids cannot be kept when the number of partitions changes"
            )
        found = text.present(DUCKDB, entity, matches, 1, None, whole=whole_sides(spec, entity))
        read_staged(tables, spec, staged, "found", found, "name string")
        tables.table("present", "SELECT DISTINCT name FROM found")
        _slice(tables, partitions)
        tables.table(f"ids_{number}", text.ids(SPARK, snapshot, _RANKED))
        tables.view("ids", tables.session.table(f"ids_{number}"))
        types[entity] = fates(tables.rows(text.FATES)[0])
        counts[entity] = _counted(tables, partitions)
        stored |= _write(tables, spec, entity, counts[entity], destination)
    expired, files = _expire(tables, spec, destination)
    report = EntityReport(total_fates(types.values()), types, counts, len(names), expired)
    return report, names, stored | files


def count_kept(tables: Tables, spec: GraphSpec, before: StoredFiles) -> dict[str, dict[str, int]]:
    """Count the entities of a release that ``assign_ids`` found, too.

    They are matched by name, of the ids that it left in ``tables``.

    Returns:
        The numbers ``kept`` and ``gone``, by type.
    """
    found: dict[str, dict[str, int]] = {}
    for number, entity in enumerate(spec.model.entities):
        if not present_files(entity_ids_file_name(entity), before.files):
            continue
        read_ids(tables, "known", entity, before)
        tables.view("ids", tables.session.table(f"ids_{number}"))
        ((kept, gone),) = tables.rows(text.KEPT)
        found[entity] = {"kept": kept, "gone": gone}
    return found


def read_ids(tables: Tables, view: str, entity: str, files: StoredFiles | None) -> None:
    """Make a table of a type's stored ids, empty without files."""
    if files is None:
        tables.made(view, [], _COLUMNS)
        return
    read = ReadTable(files.store, _ARROW, {"unseen": 0})
    tables.table(view, tables.spread(files.table(entity_ids_file_name(entity)), STORED, read, _COLUMNS))


_RANKED = """(
    SELECT name, sliced.partition,
        before + row_number() OVER (PARTITION BY sliced.partition, slice ORDER BY name) AS rank
    FROM sliced JOIN (
        SELECT partition AS of_partition, slice AS of_slice,
            coalesce(sum(size) OVER (PARTITION BY partition ORDER BY slice
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
        FROM (SELECT partition, slice, count(*) AS size FROM sliced GROUP BY partition, slice)
    ) ON of_partition = sliced.partition AND of_slice = slice
)"""
"""Ranks of the new names.

They are the number of names in the slices before, and the place in a slice.
"""


def _expire(tables: Tables, spec: GraphSpec, destination: Destination) -> tuple[dict[str, int], dict[str, StoredFile]]:
    """Write the entities that the spec's rule hides, if any.

    Returns:
        Their numbers by type, and the file by its name.
    """
    types = tuple(spec.model.entities)
    if spec.vanished.rule != "expire":
        return {}, {}
    each_type = (text.unseen(SPARK, number, f"ids_{number}", spec.vanished.nights) for number in range(len(types)))
    tables.view("unseen", " UNION ALL ".join(each_type))
    counts = dict(tables.rows("SELECT type, count(*) FROM unseen GROUP BY type"))
    expired = {name: int(counts.get(number, 0)) for number, name in enumerate(types)}
    if not counts:
        return expired, {}
    rows = tables.session.table("unseen").repartition(1).sortWithinPartitions("type", "partition", "offset")
    return expired, tables.written(rows.mapInArrow(WriteExpired(types, destination), OUTCOME))


def _slice(tables: Tables, partitions: int) -> None:
    """Make ``sliced(name, partition, slice)`` of the new names.

    Slices are ranges of about equal size.
    """
    from pyspark.sql import functions

    fresh = tables.session.sql(text.fresh(SPARK, partitions))
    ranges = fresh.repartitionByRange("partition", "name").withColumn("slice", functions.spark_partition_id())
    tables.table("sliced", ranges)


def _counted(tables: Tables, partitions: int) -> list[int]:
    found = dict(tables.rows("SELECT partition, count(*) FROM ids GROUP BY partition"))
    return [int(found.get(partition, 0)) for partition in range(partitions)]


def _write(
    tables: Tables, spec: GraphSpec, entity: str, counts: list[int], destination: Destination
) -> dict[str, StoredFile]:
    named = tables.session.sql(f"SELECT partition, name, {SPARK.offset} FROM ids").repartition("partition")
    rows = named.sortWithinPartitions("partition", "offset").select("partition", "name")
    stored = tables.written(rows.mapInArrow(WriteNames(entity, destination), OUTCOME))
    empty = [(partition, None) for partition, count in enumerate(counts) if not count]
    if empty:
        write = WriteNames(entity, destination)
        stored |= tables.written(tables.spread(empty, "partition int, name string", write, OUTCOME))
    table = WriteTable(
        spec,
        file_names(entity_ids_file_name(entity), files_in_order(sum(counts))),
        _ARROW,
        'FROM listed ORDER BY partition, "offset"',
        "COMPRESSION zstd",
        destination,
    )
    return stored | tables.write("SELECT * FROM ids", table, text.file(SPARK, counts))
