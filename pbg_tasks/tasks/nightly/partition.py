"""``partition``: give every entity its partition and offset, which it keeps for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbg_tasks.checkpoint import open_preserved
from pbg_tasks.config import RunLayout
from pbg_tasks.config.results import PartitionResult, ValidateResult
from pbg_tasks.prepare import EDGE_HASHES, assign_ids, connect, judge_entities
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import Result, RunContext, perform
from pbg_tasks.tasks.files import upload_directory
from pbg_tasks.tasks.nightly.data_gate import enforce, settle
from pbg_tasks.tasks.nightly.staged import staged_snapshot

if TYPE_CHECKING:
    from pathlib import Path


def partition(url: str) -> Result:
    """Assign ids: those of the previous release stay, new entities come after them.

    Raises:
        QualityGateError: the snapshot is beyond a limit of ``gates.data``.
    """
    result = perform("partition", url, _partition)
    enforce(PartitionResult.model_validate(result))
    return result


def _partition(run: RunContext) -> Result:
    enforce(run.need(ValidateResult))
    graph = run.spec.graph
    with Scratch() as scratch, connect(graph.resources, scratch.path) as connection:
        out = scratch.path / "entities"
        out.mkdir()
        report = assign_ids(
            connection,
            graph,
            staged_snapshot(run, scratch.path),
            snapshot=run.spec.snapshot,
            previous=previous_ids(run, scratch.path / "previous"),
            out=out,
        )
        upload_directory(run, RunLayout.entities, out)
    since = run.spec.previous.snapshot if run.spec.previous else None
    return report.to_json() | settle(run, judge_entities(graph.gates.data, report.entities, since=since))


def previous_ids(run: RunContext, directory: Path) -> Path | None:
    """Download the ids of the release this run continues, None when it starts anew."""
    previous = run.spec.previous
    if previous is None or not previous.keep_ids:
        return None
    files = open_preserved(run.store, previous.directory, expected_sha256=previous.manifest_sha256)
    tables = [name for name in files.records if name.endswith(".parquet") and name != EDGE_HASHES]
    wanted = [*tables, *(name for name in files.records if name.startswith("dynamic_rel"))]
    directory.mkdir()
    files.fetch_all(wanted, directory)
    return directory
