"""Tasks of the preparation on Spark.

They find the files that executors read, and store the manifests of those that executors wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import ObjectRecord, open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.formats.entities import read_relation_names, write_relation_names
from pbg_tasks.formats.names import EDGE_HASHES
from pbg_tasks.formats.tables import present_files
from pbg_tasks.prepare import spark
from pbg_tasks.prepare.delta import Delta
from pbg_tasks.progress import say
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.files import left_before, open_directory, upload_directory, write_manifest
from pbg_tasks.tasks.nightly.comparison_target import release_before

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pbg_tasks.checkpoint import VerifiedFiles
    from pbg_tasks.config import GraphSpec, SnapshotFile
    from pbg_tasks.prepare.buckets import BucketReport
    from pbg_tasks.prepare.counting import SnapshotCounts
    from pbg_tasks.prepare.ids import EntityReport
    from pbg_tasks.prepare.validate import SnapshotReport
    from pbg_tasks.publish import Release
    from pbg_tasks.tasks.context import RunContext


def count(graph: GraphSpec, files: Sequence[SnapshotFile]) -> SnapshotCounts | None:
    """Count a snapshot; see ``prepare.counting``.

    None where this machine lacks Spark: ``plan`` may run elsewhere than the tasks that take it.
    """
    if lacks := spark.lacking():
        say(f"plan: counts on this machine, by DuckDB, because Spark lacks {'; '.join(lacks)}")
        return None
    with spark.open_tables(f"pbg plan {graph.graph}") as tables:
        return spark.count_snapshot(tables, graph, files)


def validate(run: RunContext, release: Release | None) -> SnapshotReport:
    """Check and stage the snapshot of a run; see ``prepare.validate``."""
    before = None
    if release is not None:
        kept = open_preserved(run.store, release.directory, expected_sha256=release.manifest_sha256)
        before = stored_files(run, kept) if present_files(EDGE_HASHES, kept.names) else None
    with left_before(run, RunLayout.snapshot):
        with spark.open_tables(f"pbg validate {run.run_id}") as tables:
            report, stored = spark.validate_snapshot(
                tables, run.spec.graph, run.spec.files, before=before, destination=_place(run, RunLayout.snapshot)
            )
        write_manifest(run, RunLayout.snapshot, _records(stored))
    return report


def partition(run: RunContext) -> tuple[EntityReport, tuple[str | None, dict[str, dict[str, int]]]]:
    """Give ids to the entities of a run; see ``prepare.ids``.

    Returns:
        The report, and what it is compared with: a snapshot's key, and the entities kept and gone since then, by type.
    """
    model, previous = run.spec.graph.model, _previous(run)
    with Scratch() as scratch, spark.open_tables(f"pbg partition {run.run_id}") as tables:
        known: list[str] = []
        if previous is not None and model.relations_from_data:
            names = [name for name in previous.names if name.startswith("dynamic_rel")]
            previous.fetch_all(names, scratch.path)
            known = read_relation_names(scratch.path)
        with left_before(run, RunLayout.entities):
            report, names, stored = spark.assign_ids(
                tables,
                run.spec.graph,
                stored_files(run, open_directory(run, RunLayout.snapshot)),
                snapshot=run.spec.snapshot,
                previous=None if previous is None else stored_files(run, previous),
                known_relations=known,
                destination=_place(run, RunLayout.entities),
            )
        out = scratch.path / "names"
        out.mkdir()
        write_relation_names(out, names, dynamic=model.dynamic_relations)
        upload_directory(run, RunLayout.entities, out, further=_records(stored))
        if run.spec.previous is not None and run.spec.previous.keep_ids:
            return report, (run.spec.previous.snapshot, report.types)
        release = release_before(run)
        if release is None:
            return report, (None, {})
        before = open_preserved(run.store, release.directory, expected_sha256=release.manifest_sha256)
        return report, (release.snapshot, spark.count_kept(tables, run.spec.graph, stored_files(run, before)))


def bucket(run: RunContext, check: Callable[[BucketReport], None]) -> BucketReport:
    """Write the buckets of a run; see ``prepare.buckets``.

    Args:
        run: the run.
        check: may refuse the report before a file is written.
    """
    model, previous = run.spec.graph.model, _previous(run)
    entities = open_directory(run, RunLayout.entities)
    relations = None
    if model.relations_from_data:
        with Scratch() as scratch:
            entities.fetch_all([name for name in entities.names if name.startswith("dynamic_rel")], scratch.path)
            relations = read_relation_names(scratch.path)
    with left_before(run, RunLayout.edges):
        with spark.open_tables(f"pbg bucket {run.run_id}") as tables:
            report, stored = spark.write_buckets(
                tables,
                run.spec.graph,
                stored_files(run, open_directory(run, RunLayout.snapshot)),
                entities=stored_files(run, entities),
                relations=relations,
                previous=None if previous is None else stored_files(run, previous),
                delta=_delta(run),
                destination=_place(run, RunLayout.edges),
                check=check,
            )
        write_manifest(run, RunLayout.edges, _records(stored))
    return report


def _delta(run: RunContext) -> Delta[spark.StoredFiles] | None:
    """Return the rule for the edges to train; None when all are."""
    rule, previous = run.spec.delta, run.spec.previous
    if rule is None or previous is None:
        return None
    files = open_preserved(run.store, previous.directory, expected_sha256=previous.manifest_sha256)
    return Delta(rule, stored_files(run, files) if present_files(EDGE_HASHES, files.names) else None, run.spec.snapshot)


def _previous(run: RunContext) -> VerifiedFiles | None:
    """Return the files of the release whose ids a run keeps."""
    previous = run.spec.previous
    if previous is None or not previous.keep_ids:
        return None
    return open_preserved(run.store, previous.directory, expected_sha256=previous.manifest_sha256)


def _place(run: RunContext, name: str) -> spark.Destination:
    return spark.Destination(run.store.url, run.key(name))


def stored_files(run: RunContext, files: VerifiedFiles) -> spark.StoredFiles:
    """Return files of a run's store, for executors to read."""
    listed = {name: spark.StoredFile(name, each.sha256, each.size) for name, each in files.records.items()}
    return spark.StoredFiles(run.store.url, files.prefix, listed)


def _records(stored: Mapping[str, spark.StoredFile]) -> dict[str, ObjectRecord]:
    return {name: ObjectRecord(sha256=each.sha256, size=each.size) for name, each in stored.items()}
