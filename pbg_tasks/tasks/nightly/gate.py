"""``gate``: compare the candidate with the release before it.

A candidate that is not good enough is stopped.
"""

from __future__ import annotations

from contextlib import suppress

from pbg_tasks.config.night_results import beyond_approval
from pbg_tasks.config.results import CheckDocument, DriftResult, EvalResult, GateFindings, GateResult, Metrics, Result
from pbg_tasks.errors import InputError, QualityGateError, UnusableError
from pbg_tasks.evaluate.gate import FALLS, REPLACED, judge
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.approval import approval, how_to_approve
from pbg_tasks.tasks.context import RunContext, perform


def gate(url: str) -> Result:
    """Judge a run.

    Raises:
        QualityGateError: a check failed and there is no approval; every reason is in the message.
        UnusableError: a check failed, and no approval can excuse it.
    """
    verdict = perform(GateResult, url, _gate)
    if not verdict.passed and approval(RunContext.open(url), "gate") is None:
        failed = [check for check in verdict.checks if not check.passed]
        reasons = "; ".join(f"{check.sentence}{_key(check)}" for check in failed)
        if beyond_approval(verdict):
            raise UnusableError(f"run {verdict.run}: {reasons}; train it otherwise, or leave it: later nights go on")
        limits = "change the limits, " if any(map(_key, failed)) else ""
        raise QualityGateError(
            f"run {verdict.run}: {reasons}; train it otherwise, {limits}or take it this once: "
            f"{how_to_approve(verdict.run)}"
        )
    return verdict.document()


def _key(check: CheckDocument) -> str:
    """Return the key of a check's limit, in brackets.

    Checks without a limit have none.
    """
    name = check.name.split()[0]
    if check.name.startswith("min_mrr of "):
        name = "relations"
    elif check.value is None and name in {*FALLS, REPLACED}:
        name = "on_few_common_edges"
    elif name == REPLACED:
        name = FALLS[0] if check.limit is not None else ""
    return "" if name in {"finite", "health", ""} else f" (gates.{name})"


def _gate(run: RunContext) -> GateFindings:
    evaluated, drift = run.need(EvalResult), run.need(DriftResult)
    against = evaluated.against.release if evaluated.against is not None else None
    verdict = judge(run.spec.graph.gates, evaluated, drift=drift.types, before=_metrics(run, against))
    for check in verdict.checks:
        if check.warned:
            say(f"warning: {check.sentence}")
    if not verdict.passed:
        run.refuse(f"the quality gate refused it: {verdict.refusal}")
    return GateFindings.model_validate({"against_release": against, **verdict.to_json()})


def _metrics(run: RunContext, release: int | None) -> Metrics | None:
    """Return the evaluation that is kept with a release; None without one."""
    if release is None:
        return None
    with suppress(InputError):
        return Metrics.model_validate(Channel(run.store, run.spec.graph.channel).release(release).metrics)
    return None
