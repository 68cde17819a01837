"""A snapshot whose edges and entities are both refused, and approved once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import duckdb
import pytest

from pbg_tasks.config import DataGates
from pbg_tasks.config.limits import Check, Verdict
from pbg_tasks.config.results import Entities, GateResult, PartitionResult, PlanResult, ValidateResult, VerdictDocument
from pbg_tasks.errors import EvictedError, PbgError, QualityGateError
from pbg_tasks.tasks.approval import approve
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly import on_spark
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.data_gate import _key, settle
from pbg_tasks.tasks.nightly.partition import _on_duckdb
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.publish import _data
from pbg_tasks.tasks.nightly.validate import _report, _with_entities
from tests.tasks.conftest import ring

QUICK = {"num_epochs": 1}
FAILURES = [
    PbgError("no ids"),
    duckdb.OutOfMemoryException("failed to allocate"),
    OSError("No space left on device"),
    MemoryError("no memory"),
]


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_one_approval_covers_edges_and_entities(place, monkeypatch, engine):
    limits = {"max_removed_edges": {"block": 0.3}, "max_gone_entities": {"block": 0.3}}
    monkeypatch.setattr(on_spark, "count", lambda *_: None)
    monkeypatch.setattr(on_spark, "validate", _report)  # in place of executors, which leave the same files
    monkeypatch.setattr(on_spark, "partition", _on_duckdb)
    resources = {"engine": engine, "memory_gb": 1, "threads": 1}
    place.write_spec(model=QUICK, gates={"max_mrr_drop": 1.0, "data": limits})
    place.snapshot("d1", ring(60))
    place.snapshot("d2", ring(30))
    run_chain(place.spec, "d1")
    place.write_spec(model=QUICK, gates={"max_mrr_drop": 1.0, "data": limits}, resources=resources)
    url = plan(place.spec, "d2")["run"]
    with pytest.raises(
        QualityGateError, match=r"max_removed_edges\); 50\.0% of the entities of 'd1' .*max_gone_entities"
    ):
        run_task("validate", url)
    assert approve(url, by="ada", reason="a holiday")["task"] == "validate"
    found = run_task("partition", url)["data_gate"]
    assert (found["passed"], found["accepted"]) == (True, "ada, with the edges: a holiday")
    run = RunContext.open(url)
    (seen,) = [Check(**each) for each in found["checks"] if not each["passed"]]
    for change in ({"value": 0.6}, {"limit": 0.2}, {"name": "another"}):  # no question named these
        assert not settle(run, Verdict((replace(seen, **change),))).passed


@pytest.mark.parametrize("accepted", [None, "a holiday"])
def test_release_has_acceptance_only_if_planned_with_one(monkeypatch, accepted):
    monkeypatch.setattr("pbg_tasks.tasks.nightly.publish.decisions", lambda _: [])
    verdict = VerdictDocument(passed=True, checks=[], accepted="ada, with the edges: a holiday")
    results = {
        ValidateResult: SimpleNamespace(edges=1, earlier_edges={}, columns={}, data_gate=verdict),
        PartitionResult: SimpleNamespace(entities=Entities(total=1, new=0, kept=1, gone=0), data_gate=verdict),
        GateResult: SimpleNamespace(checks=[]),
        PlanResult: SimpleNamespace(degrees={}),
    }
    run = SimpleNamespace(spec=SimpleNamespace(accepted=accepted), need=results.__getitem__)
    found = _data(run).document()
    assert found.get("accepted", "none") == (accepted or "none")


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_failed_look_ahead_leaves_the_refusal(monkeypatch, capsys, error):
    def fail(_):
        raise error

    monkeypatch.setattr("pbg_tasks.tasks.nightly.partition.judge_ahead", fail)
    run = SimpleNamespace(spec=SimpleNamespace(accepted=None))
    refused = Verdict((Check("min_edges", passed=False, value=1.0, limit=2.0, sentence="too few"),))
    assert _with_entities(run, refused) == refused
    assert f"warning: the entities are judged by partition alone: {error}" in capsys.readouterr().err


def test_evicted_look_ahead_ends_the_task(monkeypatch):
    def end(_):
        raise EvictedError("told to end (SIGTERM)")

    monkeypatch.setattr("pbg_tasks.tasks.nightly.partition.judge_ahead", end)
    refused = Verdict((Check("min_edges", passed=False, value=1.0, limit=2.0, sentence="too few"),))
    with pytest.raises(EvictedError):
        _with_entities(SimpleNamespace(spec=SimpleNamespace(accepted=None)), refused)


@pytest.mark.parametrize(
    ("own", "key"), [({"block": 0.2}, "entities.n.max_gone_entities"), (None, "max_gone_entities")]
)
def test_refusal_names_limit_of_the_type(own, key):
    data = DataGates.model_validate({"entities": {"n": {"max_gone_entities": own}}})
    run = SimpleNamespace(spec=SimpleNamespace(graph=SimpleNamespace(gates=SimpleNamespace(data=data))))
    assert _key("max_gone_entities of n", run) == key
    assert _key("max_gone_entities", run) == "max_gone_entities"
    assert _key("min_volume of 7", run) == "min_volume"
