"""``bucket``: hold edges out, and write the others by their partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.config.results import BucketFindings, BucketResult, PartitionResult, Result
from pbg_tasks.errors import QualityGateError
from pbg_tasks.formats.tables import present_files
from pbg_tasks.prepare.buckets import write_buckets
from pbg_tasks.prepare.connection import connect
from pbg_tasks.prepare.delta import Delta
from pbg_tasks.prepare.difference import EDGE_HASHES
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import RunContext, perform
from pbg_tasks.tasks.files import open_directory, upload_directory
from pbg_tasks.tasks.nightly.data_gate import enforce
from pbg_tasks.tasks.nightly.partition import previous_ids
from pbg_tasks.tasks.nightly.staged import staged_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pbg_tasks.config.results import SplitEdges
    from pbg_tasks.prepare.buckets import BucketReport


def bucket(url: str) -> Result:
    """Write ``edges/{train,valid,test}/edges_{i}_{j}.h5``, empty buckets included.

    With ``train.delta`` there is a folder ``delta``, too.

    Raises:
        QualityGateError: nothing could be held out for the evaluation, so training would be for nothing.
    """
    return perform(BucketResult, url, _bucket).document()


def _bucket(run: RunContext) -> BucketFindings:
    enforce(run.need(PartitionResult))

    def check(report: BucketReport) -> None:
        found = BucketFindings.model_validate(report.to_json())
        require_held_out(run, found.edges, found.returned_pairs)

    on = _on_duckdb
    if run.spec.graph.resources.engine == "spark":
        from pbg_tasks.tasks.nightly.on_spark import bucket as on
    return BucketFindings.model_validate(on(run, check).to_json())


def _on_duckdb(run: RunContext, check: Callable[[BucketReport], None]) -> BucketReport:
    with Scratch() as scratch, connect(run.spec.graph.resources, scratch.path) as connection:
        entities, out = scratch.path / "entities", scratch.path / "edges"
        for directory in (entities, out):
            directory.mkdir()
        files = open_directory(run, RunLayout.entities)
        files.fetch_all([name for name in files.records if not name.startswith("entity_names")], entities)
        previous = previous_ids(run, scratch.path / "previous")
        returned = previous / "returned.parquet" if previous else None
        staged = staged_snapshot(run, scratch.path)
        report = write_buckets(
            connection,
            run.spec.graph,
            staged,
            entities=entities,
            returned_previous=returned,
            out=out,
            delta=_delta(run, scratch.path / "before"),
        )
        check(report)
        upload_directory(run, RunLayout.edges, out)
    return report


def _delta(run: RunContext, directory: Path) -> Delta[Path] | None:
    """Return the rule for the edges to train; None when all are."""
    rule, previous = run.spec.delta, run.spec.previous
    if rule is None or previous is None:
        return None
    files = open_preserved(run.store, previous.directory, expected_sha256=previous.manifest_sha256)
    before = None
    if present_files(EDGE_HASHES, files.names):
        directory.mkdir()
        before = files.fetch_table(EDGE_HASHES, directory)
    return Delta(rule, before, run.spec.snapshot)


def require_held_out(run: RunContext, edges: SplitEdges, returned: int) -> None:
    """Refuse a night without held-out edges.

    The quality of its vectors could not be measured.

    Args:
        run: the night.
        edges: of its snapshot, by split.
        returned: pairs of entities that were drawn to be held out, and went back to training.

    Raises:
        QualityGateError: there is nothing to evaluate on.
    """
    split = run.spec.graph.eval.split
    if getattr(edges, split):
        return
    advice = f"raise split.{split}"
    if returned:
        advice = (
            f"{returned} pairs of entities were drawn to be held out, and went back to training because one of the two "
            f"would keep no other training edge, now or in an earlier night; a larger split.{split} helps only where "
            "entities have several edges"
        )
    raise QualityGateError(
        f"{run.url}: no {split} edges could be held out, so there is nothing to evaluate on: {advice}"
    )
