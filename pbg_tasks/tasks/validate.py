"""``validate``: look at every row of the snapshot before anything is spent on it."""

from __future__ import annotations

from pbg_tasks.errors import QualityGateError
from pbg_tasks.prepare import connect, validate_snapshot
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import Result, RunContext, perform


def validate(url: str) -> Result:
    """Check a run's snapshot.

    Raises:
        InputError: a file is unreadable or a row is bad; it names file and line.
        QualityGateError: there are fewer edges than ``gates.min_edges``.
    """
    return perform("validate", url, _validate)


def _validate(run: RunContext) -> Result:
    graph = run.spec.graph
    with Scratch() as scratch, connect(graph.resources, scratch.path) as connection:
        report = validate_snapshot(connection, graph, run.spec.files)
    if report.edges < graph.gates.min_edges:
        raise QualityGateError(
            f"snapshot {run.spec.snapshot!r} has {report.edges} edges, gates.min_edges asks for {graph.gates.min_edges}"
        )
    return report.to_json()
