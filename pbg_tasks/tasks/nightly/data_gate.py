"""Steps of the data gate that its tasks share.

They report and keep the verdict on a snapshot, and end the night that it blocks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pbg_tasks.config.night_results import beyond_approval
from pbg_tasks.config.results import ValidateResult, VerdictDocument
from pbg_tasks.errors import QualityGateError, UnusableError
from pbg_tasks.progress import say
from pbg_tasks.tasks.approval import approval, how_to_approve
from pbg_tasks.tasks.context import RunContext

if TYPE_CHECKING:
    from pbg_tasks.config.limits import Verdict
    from pbg_tasks.config.results import PartitionResult


def settle(run: RunContext, verdict: Verdict) -> VerdictDocument:
    """Report a verdict and return it as part of the task's result.

    A blocked night does not hold up those that follow, unless it was accepted when it was planned, or a person saw the
    same checks when the task before asked, and approved.
    """
    for check in verdict.checks:
        if check.warned:
            say(f"warning: {check.sentence}")
    found = VerdictDocument.model_validate(verdict.to_json())
    beyond = beyond_approval(found)
    accepted = None if verdict.passed or beyond else run.spec.accepted or _approved_before(run, found)
    if accepted is not None:
        say(f"accepted ({accepted}): {_reasons(found, run)}")
    elif not verdict.passed:
        run.refuse(beyond[0] if beyond else f"the data gate refused it: {verdict.refusal}")
    passed = verdict.passed or accepted is not None
    return found.model_copy(update={"passed": passed, "accepted": accepted, "snapshot": run.spec.snapshot})


def _approved_before(run: RunContext, verdict: VerdictDocument) -> str | None:
    """Return the reason of the approval that covers each failed check.

    It covers a check of the figure and limit that ``validate`` was refused with, and no other.
    """
    decision, validated = approval(run, ValidateResult.TASK), run.find(ValidateResult)
    if decision is None or validated is None or not _failed(verdict) <= _failed(validated.data_gate):
        return None
    return f"{decision.by}, with the edges: {decision.reason}"


def _failed(verdict: VerdictDocument) -> set[tuple[str, float | None, float | None]]:
    return {(check.name, check.value, check.limit) for check in verdict.checks if not check.passed}


def enforce(result: ValidateResult | PartitionResult) -> None:
    """End a night that the verdict of a task blocks.

    A replay goes on: its run has, and the nights before it that raised a limit are not in its store.

    Raises:
        QualityGateError: it blocks the night, and there is no approval; every reason is in the message.
        UnusableError: it blocks the night, and no approval can excuse it.
    """
    verdict = result.data_gate
    if beyond := beyond_approval(verdict):
        advice = "mend the snapshot, or leave it: later nights go on without it"
        raise UnusableError(f"snapshot {verdict.snapshot!r}: {beyond[0]}; {advice}")
    if verdict.passed:
        return
    run = RunContext.open(result.run)
    if run.replays is None and approval(run, result.task) is None:
        raise QualityGateError(
            f"snapshot {verdict.snapshot!r}: {_reasons(verdict, run)}{_columns(verdict, run)}; mend the snapshot, "
            "change the limits in gates.data (a limit {} is none, as for days of new events), or take it this once: "
            f"{how_to_approve(result.run)}, or plan it with --accept-data REASON"
        )


def _reasons(verdict: VerdictDocument, run: RunContext) -> str:
    failed = [check for check in verdict.checks if not check.passed]
    return "; ".join(f"{check.sentence} (gates.data.{_key(check.name, run)})" for check in failed)


def _columns(verdict: VerdictDocument, run: RunContext) -> str:
    """Return changes of columns that only warned, for a sentence.

    A column of another type makes other ids of the same entities, so that all of them are gone. Columns that no key
    of the spec names are not read, so they are no cause.
    """
    read = [repr(column) for column in run.spec.graph.columns.model_dump().values() if column is not None]
    changes = [check.sentence for check in verdict.checks if check.name == "changed_columns" and check.warned]
    is_read = re.compile("|".join(map(re.escape, read)))
    causes = [*filter(is_read.search, changes)]
    return f"; the cause may be that {causes[0]}" if causes else ""


def _key(check: str, run: RunContext) -> str:
    """Return the key of a check's limit below ``gates.data``."""
    name, _, entity = check.partition(" of ")
    own = run.spec.graph.gates.data.entities.get(entity)
    return name if getattr(own, name, None) is None else f"entities.{entity}.{name}"
