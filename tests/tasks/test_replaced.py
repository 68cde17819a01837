"""Runs that would take the place of a release of their snapshot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pbg_tasks.config.results import EvalResult
from pbg_tasks.errors import ConflictError, QualityGateError
from pbg_tasks.publish import Channel
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.approval import approve
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import TASKS, run_chain, run_task
from pbg_tasks.tasks.nightly.comparison_target import replaced_release
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.view.show import history
from tests.publish.runs import candidate, write_run
from tests.tasks.conftest import SMALL_GRAPH, ring

WORSE = "model.lr=0.0001"


def test_replaced_release_is_newest_of_snapshot(tmp_path):
    """One that the channel was rolled back from has no place."""
    store = open_store(f"file://{tmp_path}")
    channel = Channel(store, "production")

    def replaced(snapshot, run="new", *, publish=True):
        spec = SimpleNamespace(publish=publish, snapshot=snapshot, graph=SimpleNamespace(channel="production"))
        found = replaced_release(SimpleNamespace(store=store, run_id=run, spec=spec))
        return None if found is None else found.run

    assert replaced("d1") is None
    for run, snapshot in (("d1-a", "d1"), ("d2-a", "d2"), ("d2-b", "d2")):
        write_run(store, run)
        channel.publish(candidate(store, run, snapshot), planned_on=None, independent=True)
    assert [replaced("d1"), replaced("d2"), replaced("d3")] == ["d1-a", "d2-b", None]
    assert [replaced("d2", "d2-b"), replaced("d2", publish=False)] == ["d2-a", None]
    channel.rollback(2)
    assert replaced("d2") == "d2-a"
    write_run(store, "d3-a")  # the next night moves the channel on
    channel.publish(candidate(store, "d3-a", "d3"), planned_on=2)
    assert replaced("d2") == "d2-a"


def test_trial_replaces_better_release_by_approval_alone(place, capsys):
    place.write_spec(gates=SMALL_GRAPH | {"max_mrr_drop": 1.0})
    place.snapshot("d1", ring(60))
    late = plan(place.spec, "d1", overrides=[WORSE], epochs=1)["run"]
    for task in [task for task in TASKS if task != "publish"]:
        run_task(task, late)
    good = run_chain(place.spec, "d1", epochs=30)["run"].rpartition("/")[2]
    with pytest.raises(ConflictError, match=rf"release 1 \(run {good}\) of snapshot d1 was published since"):
        run_task("publish", late)

    seen = rf"release 1 \(run {good}\), whose place it would take, has 0\.\d+ on the same \d+ edges"
    with pytest.raises(
        QualityGateError, match=rf"{seen}: .* no fall beyond .* take it this once: `pbg approve"
    ) as error:
        run_chain(place.spec, "d1", overrides=[WORSE], epochs=2)
    (row,) = history(place.spec)
    assert (row["run"], row["current"]) == (good, True)
    trial = str(error.value).removeprefix("run ").partition(": filtered")[0]
    approve(trial, by="ada", reason="the settings are those of next year")
    assert run_chain(place.spec, "d1", overrides=[WORSE], epochs=2)["release"]["release"] == 2
    assert "publish: takes the place of release 1 of this snapshot; filtered MRR 0." in capsys.readouterr().err


def test_better_release_published_meanwhile_is_not_replaced(place, monkeypatch):
    place.write_spec(gates=SMALL_GRAPH | {"max_mrr_drop": 1.0})
    place.snapshot("d1", ring(60))
    late = plan(place.spec, "d1", overrides=[WORSE], epochs=1)["run"]
    good = plan(place.spec, "d1", epochs=30)["run"]
    for run in (late, good):
        for task in [task for task in TASKS if task != "publish"]:
            run_task(task, run)
    point = Channel._point

    def second(*args, **how):
        monkeypatch.setattr(Channel, "_point", point)
        run_task("publish", good)
        return point(*args, **how)

    monkeypatch.setattr(Channel, "_point", second)
    with pytest.raises(ConflictError, match=rf"\(run {good.rpartition('/')[2]}\) of snapshot d1 was published since"):
        run_task("publish", late)
    assert [(row["run"], row["current"]) for row in history(place.spec)][-1] == (good.rpartition("/")[2], True)


def test_corrected_day_falls_as_far_as_nights(place):
    place.write_spec(gates=SMALL_GRAPH | {"max_mrr_drop": 1.0})
    place.snapshot("d1", ring(60))
    run_chain(place.spec, "d1", epochs=30)
    place.snapshot("d1", ring(61))
    corrected = run_chain(place.spec, "d1", overrides=[WORSE], epochs=1)
    found = RunContext.open(corrected["run"]).need(EvalResult).replaced
    assert (corrected["release"]["release"], found.repeats, found.difference["high"] < 0) == (2, False, True)
