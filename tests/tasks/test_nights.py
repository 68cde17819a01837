"""Nights through the whole chain of tasks.

Independent ones in any order, refused ones passed over.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import UTC, datetime, timedelta

import pytest

from pbg_tasks.config import RunLayout
from pbg_tasks.errors import ConfigError, InputError, OutOfTurnError, QualityGateError
from pbg_tasks.tasks.announcing import announced
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain
from pbg_tasks.tasks.nightly.export_release import export_release
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.nightly.publish import publish
from pbg_tasks.tasks.release.releases import skip
from pbg_tasks.tasks.view.show import show
from pbg_tasks.tasks.view.tables import table
from tests.clocks import HOUR, clock_wrong_by
from tests.tasks.conftest import ring

QUICK = {"num_epochs": 1}


def three_days(place):
    """Write three snapshots of a chain, the first of them embedded."""
    for number in (1, 2, 3):
        place.snapshot(f"d{number}", ring(40))
    place.write_spec(model=QUICK)
    run_chain(place.spec, "d1")


def assert_d3_waits(place):
    with pytest.raises(OutOfTurnError, match="'d3' continues that of 'd2'"):
        plan(place.spec, "d3")


def test_independent_nights_in_any_order_are_equal(place):
    place.write_spec(model=QUICK, nights={"walk": "independent"})
    for number in (1, 2):
        place.snapshot(f"d{number}", ring(40 + 5 * number))
    found = []
    for order in (("d1", "d2"), ("d2", "d1")):
        for day in order:
            assert run_chain(place.spec, day)["entities"]["kept"] == 0
        assert place.channel().current().release.snapshot == "d2"
        found.append({release.snapshot: release.manifest_sha256 for release in place.channel().releases()})
        shutil.rmtree(place.store)
    assert found[0] == found[1]
    assert set(found[0]) == {"d1", "d2"}


@pytest.mark.parametrize(
    ("key_format", "snapshot", "warned"),
    [
        ("%Y%m%d", "2026-11-20", True),
        ("%Y-%m-%dT%H", "2026-11-20", True),
        ("%Y-%m-%d", "2026-11-20", False),
        ("%Y-%m-%d-%B", "2026-09-20-September", False),
        ("%Y-d%-j", "2026-d7", False),
    ],
)
def test_plan_warns_of_key_format_unlike_snapshot(place, capsys, key_format, snapshot, warned):
    place.write_spec(model=QUICK, nights={"calendar": {"cron": "0 2 * * *", "key_format": key_format}})
    place.snapshot(snapshot, ring(40))
    plan(place.spec, snapshot)
    said = capsys.readouterr().err
    assert (f"warning: {place.spec}: nights.calendar.key_format '{key_format}' gives keys such as '" in said) is warned
    assert (f"none like snapshot '{snapshot}'" in said) is warned


@pytest.mark.parametrize(
    ("sections", "epochs", "warned"),
    [
        ({"nights": {"walk": "independent"}}, None, True),
        ({"train": {"warm_start": False, "warm_epochs": 2}}, None, True),
        ({}, None, False),
        ({"nights": {"walk": "independent"}, "train": {}}, 4, False),  # those of Airflow's form
    ],
)
def test_plan_warns_of_warm_epochs_without_effect(place, capsys, sections, epochs, warned):
    place.write_spec(**{"model": QUICK, "train": {"warm_epochs": 2}, **sections})
    place.snapshot("d1", ring(40))
    plan(place.spec, "d1", epochs=epochs)
    assert ("train.warm_epochs counts for no night" in capsys.readouterr().err) is warned


def test_chain_waits_but_passes_refused_night(place):
    place.write_spec(model=QUICK)
    for number in (1, 2, 3):
        place.snapshot(f"d{number}", ring(40))
    run_chain(place.spec, "d1")
    with pytest.raises(OutOfTurnError, match="'d3' continues that of 'd2'"):
        plan(place.spec, "d3")
    assert plan(place.spec, "d3", publish=False)["previous_release"] == 1
    place.write_spec(model=QUICK, gates={"data": {"min_edges": {"block": 1000}}})
    with pytest.raises(QualityGateError, match=r"at least 1000 asked \(gates\.data\.min_edges\)"):
        run_chain(place.spec, "d2")
    place.write_spec(model=QUICK)
    assert plan(place.spec, "d3")["previous_release"] == 1


def test_refused_night_planned_anew_is_awaited(place):
    three_days(place)

    def try_again(lr):
        place.write_spec(model={**QUICK, "lr": lr})
        return RunContext.open(plan(place.spec, "d2")["run"])

    try_again(0.01).refuse("the first reason")
    assert plan(place.spec, "d3")["previous_release"] == 1
    second = try_again(0.02)
    assert_d3_waits(place)
    second.refuse("the second reason")
    assert plan(place.spec, "d3")["previous_release"] == 1
    third = try_again(0.03)
    assert_d3_waits(place)
    skip(place.spec, "d2")
    assert plan(place.spec, "d3")["previous_release"] == 1
    assert [run.refusal() for run in (second, third)] == ["the second reason", None]
    try_again(0.04)
    assert_d3_waits(place)
    run_chain(place.spec, "d2")
    assert plan(place.spec, "d3")["previous_release"] == 2


def test_night_within_raised_limits_is_awaited_again(place):
    three_days(place)
    for _ in range(2):  # the second time the night has been refused since
        place.write_spec(model=QUICK, limits={"max_hours": {"block": 0}})
        with pytest.raises(QualityGateError, match=r"raise limits\.max_hours"):
            plan(place.spec, "d2")
        place.write_spec(model=QUICK)
        assert plan(place.spec, "d3")["previous_release"] == 1
        plan(place.spec, "d2")
        assert_d3_waits(place)
    assert len(list(place.store.glob("runs/d2-*"))) == 1
    run_chain(place.spec, "d2")
    assert plan(place.spec, "d3")["previous_release"] == 2


def test_unchanged_night_planned_again_is_awaited(place):
    three_days(place)
    night = RunContext.open(plan(place.spec, "d2")["run"])
    ends = {
        "skipped": lambda: skip(place.spec, "d2"),
        "diverged": lambda: night.refuse("its training diverged"),
        "ran out": lambda: night.refuse("nothing was held out"),
        "skipped once more": lambda: skip(place.spec, "d2"),
    }
    refusals = []
    for end in ends.values():
        assert_d3_waits(place)
        end()
        assert plan(place.spec, "d3")["previous_release"] == 1
        refusals.append(night.refusal())
        assert plan(place.spec, "d2")["run"] == night.url
        assert night.refusal() is None
    assert refusals == [None, "its training diverged", "nothing was held out", None]


def test_run_without_planning_mark_stays_refused(place):
    three_days(place)
    night = RunContext.open(plan(place.spec, "d2")["run"])
    night.store.delete(night.key(RunLayout.planned))
    with pytest.raises(OutOfTurnError, match="'d3' continues that of 'd2'"):
        plan(place.spec, "d3")
    night.refuse("the reason")
    assert plan(place.spec, "d3")["previous_release"] == 1
    assert night.refusal() == "the reason"


def test_night_published_again_reports_its_outcome(place):
    place.write_spec(model=QUICK)
    for number in (1, 2):
        place.snapshot(f"d{number}", ring(40))
    first, second = (run_chain(place.spec, f"d{number}")["run"] for number in (1, 2))
    assert publish(second)["published"]
    told = publish(first)
    assert (told["published"], told["release"]) == (False, 1)
    assert told["reason"] == "it was published before; channel 'production' serves release 2 now"
    shown = show(second)
    assert "release 2 of production\n" in table([shown])
    assert "warnings" not in table([shown])
    shown["gate"] = {"passed": True, "checks": [{"name": "c", "passed": True, "warned": True, "sentence": "few"}]}
    (row,) = (line.split() for line in table([shown]).splitlines() if line.startswith("warnings"))
    assert row == ["warnings", "1,", "below"]
    place.channel().rollback()
    assert "release 2 of production, rolled back\n" in table([show(second)])
    assert "release 1 of production\n" in table([show(first)])
    assert publish(first)["published"]
    # what it found is lost before it was recorded
    place.channel().store.delete(RunContext.open(second).key(RunLayout.result("publish")))
    told = publish(second)
    assert told["published"] is False
    way = "`pbg rollback SPEC 2 --channel production` brings it back"
    assert f"was rolled back to release 1 meanwhile; {way}" in told["reason"]
    # an older day is not served because it is older, whatever was rolled back
    place.channel().rollback(to=2)
    place.channel().store.delete(RunContext.open(first).key(RunLayout.result("publish")))
    assert publish(first)["reason"] == "channel 'production' already serves a newer snapshot"


def test_repeated_publish_reports_whether_announced(place):
    place.write_spec(model=QUICK, exports=[{"format": "npy"}])
    place.snapshot("d1", ring(40))
    run = run_chain(place.spec, "d1")["run"]
    assert [publish(run)["announced"], export_release(run, "npy")["announced"]] == [False, False]
    for _ in range(2):  # as after a crash between the two
        announced(run, "publish")
    assert [publish(run)["announced"], export_release(run, "npy")["announced"]] == [True, False]
    announced(run, "export-npy")
    assert export_release(run, "npy")["announced"]
    with pytest.raises(ConfigError, match=r"announces no 'train', only publish, promote, export-npy"):
        announced(run, "train")


def test_incomplete_snapshot_is_never_planned(place):
    location = f"{place.root}/edges/{{snapshot}}/*.tsv"
    watching = {"snapshots": {"location": location, "format": "tsv"}, "nights": {"watch": {"complete": "success"}}}
    place.write_spec(model=QUICK, **watching)
    with pytest.raises(InputError, match="no snapshot there"):
        plan(place.spec, "d1")
    (place.root / "edges").mkdir()
    part = place.snapshot("d1/part", ring(40))
    for begin in (plan, run_chain):
        with pytest.raises(OutOfTurnError, match=r"'d1' is not whole .*edges/d1/_SUCCESS is not there; its producer"):
            begin(place.spec, "d1")
    assert not list(place.store.glob("runs/*"))
    assert plan(place.spec, "d1", overrides=["nights.watch=null"])["files"] == 1
    (part.parent / "_SUCCESS").touch()
    assert plan(place.spec, "d1")["files"] == 1


@pytest.mark.parametrize(
    ("key", "error", "sentence"),
    [
        ("2026/11/20", ConfigError, r"'2026/11/20': a key has .*; did you mean '2026-11-20'\? Keys there: d0"),
        ("2026-11-2", InputError, r"no snapshot there .*; did you mean '2026-11-20'\? Keys there: d0, 2026-11-20$"),
        ("2026-11-21", InputError, r"no snapshot there[^?]*; keys there: d0, 2026-11-20$"),
        ("../x", ConfigError, r"a key has up to 64 .* digit; keys there: d0, 2026-11-20$"),
    ],
)
def test_error_of_wrong_key_names_the_nearest(place, key, error, sentence):
    place.write_spec(model=QUICK)
    for there in ("d0", "2026-11-20"):
        place.snapshot(there, ring(4))
    with pytest.raises(error, match=sentence):
        plan(place.spec, key)
    assert not list(place.store.glob("runs/*"))


def test_missing_snapshot_that_is_due_is_waited_for(place):
    place.write_spec(model=QUICK)
    due = datetime.now(UTC) - timedelta(hours=2)
    with pytest.raises(InputError, match="no snapshot there"):
        plan(place.spec, "d1")
    place.snapshot("d0", ring(40))
    with pytest.raises(InputError, match=r"no snapshot there .*; keys there: d0$"):
        plan(place.spec, "d1")
    (place.root / "edges" / "d1.tsv").mkdir()  # an empty folder is no snapshot, and not named as one
    with pytest.raises(InputError, match=r"no snapshot there .*; keys there: d0$"):
        plan(place.spec, "d1")
    (place.root / "edges" / "d1.tsv").rmdir()
    with pytest.raises(OutOfTurnError, match=r"'d1' has not come yet: .*no snapshot there"):
        plan(place.spec, "d1", due=due)
    assert not list(place.store.glob("runs/*"))
    place.snapshot("d1", ring(40))
    with pytest.raises(OutOfTurnError, match=r"'d1' may still grow: .* whole after 10 min"):
        plan(place.spec, "d1", due=due)
    with clock_wrong_by(HOUR):
        assert plan(place.spec, "d1", due=due)["files"] == 1
    assert plan(place.spec, "d1")["files"] == 1


def clock(moment):
    return {"at": f"{moment:%H:%M}"}


@pytest.mark.parametrize("whole", ["settled", "success"])
def test_wait_for_snapshot_ends_at_the_deadline(place, whole):
    now = datetime.now(UTC)
    due, sign = now - timedelta(hours=2), {"watch": {"complete": whole}}
    location = f"{place.root}/edges/{{snapshot}}/*.tsv"
    if whole == "success":  # the files are there, and the sign is missing
        place.snapshot("d1", ring(40)).rename(place.root / "edges.tsv")
        (place.root / "edges" / "d1").mkdir()
        (place.root / "edges.tsv").rename(place.root / "edges" / "d1" / "edges.tsv")
    for deadline, patience, error in (
        (now + timedelta(hours=1), None, OutOfTurnError),
        (now - timedelta(hours=1), None, InputError),
        (now - timedelta(hours=1), 24, OutOfTurnError),
    ):
        nights = {"deadline": clock(deadline), "patience_hours": patience, **sign}
        place.write_spec(model=QUICK, nights=nights, snapshots={"location": location, "format": "tsv"})
        with pytest.raises(error, match=r"not come yet|not whole") as raised:
            plan(place.spec, "d1", due=due)
        assert ("(nights.deadline): once it is whole, clear this run" in str(raised.value)) == (error is InputError)


def test_deadline_ends_no_wait_for_growing_snapshot(place):
    now = datetime.now(UTC)
    place.write_spec(model=QUICK, nights={"deadline": clock(now - timedelta(hours=1))})
    place.snapshot("d1", ring(40))
    with pytest.raises(OutOfTurnError, match="may still grow"):
        plan(place.spec, "d1", due=now - timedelta(hours=2))


def test_deadline_ends_no_wait_for_night_before(place):
    now = datetime.now(UTC)
    place.write_spec(model=QUICK, nights={"walk": "chain", "deadline": clock(now - timedelta(hours=1))})
    for day in ("d0", "d1", "d2"):
        place.snapshot(day, ring(40))
    run_chain(place.spec, "d0")
    with clock_wrong_by(HOUR), pytest.raises(OutOfTurnError, match="d1"):
        plan(place.spec, "d2", due=now - timedelta(hours=2))


def test_snapshot_growing_when_due_is_waited_for(place):
    place.write_spec(model=QUICK)
    written = place.snapshot("d1", ring(40))
    due = datetime.now(UTC) + timedelta(seconds=1)
    with pytest.raises(OutOfTurnError, match=r"'d1' may still grow: its newest file is \d+ s old"):
        plan(place.spec, "d1", due=due)
    tomorrow = time.time() + 86_400
    os.utime(written, (tomorrow, tomorrow))
    with pytest.raises(OutOfTurnError, match=r"d1\.tsv is dated 86\d+ s ahead .*`touch`"):
        plan(place.spec, "d1", due=due)
    os.utime(written, (0, 0))  # as of a copy that keeps the date
    with pytest.raises(OutOfTurnError, match=r"its newest file is \d+ s old"):
        plan(place.spec, "d1", due=due)
    with clock_wrong_by(601):
        assert plan(place.spec, "d1", due=due)["files"] == 1


def test_snapshot_is_complete_by_its_manifest(place):
    location = f"{place.root}/edges/{{snapshot}}/*.tsv"
    watching = {"snapshots": {"location": location, "format": "tsv"}, "nights": {"watch": {"complete": "manifest"}}}
    place.write_spec(model=QUICK, **watching)
    (place.root / "edges").mkdir()
    size = place.snapshot("d1/a", ring(40)).stat().st_size
    manifest = place.root / "edges" / "d1" / "_manifest.json"
    told = {}
    for name, text in {
        "none": None,
        "no list": "{}",
        "another file": json.dumps({"objects": {"a.tsv": {"size": size}, "b.tsv": {"size": 1}}}),
    }.items():
        if text is not None:
            manifest.write_text(text)
        with pytest.raises(OutOfTurnError) as raised:
            plan(place.spec, "d1")
        told[name] = str(raised.value).partition("): ")[2].partition("; its")[0]
    assert told == {
        "none": f"{manifest} is not there",
        "no list": f"{manifest} lists no files with their sizes",
        "another file": f"1 of the 2 files that {manifest} lists are not there with their sizes, as b.tsv",
    }
    manifest.write_text(json.dumps({"objects": {"a.tsv": {"size": size}}}))
    assert plan(place.spec, "d1")["files"] == 1


def test_settling_snapshot_is_planned_with_its_files(place):
    place.write_spec(model=QUICK, nights={"watch": {"complete": "settled"}})
    place.snapshot("d1", ring(40))
    assert plan(place.spec, "d1")["files"] == 1


def test_changed_rule_keeps_the_night_from_readers(place):
    place.write_spec(model=QUICK, channel="shadow", promote={"to": "production", "after_nights": 1})
    place.snapshot("d1", ring(40))
    assert run_chain(place.spec, "d1", overrides=["promote=null"])["release"]["published"]
    assert place.channel().current().release is None
    run_chain(place.spec, "d1", overrides=["channel=trial"])
    assert place.channel().current().release is None
    run_chain(place.spec, "d1")
    assert place.channel().current().release.promoted.channel == "shadow"


def test_change_may_complete_the_spec(place):
    place.write_spec(model=QUICK, channel="shadow", promote={"to": "production", "after_nights": 1})
    place.snapshot("d1", ring(40))
    lines = place.spec.read_text().splitlines(keepends=True)
    place.spec.write_text("".join(line for line in lines if not line.startswith("store:")))
    assert run_chain(place.spec, "d1", overrides=[f"store={place.store}"])["release"]["published"]
    assert place.channel().current().release.promoted.channel == "shadow"
