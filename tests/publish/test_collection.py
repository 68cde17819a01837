"""Removed and kept objects, case by case.

``test_collection_machine`` walks through everything at random.
"""

from __future__ import annotations

import math

import pytest

from pbg_tasks.errors import ConflictError, FormatError, InputError, NotFoundError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.channel import all_channel_names
from pbg_tasks.publish.gc_holds import condemn, hold
from pbg_tasks.publish.looks import Dates
from pbg_tasks.publish.retention import pin, unpin
from pbg_tasks.storage import LocalStore
from tests.publish.nights import DAY, GRACE, gc, night
from tests.publish.runs import candidate, whole, write_run
from tests.publish.turned_store import TurnedStore


@pytest.fixture
def store(tmp_path):
    return TurnedStore(tmp_path)


def runs(store):
    return sorted({info.key.split("/")[1] for info in store.list("runs/")})


def numbers(store, channel="production"):
    return [release.seq for release in Channel(store, channel).releases()]


def test_newest_stay_and_others_go_whole(store):
    night(store, *range(1, 7))
    told = gc(store, releases=3)
    assert numbers(store) == [4, 5, 6]
    assert runs(store) == ["d4-production", "d5-production", "d6-production"]
    assert told.releases == ["production/1", "production/2", "production/3"]
    assert (told.kept, len(told.runs), told.objects) == (3, 3, 3 * (1 + 7 + 1))  # document, run, hold
    assert told.size > 0
    assert gc(store, releases=3).objects == 0


def test_newest_follows_snapshot_order_instead_of_text(store):
    night(store, *range(7, 13))
    gc(store, releases=3)
    assert [release.snapshot for release in Channel(store, "production").releases()] == ["d10", "d11", "d12"]


def test_day_redone_often_displaces_no_other(store):
    night(store, *range(1, 6))
    for number in range(3):
        write_run(store, f"again{number}", previous="d4-production")
        Channel(store, "production").publish(candidate(store, f"again{number}", "d5"), planned_on=4)
        store.now += DAY
    gc(store, releases=3)
    assert [release.snapshot for release in Channel(store, "production").releases()] == ["d3", "d4", *["d5"] * 4]


@pytest.mark.parametrize(("rules", "stay"), [({"releases": 3}, [4, 5, 6]), ({"releases": 1}, [5, 6]), ({}, [5, 6])])
def test_releases_of_only_snapshot_are_counted(store, rules, stay):
    channel = Channel(store, "production")
    for number in range(1, 7):
        write_run(store, f"again{number}")
        channel.publish(candidate(store, f"again{number}", "latest"), planned_on=None)
        store.now += DAY
    gc(store, **rules)
    assert numbers(store) == stay
    assert channel.rollback()[1].seq == 5
    assert channel.before("latest") is None


def test_canary_of_drill_keeps_nothing(store):
    canary = Channel(store, "production-drill")
    for number in range(1, 7):
        night(store, number)
        if number > 1:
            for of in (number - 1, number):  # as a drill does it
                canary.publish(candidate(store, f"d{of}-production", f"d{of}"), planned_on=None, independent=True)
    gc(store, releases=3, channel="production")
    assert numbers(store) == [4, 5, 6]
    assert [release.snapshot for release in canary.releases()] == ["d4", "d5", "d6"]
    assert len(runs(store)) == 3


def test_runs_of_last_days_stay(store):
    night(store, *range(1, 7))
    gc(store, days=2.5)
    assert numbers(store) == [5, 6]


def test_current_release_and_rollback_targets_stay(store):
    night(store, *range(1, 7))
    channel = Channel(store, "production")
    channel.rollback(to=3)
    store.now += DAY
    gc(store)
    assert numbers(store) == [2, 3, 6]  # 6 stays: the next release must not get its number
    assert [release.seq for release in channel.rollback()] == [3, 2]


def test_rollback_target_of_night_published_first_stays(store):
    channel = Channel(store, "production")
    for number in (6, 5, 4):  # a backfill, the newest first
        write_run(store, f"d{number}")
        channel.publish(candidate(store, f"d{number}", f"d{number}"), planned_on=None, independent=True)
        store.now += DAY
    gc(store)
    assert numbers(store) == [1, 2, 3]  # the served release, its rollback target, and the last number
    assert channel.rollback()[1].snapshot == "d5"


def test_dry_run_reports_the_same_and_changes_nothing(store):
    night(store, *range(1, 5))
    before = [(info.key, info.tag) for info in store.list()]
    told = gc(store, dry_run=True)
    assert [(info.key, info.tag) for info in store.list()] == before
    assert told == gc(store)


def test_pinned_release_stays_until_unpinned(store):
    night(store, *range(1, 5))
    channel = Channel(store, "production")
    for _ in range(2):
        assert pin(channel, 1).run == "d1-production"
    store.now += DAY
    gc(store)
    assert numbers(store) == [1, 3, 4]
    unpin(channel, 1)
    gc(store)
    assert numbers(store) == [3, 4]
    with pytest.raises(InputError, match="no release 1"):
        pin(channel, 1)


def test_foreign_objects_among_pins_are_left_out(store):
    night(store, *range(1, 4))
    pin(Channel(store, "production"), 1)
    for name in (".DS_Store", "notes.json"):
        store.put(f"channels/production/pins/{name}", b"")
    gc(store, releases=1)
    assert numbers(store) == [1, 2, 3]


def test_unreleased_run_keeps_its_previous_until_grace(store):
    night(store, *range(1, 4))
    write_run(store, "failed", previous="d1-production")
    store.now += GRACE - 1
    gc(store)
    assert runs(store) == ["d1-production", "d2-production", "d3-production", "failed"]
    store.now += 2
    gc(store)
    assert runs(store) == ["d2-production", "d3-production"]


def test_only_the_named_channel_is_collected(store):
    for number in range(1, 5):
        night(store, number)
        night(store, number, channel="canary")
    write_run(store, "tried", channel="canary")
    store.now += DAY
    gc(store, channel="production")
    assert (numbers(store), numbers(store, "canary")) == ([3, 4], [1, 2, 3, 4])
    assert "tried" in runs(store)
    gc(store, channel="canary")
    assert numbers(store, "canary") == [3, 4]
    assert "tried" not in runs(store)


def test_run_planned_for_no_channel_is_collected(store):
    """An interrupted `pbg repartition` leaves such a run."""
    night(store, 1)
    hold(store, "moved")
    store.put_new("runs/moved/release/model.v1.h5", b"")
    store.now += GRACE - 1
    gc(store, channel="production")
    assert "moved" in runs(store)
    store.now += 2
    gc(store, channel="production")
    assert runs(store) == ["d1-production"]


def test_release_served_by_two_channels_stays_for_both(store):
    night(store, *range(1, 5))
    Channel(store, "canary").publish(candidate(store, "d1-production", "d1"), planned_on=None)
    store.now += DAY
    gc(store)
    (release,) = Channel(store, "canary").releases()
    assert whole(store, release)


def test_exports_go_with_their_run(store):
    for number in range(1, 5):
        night(store, number)
        store.put(f"exports/parquet/d{number}-production/a.parquet", b"x" * 1000)
    store.put("exports/notes.txt", b"not ours")
    store.now += DAY
    assert gc(store).size > 2000
    assert [info.key for info in store.list("exports/")] == [
        "exports/notes.txt",
        "exports/parquet/d3-production/a.parquet",
        "exports/parquet/d4-production/a.parquet",
    ]


def test_run_being_removed_cannot_be_relied_on(store):
    night(store, *range(1, 5))
    write_run(store, "tried")
    channel = Channel(store, "production")
    for run, action in {
        "tried": lambda: channel.publish(candidate(store, "tried", "d5"), planned_on=4),
        "d1-production": lambda: channel.rollback(to=1),
        "d2-production": lambda: pin(channel, 2),
    }.items():
        assert condemn(store, run).remove(Dates(math.inf))
        with pytest.raises(ConflictError, match=f"runs/{run}: is being removed"):
            action()
    store.now += DAY
    gc(store)
    assert runs(store) == ["d3-production", "d4-production"]


def test_held_run_that_was_condemned_stays(store):
    for run in ("before", "after"):
        write_run(store, run)
    store.now += DAY
    after = condemn(store, "after")
    hold(store, "after")  # sees the tombstone
    hold(store, "before")
    before = condemn(store, "before")  # the collector sees this hold
    assert not before.remove(Dates(store.now - GRACE))
    assert not after.remove(Dates(store.now - GRACE))
    gc(store)
    assert runs(store) == ["after", "before"]
    store.now += DAY
    gc(store)
    assert runs(store) == []


@pytest.mark.parametrize("action", ["rollback", "pin", "publish"])
def test_task_during_collection_agrees_with_it(tmp_path, swift_disk, action):
    """Rely on an old run during its collection, after each operation once."""
    first = TurnedStore(tmp_path / "first")
    night(first, *range(1, 4))
    fields = candidate(first, "d1-production", "d4")
    moment, outcomes = 0, set()
    while True:
        store = first.copy_to(tmp_path / str(moment))
        channel, outcome = Channel(store, "production"), []

        def come(channel=channel, outcome=outcome):
            try:
                match action:
                    case "rollback":
                        channel.rollback(to=1)
                    case "pin":
                        pin(channel, 1)
                    case "publish":
                        Channel(channel.store, "canary").publish(fields, planned_on=None)
                outcome.append("relies")
            except (ConflictError, InputError, NotFoundError):
                outcome.append("is refused")

        store.interrupt(moment, come)
        gc(store)
        if not store.calm():
            break
        moment, outcomes = moment + 1, outcomes | set(outcome)
        channels = [Channel(store, name) for name in all_channel_names(store)]
        assert all(whole(store, release) for channel in channels for release in channel.releases())
        assert outcome == ["is refused"] or "runs/d1-production/release/model.v1.h5" in {i.key for i in store.list()}
    assert outcomes == {"relies", "is refused"}


def test_damaged_document_stops_collection_before_any_removal(store):
    night(store, *range(1, 5))
    write_run(store, "young")
    store.put("runs/young/spec.json", b"[")
    before = [info.key for info in store.list()]
    with pytest.raises(FormatError, match=r"runs/young/spec.json: not a run spec"):
        gc(store)
    assert [info.key for info in store.list()] == before


def test_tombstones_go_after_the_grace(store):
    write_run(store, "tried")
    store.now += DAY
    gc(store)
    with pytest.raises(ConflictError, match=r"plan its snapshot again once gc/tried\.json is gone"):
        hold(store, "tried")
    store.now += DAY
    gc(store)
    assert list(store.list()) == []
    hold(store, "tried")


def test_file_with_two_keys_is_counted_once(tmp_path):
    store, unaged = LocalStore(tmp_path), {"dry_run": True, "trust_clock": True, "grace": -GRACE}
    write_run(store, "d1")
    before = gc(store, **unaged).size
    store.put_new("runs/d1/checkpoint/large.h5", bytes(1000))
    store.copy("runs/d1/checkpoint/large.h5", "runs/d1/release/large.h5")
    store.put_new("runs/d1/release/other.h5", bytes(1000))
    assert gc(store, **unaged).size == before + 2000
