"""``import``: edge lists into PBG's directories.

There is one list for each of the config's edge paths. Ids are stable: an entity's partition follows from its name, its
offset is given once, and importing again keeps the ids that the entity path has. While an import runs, the entity path
has a mark ``import.unfinished``, and readers refuse the directories; so an import that was cut off is finished by
running it again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from pbg_tasks.checkpoint import ObjectRecord
from pbg_tasks.checkpoint.manifest import encode
from pbg_tasks.config import Columns, GraphSpec, Resources, SnapshotFile, Snapshots, Split
from pbg_tasks.config.base import parse
from pbg_tasks.config.support import check_imported
from pbg_tasks.errors import ConfigError, InputError, NotFoundError
from pbg_tasks.formats.entities import (
    RELATION_COUNT,
    RELATION_NAMES,
    check_relation_count,
    entity_count_file_name,
    entity_names_file_name,
    read_entity_count,
    read_entity_names,
    read_relation_count,
    read_relation_names,
)
from pbg_tasks.prepare.buckets import write_buckets
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.ids import Minimum, assign_ids, write_known
from pbg_tasks.prepare.snapshot import StagedFiles, stage_snapshot
from pbg_tasks.prepare.validate import NoEdgesError, check_rows
from pbg_tasks.progress import Progress, human_seconds, say
from pbg_tasks.storage import FinalFile, open_store, tidy
from pbg_tasks.storage.columnar import NoFilesError, list_files
from pbg_tasks.storage.parallel import in_parallel
from pbg_tasks.storage.staging import Scratch, named, sha256_file
from pbg_tasks.tasks.directory.import_claim import claimed
from pbg_tasks.tasks.files import IMPORT_MANIFEST, FileSet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb

    from pbg_tasks.config import ConfigSchema
    from pbg_tasks.prepare.buckets import BucketReport
    from pbg_tasks.prepare.ids import EntityReport
    from pbg_tasks.storage import Store

NO_EDGES = "this edge list has no edges"
_UPLOADS_AT_ONCE = 16  # a small file takes the time of two syncs of a disk, or of one answer of a server


@dataclass(frozen=True, slots=True)
class EdgeLists:
    """Format and columns of edge lists.

    Attributes:
        format: ``tsv`` is text with any delimiter, compressed or not.
        lhs: column of the left-hand ends; its number from 0 in text, its name in Parquet and in text with a header.
        rhs: of the right-hand ends.
        rel: of the relations; None when there is one only.
        weight: of the weights, None without.
        header: whether the first line of a text names its columns.
        delimiter: between two fields of a text.
        feature_separator: between two features in the column of a featurized type.
    """

    format: Literal["tsv", "parquet"]
    lhs: str
    rhs: str
    rel: str | None = None
    weight: str | None = None
    header: bool = False
    delimiter: str | None = None
    feature_separator: str = ","

    def columns(self) -> Columns:
        """Return the columns by the names that the reader gives them."""
        named = {"lhs": self.lhs, "rel": self.rel, "rhs": self.rhs, "weight": self.weight}
        return parse(Columns, {field: self._name(field, column) for field, column in named.items()}, source="columns")

    def _name(self, field: str, column: str | None) -> str | None:
        if column is None or self.format == "parquet" or self.header:
            return column
        if not column.isdigit():
            raise ConfigError(f"--{field}-col {column!r}: without --header, columns are numbers from 0")
        return f"column{column}"


class Imported(TypedDict):
    """Figures of an import, by entity type and by edge path."""

    task: str
    entity_path: str
    seconds: float
    entities: dict[str, int]
    types: dict[str, dict[str, int]]
    relations: int
    edge_paths: dict[str, dict[str, int]]
    edges: int
    skipped: int
    edges_per_second: int


def import_edges(
    config: ConfigSchema,
    lists: Sequence[str],
    how: EdgeLists,
    *,
    minimum: Minimum | None = None,
    memory_gb: float = 4.0,
    threads: int | None = None,
) -> Imported:
    """Import edge lists.

    Args:
        config: names the types, relations and paths; its paths may be local or ``s3://``.
        lists: a file, folder or glob for each of ``edge_paths``, in their order.
        how: format and columns of the lists.
        minimum: entities and relations that occur less often are left out, with their edges.
        memory_gb: budget, in GB; beyond it scratch is used.
        threads: CPU threads; None means all this process may use.

    Raises:
        ConfigError: lists and edge paths differ in number, or what is there has another number of partitions.
        InputError: a list is missing, or a row is bad; nothing was changed.
        ConflictError: another import into the same entity path is running.
    """
    check_imported(config, source="config")
    _check_request(config, lists, how)
    started = time.monotonic()
    graph = graph_of_lists(config, how, Resources(memory_gb=memory_gb, threads=threads))
    files = [found_lists(url) for url in lists]
    store = open_store(config.entity_path)
    targets = [open_store(path) for path in config.edge_paths]
    with (
        Scratch() as scratch,
        claimed([store, *targets]) as claim,
        connect(graph.resources, scratch.path) as connection,
    ):
        with named(scratch.path / "known", store.url):
            known = _known_ids(config, store, scratch.path / "known", whole=not claim.follows_cut_off)
        staged = [stage_snapshot(connection, graph, listed, f"list_{number}") for number, listed in enumerate(files)]
        rows = [_count_rows(connection, graph, url, listed) for url, listed in zip(lists, staged, strict=True)]
        out = scratch.path / "entities"
        out.mkdir()
        entities = assign_ids(
            connection,
            graph,
            StagedFiles.together(staged),
            snapshot="",
            previous=known,
            out=out,
            minimum=minimum or Minimum(),
            hashed=False,
            stored=False,
            feature_separator=how.feature_separator,
        )
        if not entities.entities["total"]:
            raise InputError("nothing is left to import: no entity occurs as often as --entity-min-count asks for")
        claim.check()
        claim.changing = True
        for changed in (store, *targets):  # until all is written, the old manifests would list replaced files
            changed.delete(IMPORT_MANIFEST)
        written = _Written()
        for kind, ending in (("names", "json"), ("counts", "txt")):  # counts last, as `_known_ids` relies on
            written.upload(store, sorted(out.glob(f"*.{ending}")), kind)
        reports = []
        for number, (listed, target) in enumerate(zip(staged, targets, strict=True)):
            buckets = scratch.path / str(number)
            buckets.mkdir()
            say(f"import: {listed[0].uri}{' and others' if len(listed) > 1 else ''} into {target.url}")
            report = write_buckets(
                connection,
                graph,
                listed,
                entities=out,
                returned_previous=None,
                out=buckets,
                feature_separator=how.feature_separator,
                splits=("train",),
            )
            claim.check()
            _store_buckets(target, sorted((buckets / "train").iterdir()), written)
            reports.append(report)
        written.store_manifests()
    for changed in (store, *targets):
        tidy(changed)
    say(f"import: finished in {human_seconds(time.monotonic() - started)}")
    return _result(config, store, entities, reports, rows, time.monotonic() - started)


def _check_request(config: ConfigSchema, lists: Sequence[str], how: EdgeLists) -> None:
    if len(lists) != len(config.edge_paths) or not lists:
        raise ConfigError(
            f"edge_paths: the config has {len(config.edge_paths)} and {len(lists)} edge lists were given; "
            "each list goes to the edge path at its place"
        )
    if len({open_store(path).url for path in config.edge_paths}) != len(config.edge_paths):
        raise ConfigError("edge_paths: one is named twice, so the second list would replace the first")
    if not how.feature_separator:
        raise ConfigError("--feature-separator: is empty; name what stands between two features, such as ','")
    for name, entity in config.entities.items():
        if entity.featurized and entity.num_partitions > 1:
            raise ConfigError(
                f"entities.{name}: is featurized and has num_partitions = {entity.num_partitions}; the features of one "
                "entity would lie in several partitions: use 1"
            )


def graph_of_lists(config: ConfigSchema, how: EdgeLists, resources: Resources) -> GraphSpec:
    """Describe the lists as a snapshot, which is what ``prepare`` takes.

    Nothing of it is held out.
    """
    written = {"location": "{snapshot}", "format": how.format, "header": how.header, "quote": None}
    if how.delimiter is not None:
        written["delimiter"] = how.delimiter
    fields = {
        "graph": "import",
        "store": config.entity_path,
        "snapshots": parse(Snapshots, written, source="edge lists"),
        "columns": how.columns(),
        "model": config,
        "split": Split(valid=0, test=0),
        "resources": resources,
    }
    return parse(GraphSpec, fields, source="config")


def found_lists(url: str) -> list[SnapshotFile]:
    """Return the files of an edge list: a file, folder or glob.

    Raises:
        InputError: there are none.
    """
    try:
        return [SnapshotFile(uri=uri, size=size, version=version) for uri, size, version in list_files(url)]
    except NoFilesError:
        raise InputError(f"{url}: no such edge list (no such file, or no files in it)") from None


def _count_rows(connection: duckdb.DuckDBPyConnection, graph: GraphSpec, url: str, files: StagedFiles) -> int:
    """Check every row of an edge list; return how many it has."""
    try:
        return check_rows(connection, graph, files).edges
    except NoEdgesError:
        raise InputError(f"{url}: {NO_EDGES}; leave it out, with its edge path") from None


def _known_ids(config: ConfigSchema, store: Store, directory: Path, *, whole: bool) -> Path | None:
    """Write the entity path's ids in the form that ``prepare`` keeps.

    Args:
        config: names the types.
        store: of the entity path.
        directory: to be made, for the ids.
        whole: whether counts must agree with names; after an import that was cut off they need not, and without any
            count, names were not complete either.

    Returns:
        ``directory``; None when there are no ids.

    Raises:
        ConfigError: it was imported with another number of partitions, or has entities or relations without names.
        FormatError: a file is damaged, or a count disagrees with the names.
    """
    there = {info.key for info in store.list("entity_")}
    if not there or not (whole or any(key.startswith("entity_count_") for key in there)):
        return None
    directory.mkdir()
    for entity, schema in config.entities.items():
        if entity_count_file_name(entity, schema.num_partitions) in there:
            raise ConfigError(
                f"{store.url}: was imported with more than {schema.num_partitions} partitions of {entity!r}; "
                "ids cannot be kept when num_partitions changes: choose another entity_path"
            )
        counted = there if whole else set()
        names = (
            _known_names(store, entity, partition, there, counted, directory)
            for partition in range(schema.num_partitions)
        )
        write_known(directory, entity, names, seen="")
    if config.relations_from_data and store.head(RELATION_NAMES) is not None:
        store.fetch(RELATION_NAMES, directory / RELATION_NAMES)
        if whole and store.head(RELATION_COUNT) is not None:
            store.fetch(RELATION_COUNT, directory / RELATION_COUNT)
            check_relation_count(read_relation_names(directory), read_relation_count(directory), directory=store.url)
    elif config.relations_from_data:
        if store.head(RELATION_COUNT) is not None:
            raise ConfigError(
                f"{store.url}/{RELATION_NAMES}: missing, so the ids of the relations there cannot be kept; restore it "
                "or choose another entity_path"
            )
        (directory / RELATION_NAMES).write_text("[]", encoding="ascii")
    return directory


def _known_names(
    store: Store, entity: str, partition: int, there: set[str], counted: set[str], directory: Path
) -> list[str]:
    """Return the names of a partition, as many as ``counted`` has."""
    name = entity_names_file_name(entity, partition)
    if name not in there:
        if entity_count_file_name(entity, partition) in there:
            raise ConfigError(
                f"{store.url}/{name}: missing, so the ids of the entities there cannot be kept; restore it or choose "
                "another entity_path"
            )
        raise ConfigError(
            f"{store.url}: has entities, but none of {entity} {partition}; ids cannot be kept when entity "
            "types or num_partitions change: choose another entity_path"
        )
    try:
        store.fetch(name, directory / name)
        count = None
        if (number := entity_count_file_name(entity, partition)) in counted:
            store.fetch(number, directory / number)
            count = read_entity_count(directory, entity, partition)
        return read_entity_names(directory, entity, partition, count=count)
    except NotFoundError:
        raise ConfigError(f"{store.url}/{name}: went away while it was read; is another program at work?") from None


class _Written:
    """Records of the files that an import has stored, by directory."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Store, dict[str, ObjectRecord]]] = {}

    def upload(self, store: Store, paths: list[Path], what: str) -> None:
        """Store files, several at once."""
        _, records = self._places.setdefault(store.url, (store, {}))
        with Progress(f"store {what}", total=sum(path.stat().st_size for path in paths), unit="B") as progress:

            def put(path: Path) -> ObjectRecord:
                record = ObjectRecord(sha256=sha256_file(path), size=path.stat().st_size)
                store.put(path.name, FinalFile(path))
                progress.advance(record.size)
                return record

            names = [path.name for path in paths]
            records.update(zip(names, in_parallel(put, paths, _UPLOADS_AT_ONCE), strict=True))

    def store_manifests(self) -> None:
        """Write a manifest beside the files, for `pbg verify`."""
        for store, records in self._places.values():
            store.put(IMPORT_MANIFEST, encode(FileSet(objects=dict(sorted(records.items())))))


def _store_buckets(target: Store, paths: list[Path], written: _Written) -> None:
    """Put all buckets of an edge path in place, also empty ones.

    Files of buckets outside the present number of partitions are removed.
    """
    wanted = {path.name for path in paths}
    for info in target.list("edges_"):
        if info.key.endswith(".h5") and info.key not in wanted:
            target.delete(info.key)
    written.upload(target, paths, "edges")


def _result(
    config: ConfigSchema,
    store: Store,
    entities: EntityReport,
    reports: list[BucketReport],
    rows: list[int],
    seconds: float,
) -> Imported:
    written = [report.edges["train"] for report in reports]
    skipped = sum(rows) - sum(written)
    if skipped:
        say(f"import: skipped {skipped} edges whose relation or an end occurs too rarely")
    return {
        "task": "import",
        "entity_path": store.url,
        "seconds": round(seconds, 3),
        "entities": entities.entities,
        "types": entities.types,
        "relations": entities.relations,
        "edge_paths": {path: {"edges": count} for path, count in zip(config.edge_paths, written, strict=True)},
        "edges": sum(written),
        "skipped": skipped,
        "edges_per_second": round(sum(rows) / seconds),
    }
