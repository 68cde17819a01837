"""Nights between two that are compared: unfinished, refused or skipped."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import pytest

from pbg_tasks.config import Gates, RunSpec
from pbg_tasks.config.base import canonical_json
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.errors import AccessError, QualityGateError, StorageError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.skips import skip, skip_anew
from pbg_tasks.tasks.context import RunContext, graph_store
from pbg_tasks.tasks.nightly import partition
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.comparison_target import measured_between, nights_apart
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.replay import replay
from tests.publish.runs import candidate, write_run
from tests.tasks.conftest import ring


def test_other_ids_after_broken_night_are_refused(place):
    place.write_spec({"num_epochs": 1}, gates={"max_mrr_drop": 1.0}, nights={"walk": "independent"})
    place.snapshot("d1", ring(40))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(40))  # its night broke, which leaves neither release nor refusal
    place.snapshot("d3", [(f"x{lhs}", rel, f"x{rhs}") for lhs, rel, rhs in ring(40)])
    run = plan(place.spec, "d3")["run"]
    run_task("validate", run)
    gone = (
        r"100\.0% of the entities of 'd1' are .* at most 35\.0% allowed in one night, 57\.7% in the 2 nights since then"
    )
    with pytest.raises(QualityGateError, match=gone):
        run_task("partition", run)


def test_half_other_ids_after_refused_vectors_are_refused(place):
    """The night between had lost nothing."""
    place.write_spec({"num_epochs": 1}, gates={"max_mrr_drop": 1.0})
    for day in ("d1", "d2"):
        place.snapshot(day, ring(40))
    run_chain(place.spec, "d1")
    with pytest.raises(QualityGateError, match=r"gates\.min_mrr"):
        run_chain(place.spec, "d2", overrides=["gates.min_mrr=1"])
    other = {f"e{number}": f"x{number}" for number in range(20)}
    place.snapshot("d3", [(other.get(lhs, lhs), rel, other.get(rhs, rhs)) for lhs, rel, rhs in ring(40)])
    with pytest.raises(QualityGateError, match=r"50\.0% of the entities of 'd1' .* 35\.0% in the 2 nights since then"):
        run_chain(place.spec, "d3")


def test_night_after_refused_vectors_is_replayed(place):
    """The refused night is not in the store of the replay."""
    place.write_spec({"num_epochs": 1}, gates={"max_mrr_drop": 1.0})
    for day, other in (("d1", 0), ("d2", 8), ("d3", 16)):
        names = {f"e{number}": f"x{number}" for number in range(other)}
        place.snapshot(day, [(names.get(lhs, lhs), rel, names.get(rhs, rhs)) for lhs, rel, rhs in ring(40)])
    run_chain(place.spec, "d1")
    with pytest.raises(QualityGateError, match=r"gates\.min_mrr"):
        run_chain(place.spec, "d2", overrides=["gates.min_mrr=1"])
    assert replay(run_chain(place.spec, "d3")["run"])["equal"]


@pytest.mark.parametrize(("nights", "passed"), [(1, False), (2, True)])
def test_refused_nights_between_raise_the_limit(monkeypatch, nights, passed):
    monkeypatch.setattr(partition, "awaited", lambda _: None)
    monkeypatch.setattr(partition, "nights_apart", lambda _, since: nights if since == "d1" else 0)
    monkeypatch.setattr(partition, "measured_between", lambda *_: None)
    run = SimpleNamespace(spec=SimpleNamespace(graph=SimpleNamespace(gates=Gates())))
    (check,) = partition._judge(run, {"n": {"kept": 50, "gone": 50}}, "d1").checks
    assert (check.passed, check.warned) == (passed, passed)


USAGE = dict.fromkeys(("cpu_seconds", "memory_bytes", "store_bytes_read", "store_bytes_written"), 0)
NO_DIFFERENCE = {"edges": None, "degrees": {}, "columns": [], "volumes": [], "awaited": None}
FINDINGS = {
    "validate": {"edges": 24, "columns": {}},
    "partition": {
        "counts": {"n": [8]},
        "entities": dict.fromkeys(("total", "new", "kept", "gone"), 0),
        "types": {},
        "relations": 3,
    },
}


def finish(run, task, *, passed, accepted=None, since=None, figures=MappingProxyType({})):
    """Store what a task of the data gate found."""
    header = {"task": task, "run": run.url, "seconds": 0, "usage": USAGE}
    checks = [{"name": name, "passed": True, "sentence": name, "value": value} for name, value in figures.items()]
    verdict = {"passed": passed, "checks": checks, "accepted": accepted, "snapshot": run.spec.snapshot}
    difference = {} if since is None else {"difference": {**NO_DIFFERENCE, "since": since}}
    found = header | FINDINGS[task] | difference | {"data_gate": verdict}
    run.store.put(run.key(f"results/{task}.json"), canonical_json(found))


def test_refused_data_are_no_night_of_changes(place):
    place.write_spec({"num_epochs": 1}, nights={"walk": "independent"})
    for day in range(1, 6):
        place.snapshot(f"d{day}", ring(8))
    graph = load_graph_spec(place.spec)
    store = graph_store(graph)

    def planned(day, walk="independent"):
        spec = RunSpec(graph=graph, snapshot=f"d{day}", files=(), walk=walk)
        run = RunContext(store, spec.run_id, spec, spec.to_bytes())
        run.store_spec()
        run.begin()
        return run

    runs = {day: planned(day) for day in (2, 3, 5)}
    last, channel = runs[5], Channel(store, "production")
    assert nights_apart(last, "d1") == 4  # none of those between has finished
    assert nights_apart(planned(5, "chain"), "d1") == 1  # as outside of a chain, which would have waited
    assert nights_apart(last, "d5") == nights_apart(last, "d9") == nights_apart(last, None) == 1
    skip(channel, "d4", "by hand")
    runs[2].refuse("the data gate refused it")
    runs[3].refuse("the quality gate refused it")
    assert nights_apart(last, "d1") == 1
    for task in FINDINGS:
        finish(runs[2], task, passed=task == "validate")
        finish(runs[3], task, passed=True)
    assert nights_apart(last, "d1") == 2  # the data of d3 were good, its vectors were not
    finish(runs[3], "partition", passed=True, accepted="half the shops are closed")
    assert nights_apart(last, "d1") == 1
    finish(runs[3], "partition", passed=True)
    again = planned(3, "chain")
    finish(again, "validate", passed=False)
    assert nights_apart(last, "d1") == 1  # the run that was planned last decides
    for task in FINDINGS:
        finish(again, task, passed=True)
    assert nights_apart(last, "d1") == 2
    for name, day in (("before", "d1"), ("night", "d3")):
        write_run(store, name)
        there = channel.current().release
        channel.publish(candidate(store, name, day), planned_on=there.seq if there else None)
    assert nights_apart(last, "d1") == 2
    channel.rollback()
    assert nights_apart(last, "d1") == 1
    channel.rollback(2)
    assert nights_apart(last, "d1") == 2
    skip_anew(channel, "d3", "another shop's edges")
    assert nights_apart(last, "d1") == 1


def test_trial_is_no_night_between(place):
    for day in ("d1", "d2", "d3"):
        place.snapshot(day, ring(8))
    graph = load_graph_spec(place.spec)
    store = graph_store(graph)

    def planned(day, *, passed, **options):
        spec = RunSpec(graph=graph, snapshot=day, files=(), **options)
        run = RunContext(store, spec.run_id, spec, spec.to_bytes())
        run.store_spec()
        run.begin()
        for task in FINDINGS:
            finish(run, task, passed=passed)
        return run

    planned("d2", passed=False)
    planned("d2", passed=True, publish=False)  # as with other gates
    assert nights_apart(planned("d3", passed=True), "d1") == 1


def test_last_night_between_with_good_data_is_measured(place):
    place.write_spec({"num_epochs": 1})
    for day in range(1, 6):
        place.snapshot(f"d{day}", ring(8))
    graph = load_graph_spec(place.spec)
    store = graph_store(graph)
    runs = {}
    for day in range(2, 6):
        spec = RunSpec(graph=graph, snapshot=f"d{day}", files=())
        runs[day] = RunContext(store, spec.run_id, spec, spec.to_bytes())
        runs[day].store_spec()
        runs[day].begin()

    def found(since):
        measured = measured_between(runs[5], since)
        return measured and (dict(measured.lost), measured.after)

    assert found("d1") is None
    for day, share in ((2, 0.125), (3, 0.25), (4, 0.5)):
        checks = {"validate": {"max_removed_edges": share, "min_volume of 7": 1}, "partition": {"max_gone_entities": 0}}
        for task, figures in checks.items():
            finish(runs[day], task, passed=(day, task) != (4, "partition"), since="d1", figures=figures)
    assert found("d1") == ({"max_removed_edges": 0.25, "max_gone_entities": 0}, 1)  # d4 does not count
    assert found("d2") is None  # d3 was compared with d1
    finish(runs[4], "partition", passed=True, figures={"max_gone_entities": 0.375})
    assert found("d1") == ({"max_removed_edges": 0.5, "max_gone_entities": 0.375}, 1)
    finish(runs[4], "validate", passed=True, since="d3")
    assert found("d1") == ({"max_removed_edges": 0.25, "max_gone_entities": 0}, 2)


@pytest.mark.parametrize(("error", "apart"), [(AccessError("no"), 1), (StorageError("later"), None)])
def test_snapshots_that_cannot_be_listed_count_none(place, monkeypatch, error, apart):
    def fail(_):
        raise error

    monkeypatch.setattr("pbg_tasks.prepare.sources.snapshot_keys", fail)
    run = SimpleNamespace(spec=SimpleNamespace(graph=load_graph_spec(place.spec), snapshot="d9", walk="chain"))
    if apart is None:
        with pytest.raises(StorageError, match="later"):  # the task is tried again
            nights_apart(run, "d1")
    else:
        assert nights_apart(run, "d1") == apart
