"""Edges that stay, and numbers of rows, as ``validate`` judges them."""

from __future__ import annotations

import json
import random

import pytest

from pbg_tasks.config import RunSpec
from pbg_tasks.config.base import canonical_json
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.errors import QualityGateError
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.approval import approve
from pbg_tasks.tasks.context import RunContext, graph_store
from pbg_tasks.tasks.nightly import on_spark
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.comparison_target import kept_before
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.validate import _report, earlier_edges
from tests.bad_days import DEFECTS, generated
from tests.publish.runs import candidate, write_run
from tests.tasks.conftest import ring, workplace

NIGHTS = 8
SLIGHT = [*DEFECTS][[*DEFECTS].index("half of the edges lost") :]
"""Defects that no other check refuses."""


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    """Released nights that keep almost all edges, and later rows."""
    with workplace(tmp_path_factory.mktemp("steady")) as place:
        place.write_spec({"num_epochs": 1})
        days = [*generated(NIGHTS + 2, seed=1, entities=200)]
        for day, rows in days[:NIGHTS]:
            place.snapshot(day, rows)
            run_chain(place.spec, day)
        yield place, [rows for _, rows in days[NIGHTS:]]


def kept_check(found):
    return next((check for check in found["data_gate"]["checks"] if check["name"] == "min_kept_edges"), None)


def validated(place, name, rows, engine="duckdb"):
    """Plan a night without a release; return run and validation."""
    place.write_spec({"num_epochs": 1}, resources={"engine": engine, "memory_gb": 1, "threads": 1})
    place.snapshot(name, rows)
    url = plan(place.spec, name, publish=False)["run"]
    return url, lambda: run_task("validate", url)


@pytest.mark.parametrize("defect", SLIGHT)
def test_slight_defect_is_refused_after_a_week(steady, defect):
    place, (rows, _) = steady
    url, validate = validated(place, f"2026-02-{1 + SLIGHT.index(defect):02}", DEFECTS[defect](rows, random.Random(1)))
    with pytest.raises(QualityGateError, match=r"are still there .* times the usual .*\(gates\.data\.min_kept_"):
        validate()
    checks = RunContext.open(url).store.get(f"runs/{url.rpartition('/')[2]}/results/validate.json").data
    refused = {check["name"] for check in json.loads(checks)["data_gate"]["checks"] if not check["passed"]}
    assert refused <= {"min_kept_edges", "min_kept_by_relation", "max_gone_entities"}


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_refused_share_can_be_approved(steady, monkeypatch, engine):
    place, (rows, _) = steady
    if engine == "spark":  # in place of executors, which leave the same files
        monkeypatch.setattr(on_spark, "count", lambda *_: None)
        monkeypatch.setattr(on_spark, "validate", _report)
    half = random.Random(2).sample(rows, len(rows) // 2)
    url, validate = validated(place, f"2026-03-{1 + len(engine):02}", half, engine)
    with pytest.raises(QualityGateError, match=r"gates\.data\.min_kept_edges"):
        validate()
    approve(url, by="ada", reason="a supplier left")
    check = kept_check(validate())
    assert (check["passed"], check["limit"]) == (False, 0.55)
    assert check["value"] == pytest.approx(0.5, abs=0.02)


def test_usual_night_reads_no_earlier_results(steady, monkeypatch):
    place, (rows, _) = steady
    monkeypatch.setattr("pbg_tasks.tasks.nightly.validate.kept_before", pytest.fail)
    found = validated(place, "2026-04-01", rows)[1]()
    assert found["data_gate"]["passed"]
    assert kept_check(found) is None


def test_second_night_has_no_check(place):
    place.write_spec({"num_epochs": 1})
    place.snapshot("d1", ring(60))
    run_chain(place.spec, "d1")
    place.snapshot("d2", ring(60)[:90])
    found = run_task("validate", plan(place.spec, "d2")["run"])
    assert found["data_gate"]["passed"]
    assert kept_check(found) is None


def test_large_relation_that_stays_is_stored(place, monkeypatch):
    """Later nights need its share, however many others change more."""
    monkeypatch.setattr("pbg_tasks.tasks.nightly.validate._SHOWN_RELATIONS", 1)
    place.write_spec({"num_epochs": 1})
    place.snapshot("d1", ring(150))
    run_chain(place.spec, "d1")
    place.snapshot("d2", [*ring(150), ("e0", "rare", "e1")])
    found = run_task("validate", plan(place.spec, "d2")["run"])
    assert found["difference"]["edges"]["relations"].keys() == {"rare", "next", "skip", "far"}


def store_result(store, run, *, added=0, removed=0, exact=True, relations=None, version=1):
    edges = {"before": 1000, "added": added, "removed": removed, "exact": exact, "relations": relations or {}}
    difference = {"since": "d", "edges": edges, "degrees": {}, "columns": [], "volumes": [], "awaited": None}
    gate = {"passed": True, "checks": [], "accepted": None, "snapshot": run}
    header = {"format": version, "task": "validate", "run": run, "seconds": 0}
    found = header | {"edges": 1000, "columns": {}, "difference": difference, "data_gate": gate}
    store.put(f"runs/{run}/results/validate.json", canonical_json(found))


def test_last_seven_known_nights_are_read(place):
    """Results of an earlier version count, too."""
    place.write_spec({"num_epochs": 1})
    graph = load_graph_spec(place.spec)
    store = graph_store(graph)
    channel = place.channel()
    spec = RunSpec(graph=graph, snapshot="d70", files=())
    run = RunContext(store, spec.run_id, spec, spec.to_bytes())
    assert kept_before(run) == []
    figures = {
        **{day: {"removed": day} for day in range(50, 59)},
        59: {"removed": 590, "exact": False},
        61: {"removed": 100, "added": 250},
        63: {"version": 2},
        64: {"relations": {"r": {"added": 4, "removed": 4}, "s": {"before": 100, "added": 0, "removed": 50}}},
        71: {"removed": 710},
        65: {"removed": 650},
    }
    for day in (*range(50, 60), 60, 61, 63, 64, 71, 65):  # d60 has no result
        write_run(store, f"r{day}")
        there = channel.current().release
        planned = there.seq if there else None
        channel.publish(candidate(store, f"r{day}", f"d{day}"), planned_on=planned, independent=True)
        if day in figures:
            store_result(store, f"r{day}", **figures[day])
    assert [round(each.total, 4) for each in kept_before(run)] == [0.35, 1.0, 0.8182, 0.942, 0.943, 0.944, 0.945]
    assert [dict(each.relations) for each in kept_before(run)[:2]] == [{}, {"s": 0.5}]
    channel.rollback(next(each.seq for each in channel.releases() if each.snapshot == "d63"))
    after = [0.35, 0.8182, 0.942, 0.943, 0.944, 0.945, 0.946]
    assert [round(each.total, 4) for each in kept_before(run)] == after
    write_run(store, "r66")  # the next night moves the channel on
    channel.publish(candidate(store, "r66", "d66"), planned_on=channel.current().release.seq)
    store_result(store, "r66", removed=100)
    assert [round(each.total, 4) for each in kept_before(run)] == [0.9, *after[:-1]]
    write_run(store, "m66")  # as `pbg repartition` makes it, without results
    channel.publish(candidate(store, "m66", "d66"), planned_on=channel.current().release.seq)
    assert [round(each.total, 4) for each in kept_before(run)] == [0.9, *after[:-1]]


def test_rows_of_left_releases_do_not_count(tmp_path):
    store = open_store(str(tmp_path))
    releases = Channel(store, "production")

    def release(run, snapshot, edges, **told):
        write_run(store, run)
        document = candidate(store, run, snapshot) | {"data": {"edges": edges, **told}}
        releases.publish(document, planned_on=None, independent=True)

    release("r1", "d1", 100)
    release("r2", "d2", 2000)
    releases.rollback(1)
    assert earlier_edges(releases, "d3") == {"d1": 100}
    release("r3", "d3", 110, earlier_edges={"d1": 100, "d2": 2000})  # validated before the channel was rolled back
    assert earlier_edges(releases, "d4") == {"d1": 100, "d3": 110}
    release("r2-again", "d2", 105)  # a day that is mended counts
    assert earlier_edges(releases, "d4") == {"d1": 100, "d2": 105, "d3": 110}
    release("r3-again", "d3", 3000)
    releases.rollback(3)
    assert earlier_edges(releases, "d4") == {"d1": 100, "d2": 105, "d3": 110}
