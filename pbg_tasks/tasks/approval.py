"""``approve`` and ``reject``: decisions about a night that a gate refused.

A decision is stored with the run and never changes.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, cast

from pydantic import Field

from pbg_tasks.advice import spec_note
from pbg_tasks.checkpoint.manifest import encode, find_document
from pbg_tasks.config import RunLayout
from pbg_tasks.config.base import Frozen, parse
from pbg_tasks.config.night_results import NightResults, beyond_approval
from pbg_tasks.config.nights import snapshot_order
from pbg_tasks.config.results import GateResult, PartitionResult, PublishResult, ValidateResult
from pbg_tasks.errors import ConfigError, ConflictError, FormatError
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.publish.release import check_person
from pbg_tasks.publish.skips import why_skipped
from pbg_tasks.tasks.context import RunContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pbg_tasks.config.results import VerdictDocument
    from pbg_tasks.report.documents import Decided
    from pbg_tasks.storage import Store

GATED = ("validate", "partition", "gate")
"""The tasks that refuse nights: the data gate's two, and the quality gate."""
Text = Annotated[str, Field(min_length=1, max_length=500)]


class Decision(Frozen):
    """A user's decision about a refused task of a run.

    Attributes:
        task: that refused the night.
        approved: whether the night goes on all the same.
        by: the user's name.
        at: when, UTC.
        reason: why.
    """

    format: Literal[1] = 1
    task: Literal["validate", "partition", "gate"]
    approved: bool
    by: Text
    at: datetime
    reason: Text


class DecisionReport(TypedDict):
    """A decision as commands print it."""

    run: str
    task: str
    approved: bool
    by: str
    at: str
    reason: str


def approve(url: str, *, by: str, reason: str) -> DecisionReport:
    """Let a refused night go on.

    The task that refused it passes from now on. Warns of each newer night under way that cannot be published any more
    once this one is.

    Raises:
        ConfigError: no task refused the night, or its fault is one that no approval can excuse.
        ConflictError: the night was rejected before.
    """
    run = RunContext.open(url)
    task, verdict = _refusing(run)
    if beyond := beyond_approval(verdict):
        raise ConfigError(f"{run.url}: no approval makes its vectors usable: {beyond[0]}")
    decided = _decide(run, task, approved=True, by=by, reason=reason)
    again = f"`pbg run SPEC {run.spec.snapshot}`"
    options = "with the options that it was planned with, such as --epochs or -p"
    say(f"{task}: passes once the night is run again, by {again}, {options}, or in Airflow.{spec_note()}")
    for night in _at_stake(run):
        say(
            f"warning: run {night.url} of snapshot {night.spec.snapshot!r} was planned on {_continued(night)}, as this "
            "night was, and has not finished: once this night is published, that one ends with conflict, its training "
            "is lost, and its snapshot has to be planned again. To keep it, let this night go on only when that one is "
            "published: this one is then recorded as a release, and the channel stays with the newer"
        )
    return decided


def how_to_approve(url: str) -> str:
    """Return the command that lets a refused night go on."""
    return f"`pbg approve {shlex.quote(url)} --reason TEXT`"


def reject(url: str, *, by: str, reason: str) -> DecisionReport:
    """Confirm that a refused night ends; it cannot be approved afterwards.

    Raises:
        ConfigError: no task refused the night.
        ConflictError: the night was approved before.
    """
    run = RunContext.open(url)
    task, _ = _refusing(run)
    return _decide(run, task, approved=False, by=by, reason=reason)


def approval(run: RunContext, task: str) -> Decision | None:
    """Return the approval of a task's refusal; None without one.

    A replay uses the decisions of the run that it replays.
    """
    decision = _decision(run, task)
    if decision is None and run.replays is not None:
        decision = _decision(RunContext.open(run.replays), task)
    return decision if decision is not None and decision.approved else None


def decisions(run: RunContext) -> list[Decided]:
    """Return all that was decided about a run, as JSON."""
    found = (_decision(run, task) for task in GATED)
    return [_decided(decision) for decision in found if decision is not None]


def _decide(run: RunContext, task: str, *, approved: bool, by: str, reason: str) -> DecisionReport:
    check_person(by, "--by")
    fields = {"task": task, "approved": approved, "by": by, "at": datetime.now(UTC), "reason": reason}
    decision = parse(Decision, fields, source=f"the decision about {run.url}")
    try:
        run.store.put_new(run.key(_key(task)), encode(decision))
    except ConflictError:
        earlier = _decision(run, task)
        if earlier is None or earlier.approved != approved:
            was = "approved" if earlier and earlier.approved else "rejected"
            raise ConflictError(f"{run.url}: {earlier and earlier.by} has {was} it already") from None
        decision = earlier
    say(f"{task}: {'approved' if approved else 'rejected'} by {decision.by}: {decision.reason}")
    return {"run": run.url, **_decided(decision)}


def _decided(decision: Decision) -> Decided:
    return cast("Decided", decision.model_dump(mode="json", exclude={"format"}))


def _at_stake(run: RunContext) -> Iterator[RunContext]:
    """Yield the newer nights under way that continue the same release.

    A night can only be published while the release that it continues is the current one. The nights after a refused one
    do not wait for the decision, so one may be half trained when the decision comes.
    """
    if not run.spec.publish or run.spec.walk == "independent":
        return
    for night in under_way(run.store, lambda key: snapshot_order(key) > snapshot_order(run.spec.snapshot)):
        if _competes(night, run):
            yield night


def under_way(
    store: Store, counts: Callable[[str], bool], *, below: str = "runs/", planned_after: float = 0.0
) -> Iterator[RunContext]:
    """Yield the unfinished nights of chains that are to be published.

    Left out are nights that were published, refused without an approval, or skipped since they were planned.

    Args:
        store: the graph's.
        counts: whether a snapshot's runs are of interest; other runs are not read.
        below: prefix of their keys.
        planned_after: leave out the nights that were last planned at this time or before, in seconds since 1970 by the
            store's clock.
    """
    named = (RunLayout.spec, RunLayout.planned)
    written = {info.key: info.modified or 0.0 for info in store.list(below) if info.key.endswith(named)}
    for key, made in written.items():
        name, _, rest = key.removeprefix("runs/").partition("/")
        planned = max(made, written.get(f"runs/{name}/{RunLayout.planned}", 0.0))
        # The id begins with the snapshot.
        if rest != RunLayout.spec or not counts(name.rpartition("-")[0]) or planned <= planned_after:
            continue
        with suppress(ConfigError, FormatError):  # removed meanwhile, or damaged
            night = RunContext.within(store, name)
            planned = night.planned()  # of S3, a listing may have parts of a second that the mark of a refusal lacks
            if planned <= planned_after or not night.spec.publish or night.spec.walk != "chain":
                continue
            if not _is_over(night, planned=planned):
                yield night


def _competes(night: RunContext, run: RunContext) -> bool:
    one, other = night.spec, run.spec
    same = (one.graph.graph, one.graph.channel) == (other.graph.graph, other.graph.channel)
    return same and _continued(night) == _continued(run)


def _continued(run: RunContext) -> str:
    return f"release {run.spec.previous.seq}" if run.spec.previous else "no release"


def _is_over(run: RunContext, *, planned: float) -> bool:
    """Whether a run was published, skipped, or refused without an approval."""
    if run.find(PublishResult) is not None:
        return True
    if refused := _refusals(run):
        return any(approval(run, task) is None for task, _ in refused)
    if run.refusal() is not None:
        return True
    return why_skipped(Channel(run.store, run.spec.graph.channel), run.spec.snapshot, since=planned) is not None


def _refusing(run: RunContext) -> tuple[str, VerdictDocument]:
    """Return the last task that refused the night, and its verdict."""
    refused = _refusals(run)
    if not refused:
        raise ConfigError(f"{run.url}: no gate has refused this night, so there is nothing to decide")
    return refused[-1]


def _refusals(run: RunContext) -> list[tuple[str, VerdictDocument]]:
    """Return the tasks that refused the night, with their verdicts."""
    judged = NightResults.of([run.find(ValidateResult), run.find(PartitionResult), run.find(GateResult)])
    return [(task, verdict) for task, verdict in judged.verdicts.items() if not verdict.passed]


def _decision(run: RunContext, task: str) -> Decision | None:
    found = find_document(Decision, run.store, run.key(_key(task)))
    return None if found is None else found[0]


def _key(task: str) -> str:
    return f"decisions/{task}.json"
