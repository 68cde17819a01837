"""``approve`` and ``reject``: what somebody decides about a night that a gate refused, kept with the run for good."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pbg_tasks.checkpoint.manifest import decode, encode
from pbg_tasks.config.base import Frozen, parse
from pbg_tasks.errors import ConfigError, ConflictError, NotFoundError
from pbg_tasks.progress import say
from pbg_tasks.tasks.context import Result, RunContext

if TYPE_CHECKING:
    from collections.abc import Iterator

GATED = ("validate", "partition", "gate")
"""The tasks that refuse nights: the data gate's two, and the quality gate."""
Text = Annotated[str, Field(min_length=1, max_length=500)]


class Decision(Frozen):
    """What somebody decided about a refused task of a run.

    Attributes:
        task: that refused the night.
        approved: whether the night goes on all the same.
        by: who.
        at: when, UTC.
        reason: why.
    """

    format: Literal[1] = 1
    task: Literal["validate", "partition", "gate"]
    approved: bool
    by: Text
    at: datetime
    reason: Text


def approve(url: str, *, by: str, reason: str) -> Result:
    """Let a refused night go on; the task that refused it passes from now on.

    Raises:
        ConfigError: nothing refused the night, or what is wrong with it nobody can approve.
        ConflictError: somebody has rejected it.
    """
    run = RunContext.open(url)
    task = _refusing(run)
    if beyond := [check["sentence"] for check in _verdict(run, task)["checks"] if _is_beyond_approval(check)]:
        raise ConfigError(f"{run.url}: no reader could use such vectors, so nobody can approve them: {beyond[0]}")
    return _decide(run, task, approved=True, by=by, reason=reason)


def reject(url: str, *, by: str, reason: str) -> Result:
    """Confirm that a refused night ends; nobody can approve it afterwards.

    Raises:
        ConfigError: nothing refused the night.
        ConflictError: somebody has approved it.
    """
    run = RunContext.open(url)
    return _decide(run, _refusing(run), approved=False, by=by, reason=reason)


def approval(run: RunContext, task: str) -> Decision | None:
    """Return who approved what a task refused; None when nobody did. A replay goes by the run it makes again."""
    decision = _decision(run, task)
    if decision is None and run.replays is not None:
        decision = _decision(RunContext.open(run.replays), task)
    return decision if decision is not None and decision.approved else None


def decisions(run: RunContext) -> list[Result]:
    """Return all that was decided about a run, as JSON."""
    found = (_decision(run, task) for task in GATED)
    return [decision.model_dump(mode="json", exclude={"format"}) for decision in found if decision is not None]


def _decide(run: RunContext, task: str, *, approved: bool, by: str, reason: str) -> Result:
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
    return {"run": run.url, **decision.model_dump(mode="json", exclude={"format"})}


def _refusing(run: RunContext) -> str:
    """Return the last task that refused the night."""
    refused = [task for task in _finished(run) if not _verdict(run, task)["passed"]]
    if not refused:
        raise ConfigError(f"{run.url}: no gate has refused this night, so there is nothing to decide")
    return refused[-1]


def _finished(run: RunContext) -> Iterator[str]:
    return (task for task in GATED if run.result(task) is not None)


def _verdict(run: RunContext, task: str) -> Result:
    result = run.require(task)
    verdict: Result = result.get("data_gate", result)
    return verdict


def _is_beyond_approval(check: Result) -> bool:
    return not check["passed"] and (check["name"] == "finite" or check["name"].startswith("health of "))


def _decision(run: RunContext, task: str) -> Decision | None:
    key = run.key(_key(task))
    try:
        return decode(Decision, run.store.get(key).data, source=f"{run.store.url}/{key}")
    except NotFoundError:
        return None


def _key(task: str) -> str:
    return f"decisions/{task}.json"
