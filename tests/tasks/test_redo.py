"""A chain that is repeated from a corrected day on."""

from __future__ import annotations

import json
import shutil

import pytest

from pbg_tasks.errors import ConfigError, ConflictError, InputError, QualityGateError
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.release.redo import redo
from pbg_tasks.tasks.release.releases import rollback
from pbg_tasks.tasks.view.show import history, show
from pbg_tasks.tasks.view.tables import history_table, verdict
from tests.publish.runs import candidate, write_run
from tests.tasks.conftest import SMALL_GRAPH, ring, workplace

QUICK = {"num_epochs": 1}
DAYS = ["d1", "d2", "d3", "d4"]
WAY_TO_5 = "`pbg rollback SPEC 5 --channel production`"


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Return four released days, the second corrected afterwards, with a copy."""
    with workplace(tmp_path_factory.mktemp("chain")) as place:
        place.write_spec(model=QUICK)
        for number, day in enumerate(DAYS):
            place.snapshot(day, ring(40 + number))
            run_chain(place.spec, day)
        place.snapshot("d2", ring(41, seed=1)[5:])
        yield place, shutil.copytree(place.root, tmp_path_factory.mktemp("kept") / "chain")


@pytest.fixture
def chain(released):
    """The place, unchanged."""
    place, kept = released
    shutil.rmtree(place.root)
    shutil.copytree(kept, place.root)
    return place


def current(place):
    return place.channel().current().release


def ways(place):
    return [
        (each["release"], each["snapshot"], each["continues"], each["descends_from"]) for each in history(place.spec)
    ]


def test_redo_continues_each_day_as_redone(chain):
    result = redo(chain.spec, "d2")
    assert result["days"] == DAYS[1:]
    assert [(each["snapshot"], each["release"]) for each in result["redone"]] == [("d2", 5), ("d3", 6), ("d4", 7)]
    assert (current(chain).seq, current(chain).snapshot) == (7, "d4")
    assert result["redone"][-1]["directory"].endswith(f"/{current(chain).directory}")
    assert ways(chain)[4:] == [(5, "d2", 1, None), (6, "d3", 5, None), (7, "d4", 6, None)]
    assert redo(chain.spec, "d2") == result
    assert current(chain).seq == 7


def test_redo_warns_where_no_release_before_is_kept(place, capsys):
    channel = place.channel()
    place.write_spec()
    for number, day in enumerate(DAYS):
        place.snapshot(day, ring(8))
        write_run(channel.store, f"r{day}")
        channel.publish(candidate(channel.store, f"r{day}", day) | {"graph": "toy"}, planned_on=number or None)
    assert redo(place.spec, "d1", dry_run=True)["days"] == DAYS
    assert "warning" not in capsys.readouterr().err
    channel.store.delete(channel.release_key(1))  # as a collection does
    redo(place.spec, "d3", dry_run=True)
    assert "warning" not in capsys.readouterr().err
    redo(place.spec, "d2", dry_run=True)
    assert "warning: redo: no release before d2 is kept, so that day begins anew" in capsys.readouterr().err


def test_rollback_warns_of_redone_ancestors(chain, capsys):
    redo(chain.spec, "d2")
    rollback(chain.spec, to=6)
    assert "warning" not in capsys.readouterr().err.rpartition("rollback: ")[2]
    rollback(chain.spec, to=4)
    told = "warning: release 4 was trained from release 3, which was redone as 6 (rolled back); `pbg"
    assert told in capsys.readouterr().err


def test_rollback_past_damaged_run_spec_succeeds(chain, capsys):
    redo(chain.spec, "d2")
    (chain.store / "runs" / history(chain.spec)[3]["run"] / "spec.json").write_text("{")
    rollback(chain.spec, to=3)
    assert current(chain).seq == 3
    assert "warning" not in capsys.readouterr().err.rpartition("rollback: ")[2]


def test_redo_past_rolled_back_day_is_refused(chain):
    """Later days would continue the release that is served."""
    run_chain(chain.spec, "d2")
    rollback(chain.spec, to=1)
    told = f"d3 would continue release 1 of d1, not release 5 of d2; move the channel there, {WAY_TO_5}"
    with pytest.raises(ConflictError, match=told):
        redo(chain.spec, "d2")
    assert len(ways(chain)) == 5
    rollback(chain.spec, to=5)
    redo(chain.spec, "d3")
    assert ways(chain)[5:] == [(6, "d3", 5, None), (7, "d4", 6, None)]


def test_redo_after_roll_back_names_way_on(chain, capsys):
    """The day has its release, which is not published again."""
    assert redo(chain.spec, "d4")["served"]
    rollback(chain.spec, to=3)
    assert not redo(chain.spec, "d4")["served"]
    told = f"serves release 3 of d3; {WAY_TO_5} moves it to release 5 of d4"
    assert told in capsys.readouterr().err
    rollback(chain.spec, to=5)
    assert redo(chain.spec, "d4")["served"]
    assert "serves release" not in capsys.readouterr().err


def test_releases_from_a_redone_one_are_named(chain):
    assert [way[3] for way in ways(chain)] == [None] * 4
    run_chain(chain.spec, "d2")
    assert ways(chain) == [
        (1, "d1", None, None),
        (2, "d2", 1, None),
        (3, "d3", 2, 2),
        (4, "d4", 3, 2),
        (5, "d2", 1, None),
    ]
    assert current(chain).seq == 4
    assert "3, from 2: redone as 5" in history_table(history(chain.spec))


def test_releases_from_a_rolled_back_one_are_named(chain):
    rollback(chain.spec, to=2)
    assert [way[3] for way in ways(chain)] == [None, None, None, 3]
    assert " 3: rolled back" in history_table(history(chain.spec))


def test_table_marks_releases_that_count_no_longer(chain):
    rollback(chain.spec, to=2)
    assert [row["void"] for row in history(chain.spec)] == [None, None, "rolled back", "rolled back"]
    rows = history_table(history(chain.spec)).splitlines()[2:]
    assert [" no, rolled back " in row for row in rows] == [False, False, True, True]


def test_redo_that_was_rolled_back_is_named_so(chain):
    for seed in (1, 2):
        chain.snapshot("d4", ring(43, seed=seed)[5:])
        redo(chain.spec, "d4")
    rollback(chain.spec, to=5)
    voids = ["redone as 5", "redone as 6 (rolled back)", "rolled back"]
    assert [row["void"] for row in history(chain.spec)] == [None, None, None, *voids]
    rollback(chain.spec, to=4)
    assert history(chain.spec)[3]["void"] == "redone as 6 (rolled back)"


def test_releases_from_a_left_one_stay_named(chain):
    """The next night moves the channel on."""
    rollback(chain.spec, to=2)
    chain.snapshot("d5", ring(44))
    run_chain(chain.spec, "d5")
    assert ways(chain)[2:] == [(3, "d3", 2, None), (4, "d4", 3, 3), (5, "d5", 2, None)]
    assert " 3: rolled back" in history_table(history(chain.spec))


def test_releases_after_undone_rollback_are_not_named(chain):
    rollback(chain.spec, to=2)
    rollback(chain.spec, to=4)
    chain.snapshot("d5", ring(44))
    run_chain(chain.spec, "d5")
    assert ways(chain)[2:] == [(3, "d3", 2, None), (4, "d4", 3, None), (5, "d5", 4, None)]


def test_redone_day_after_return_is_not_rolled_back(chain):
    """An older day is recorded, and the channel stays."""
    rollback(chain.spec, to=3)
    rollback(chain.spec, to=4)
    run = run_chain(chain.spec, "d2")["run"]
    assert current(chain).seq == 4
    assert verdict(show(run)) == "release 5 of production, not current"
    run_chain(chain.spec, "d3")
    assert ways(chain)[4:] == [(5, "d2", 1, None), (6, "d3", 5, None)]


def test_redo_with_settings_of_before_is_refused(chain):
    """Another release took the place of the one with these settings."""
    run_chain(chain.spec, "d2")
    chain.write_spec(model=QUICK | {"lr": 0.09})
    run_chain(chain.spec, "d2")
    chain.write_spec(model=QUICK)
    told = f"d3 would continue release 6 of d2, not release 5 of d2; move the channel there, {WAY_TO_5}"
    with pytest.raises(ConflictError, match=told):
        redo(chain.spec, "d2")
    rollback(chain.spec, to=5)
    redo(chain.spec, "d3")
    assert [way[:3] for way in ways(chain)[6:]] == [(7, "d3", 5), (8, "d4", 7)]


def test_redo_past_a_day_without_snapshot_is_refused(chain):
    """Its release is of the chain that is corrected."""
    (chain.root / "edges" / "d3.tsv").unlink()
    told = "d4 would continue release 3 of d3, not release 5 of d2; move the channel there, `pbg rollback SPEC 5"
    with pytest.raises(ConflictError, match=told):
        redo(chain.spec, "d2")
    rollback(chain.spec, to=5)
    redo(chain.spec, "d4")
    assert ways(chain)[5:] == [(6, "d4", 5, None)]


def test_redo_of_replaced_last_day_names_way(chain, capsys):
    run_chain(chain.spec, "d4")
    chain.write_spec(model=QUICK | {"lr": 0.09})
    run_chain(chain.spec, "d4")
    chain.write_spec(model=QUICK)
    redo(chain.spec, "d4")
    told = capsys.readouterr().err
    assert f"release 6 took its place; channel 'production' serves release 6 now; {WAY_TO_5}" in told
    assert f"serves release 6 of d4; {WAY_TO_5} moves it to release 5 of d4" in told


def test_interrupted_redo_continues(chain):
    run_chain(chain.spec, "d2")
    run_chain(chain.spec, "d3")
    assert [each["release"] for each in redo(chain.spec, "d2")["redone"]] == [5, 6, 7]


def test_redo_after_rollback_moves_channel_daily(chain):
    rollback(chain.spec, to=1)
    assert [each["release"] for each in redo(chain.spec, "d2")["redone"]] == [5, 6, 7]
    assert (current(chain).seq, current(chain).snapshot) == (7, "d4")


def test_day_released_meanwhile_is_redone(chain, monkeypatch):
    chain.snapshot("d5", ring(44))

    def with_next_night(spec, day, **options):
        if current(chain).snapshot == "d4":  # the next night begins before d4 is redone, and ends before, too
            run_chain(spec, "d5")
        return run_chain(spec, day, **options)

    monkeypatch.setattr("pbg_tasks.tasks.release.redo.run_chain", with_next_night)
    chain.snapshot("d4", ring(43, seed=1)[5:])
    result = redo(chain.spec, "d4")
    assert result["days"] == ["d4", "d5"]
    assert ways(chain)[4:] == [(5, "d5", 4, 4), (6, "d4", 3, None), (7, "d5", 6, None)]
    assert current(chain).seq == 7


def test_spec_edited_during_redo_counts_later(chain, monkeypatch):
    def edited(spec, day, **options):
        summary = run_chain(spec, day, **options)
        chain.write_spec(model=QUICK | {"dimension": 12})
        return summary

    monkeypatch.setattr("pbg_tasks.tasks.release.redo.run_chain", edited)
    runs = [RunContext.open(each["run"]).spec for each in redo(chain.spec, "d2")["redone"]]
    assert len({run.graph.model.dimension for run in runs} | {12}) == 2


def test_spec_edited_during_run_counts_later(place, monkeypatch):
    """It may be half written while the tasks run."""

    def edited(name, url):
        place.spec.write_text("graph: [")
        return run_task(name, url)

    place.write_spec(model=QUICK, channel="shadow", promote={"to": "production", "after_nights": 1})
    place.snapshot("d1", ring(40))
    monkeypatch.setattr("pbg_tasks.tasks.nightly.chain.run_task", edited)
    assert run_chain(place.spec, "d1")["release"]["channel"] == "shadow"
    assert current(place).promoted.channel == "shadow"


def test_refused_day_ends_redo_and_names_days_left(chain):
    chain.write_spec(model=QUICK, gates=SMALL_GRAPH | {"min_mrr": 0.99})
    again = r"`pbg redo SPEC d2 -p model\.lr=0\.09`"
    told = f"; 0 of 3 days are redone, d2, d3, d4 are not: mend or approve d2, then {again}"
    with pytest.raises(QualityGateError, match=told):
        redo(chain.spec, "d2", overrides=["model.lr=0.09"])
    assert current(chain).seq == 4


def test_dry_run_lists_days_and_does_none(chain):
    listed = {"from": "d3", "days": ["d3", "d4"], "redone": [], "served": False}
    assert redo(chain.spec, "d3", dry_run=True) == listed
    assert len(history(chain.spec)) == 4


def test_wrong_uses_are_refused(chain):
    with pytest.raises(InputError, match=r"there is no snapshot 'd9'; keys there: d4, d3, d2, d1$"):
        redo(chain.spec, "d9")
    told = r"nights\.walk is 'independent', so no night depends on 'd2'.*`pbg run SPEC d2 -p nights\.walk=independent`"
    with pytest.raises(ConfigError, match=told):
        redo(chain.spec, "d2", overrides=["nights.walk=independent"])


def test_changed_run_spec_cannot_loop_the_listing(chain):
    """A run spec cannot name its own release, or a later one."""
    for number, claimed in ((2, 2), (3, 4)):
        run = history(chain.spec)[number - 1]["run"]
        path = chain.store / "runs" / run / "spec.json"
        document = json.loads(path.read_text())
        document["previous"]["seq"] = claimed
        path.write_text(json.dumps(document))
    assert [way[3] for way in ways(chain)] == [None] * 4
