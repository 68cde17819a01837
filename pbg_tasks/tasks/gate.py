"""``gate``: compare the candidate with the release before it, and stop it if it is not good enough."""

from __future__ import annotations

from pbg_tasks.config.base import digest
from pbg_tasks.errors import QualityGateError
from pbg_tasks.evaluate import judge
from pbg_tasks.progress import say
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.context import Result, RunContext, perform


def gate(url: str) -> Result:
    """Judge a run.

    Raises:
        QualityGateError: a check failed; every reason is in the message.
    """
    verdict = perform("gate", url, _gate)
    if not verdict["passed"]:
        reasons = "; ".join(check["sentence"] for check in verdict["checks"] if not check["passed"])
        raise QualityGateError(f"run {verdict['run']}: {reasons}")
    return verdict


def _gate(run: RunContext) -> Result:
    evaluated = run.require("eval")
    graph = run.spec.graph
    before = Channel(run.store, graph.channel).before(run.spec.snapshot)
    if before is not None and before.split != digest(graph.split.model_dump(mode="json")):
        say(f"gate: release {before.seq} was evaluated on other held-out edges; not compared with it")
        before = None
    verdict = judge(graph.gates, evaluated, before.metrics if before else None)
    if not verdict.passed:
        run.refuse("the quality gate refused it")
    return {"against_release": before.seq if before else None, **verdict.to_json()}
