"""``run``: the whole chain of one snapshot, without a scheduler."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from pbg_tasks.config.airflow import TOGETHER
from pbg_tasks.config.documents import parse_document
from pbg_tasks.config.graph import GraphSpec
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.results import PlanResult, PublishResult
from pbg_tasks.errors import PbgError
from pbg_tasks.progress import say
from pbg_tasks.tasks.context import RunContext

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pbg_tasks.config.promote import Promote
    from pbg_tasks.config.results import Result
    from pbg_tasks.tasks.view.summary import Summary

# What follows `plan`, in order, and the module of each: only the one that runs is imported.
TASKS = {
    "validate": "nightly.validate",
    "partition": "nightly.partition",
    "bucket": "nightly.bucket",
    "train": "training.train",
    "preserve": "nightly.preserve",
    "eval": "nightly.evaluate",
    "drift": "nightly.drift",
    "gate": "nightly.gate",
    "publish": "nightly.publish",
}


def run_task(name: str, url: str) -> Result:
    """Do one task of the run at ``url``."""
    module = import_module(f"pbg_tasks.tasks.{TASKS[name]}")
    result: Result = getattr(module, TASKS[name].rpartition(".")[2])(url)
    return result


def run_together(command: str, url: str) -> Result:
    """Do several tasks of the run at ``url`` in this process.

    Each stores its own result, so that a second call does only what is left.

    Args:
        command: of ``TOGETHER``.
        url: of the run.

    Returns:
        The result of the last task, with all of them by name in ``tasks``.
    """
    found = {name: run_task(name, url) for name in TOGETHER[command]}
    return {**found[TOGETHER[command][-1]], "task": command, "tasks": {**found}}


class Written(NamedTuple):
    """A graph spec as it was read, once for all tasks.

    Attributes:
        graph: with its changes.
        rules: of promotion; None where a night promotes nothing by itself.
    """

    graph: GraphSpec
    rules: Promote | None


def read_spec(spec: Path, overrides: Sequence[str] | None) -> Written:
    """Read a spec, with its changes.

    Rules are those of the channel that the file names, of no other. The file need not be whole without changes.
    """
    graph, file = load_graph_spec(spec, overrides), parse_document(spec.read_bytes(), source=str(spec))
    usual = {"store": graph.store, "channel": GraphSpec.model_fields["channel"].default}
    rules, same = graph.promote, all(file.get(key, usual[key]) == getattr(graph, key) for key in usual)
    return Written(graph, rules if same and rules is not None and rules.is_automatic else None)


def run_chain(
    spec: Path,
    snapshot: str,
    *,
    written: Written | None = None,
    **options: Any,  # noqa: ANN401 - plan's options
) -> Summary:
    """Plan a run and do all its tasks, exports, promotion and pages.

    A second call finds everything done. An edit of the spec meanwhile counts for later calls alone.

    Args:
        spec: the graph spec's file.
        snapshot: key of the edges.
        written: the spec with its changes; None: it is read here.
        options: of ``plan``.

    Returns:
        The run's summary, as ``show`` gives it.
    """
    from pbg_tasks.tasks.nightly.plan import plan
    from pbg_tasks.tasks.view.report import report_nights
    from pbg_tasks.tasks.view.show import show

    graph, rules = written or read_spec(spec, options.get("overrides"))
    try:
        url = PlanResult.model_validate(plan(spec, snapshot, written=graph, alone=True, **options)).run
    except PbgError:
        with suppress(Exception):  # the plan's own error counts
            report_nights(graph)
        raise
    try:
        for name in TASKS:
            if name == "train":
                _train(url)
            else:
                run_task(name, url)
        _export(url)
        if rules is not None and RunContext.open(url).need(PublishResult).published:
            from pbg_tasks.tasks.nightly.promote import promote_by_rules

            promote_by_rules(graph, rules)
    finally:
        write_pages(url)
    return show(url)


def _train(url: str) -> None:
    """Train in this process, also a model for several machines."""
    from pbg_tasks.tasks.training.train import train

    train(url, alone=True)


def _export(url: str) -> None:
    run = RunContext.open(url)
    if run.spec.graph.exports and run.need(PublishResult).published:
        from pbg_tasks.tasks.nightly.export_release import export_release

        for export in run.spec.graph.exports:
            export_release(url, export.name)


def write_pages(url: str) -> None:
    """Write the pages of a run, however it ended.

    A failure to write them is reported and does not make the run fail.
    """
    from pbg_tasks.tasks.view.report import report

    try:
        report(url)
    except PbgError as error:
        say(f"warning: the pages of this run were not written: {error}")
