"""Publications that others overtake between record and swap."""

from __future__ import annotations

import pytest

from pbg_tasks.errors import ConflictError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.descent import descent, rolled_back_from
from pbg_tasks.publish.promotion import Move
from pbg_tasks.storage import open_store
from tests.publish.runs import candidate, write_run


class Killed(BaseException):
    """The process died."""


@pytest.fixture
def store(tmp_path):
    """Two days are released."""
    store = open_store(str(tmp_path))
    for day in (1, 2):
        publish(Channel(store, "production"), day)
    return store


def publish(channel, day, run=None):
    run = run or f"r{day}"
    if channel.store.head(f"runs/{run}/spec.json") is None:
        write_run(channel.store, run)
    return channel.publish(candidate(channel.store, run, f"d{day}"), planned_on=None, independent=True)[0]


def before_swap(monkeypatch, channel, act):
    """Let something happen before the channel object's next swap."""
    swap = channel._point

    def late(*args, **how):
        monkeypatch.setattr(channel, "_point", swap)
        act()
        return swap(*args, **how)

    monkeypatch.setattr(channel, "_point", late)


def die():
    raise Killed


def left(channel):
    return rolled_back_from(list(channel.releases()), channel.current())


def voids(channel):
    ways = descent(channel, list(channel.releases()), channel.current())
    return {number: way["void"] for number, way in ways.items()}


def test_lost_swap_leaves_what_is_served_before(store, monkeypatch):
    slow, other = Channel(store, "production"), Channel(store, "production")
    before_swap(monkeypatch, slow, lambda: publish(other, 3))
    release = publish(slow, 4)
    assert (release.seq, release.previous, slow.current().release) == (5, 4, release)
    publish(other, 5)
    assert left(other) == set()
    assert voids(other) == {1: None, 2: None, 3: "published as 5", 4: None, 5: None, 6: None}
    assert [other.rollback()[1].run for _ in range(4)] == ["r4", "r3", "r2", "r1"]


def test_night_that_comes_late_meanwhile_was_not_left(store, monkeypatch):
    slow, other = Channel(store, "production"), Channel(store, "production")
    before_swap(monkeypatch, slow, lambda: publish(other, 4))
    late = publish(slow, 3)
    assert (late.seq, late.previous, slow.current().release.run) == (5, 4, "r4")
    publish(other, 5)
    assert (publish(slow, 3), publish(slow, 4).seq) == (late, 4)  # tasks that were killed are tried again
    assert left(other) == set()
    assert voids(other) == {1: None, 2: None, 3: "published as 5", 4: None, 5: None, 6: None}


@pytest.mark.parametrize("day", [3, 4])
def test_killed_publication_knows_what_came_between(store, monkeypatch, day):
    """Another run of its day is published meanwhile, or an earlier day."""
    channel, other = Channel(store, "production"), Channel(store, "production")
    before_swap(monkeypatch, channel, die)
    with pytest.raises(Killed):
        publish(channel, 4)
    publish(other, day, "between")
    assert (publish(channel, 4).previous, left(other)) == (4, set())
    assert voids(other)[3] == "published as 5"
    assert other.rollback()[1].run == "between"


def test_publication_over_rollback_returns_to_its_target(store, monkeypatch):
    channel, other = Channel(store, "production"), Channel(store, "production")
    before_swap(monkeypatch, channel, lambda: other.rollback(to=1))
    assert publish(channel, 3).previous == 1
    assert left(other) == {2}
    assert other.rollback()[1].run == "r1"


def test_promotion_over_rollback_returns_to_its_target(store, monkeypatch):
    nights, readers = Channel(store, "production"), Channel(store, "readers")
    for number in (1, 2):
        Move.of(nights, readers, number, by="mia", other_space=True).promote()
    publish(nights, 3)
    before_swap(monkeypatch, readers, lambda: Channel(store, "readers").rollback())
    promoted = Move.of(nights, readers, None, by="mia", other_space=True).promote()
    assert (promoted.previous, promoted.promoted.seq, left(readers)) == (1, 3, {2})


def test_late_night_is_recorded_once(store):
    channel = Channel(store, "production")
    publish(channel, 4)
    late = publish(channel, 3)
    publish(channel, 5)
    assert publish(channel, 3) == late
    assert (channel.numbers(), left(channel)) == ([1, 2, 3, 4, 5], set())


def test_left_release_comes_not_back_as_late(store):
    """Its killed task is tried again after the next night."""
    channel = Channel(store, "production")
    bad = publish(channel, 3)
    channel.rollback()
    publish(channel, 4)
    assert publish(channel, 3) == bad
    assert (left(channel), channel.before("d4").run) == ({3}, "r2")


def test_run_of_redone_day_is_served_anew(store):
    """Its task was killed before it stored its result."""
    channel = Channel(store, "production")
    publish(channel, 2, "redo")
    again = publish(channel, 2)
    assert (again.seq, again.previous, channel.current().release) == (4, 3, again)
    assert (left(channel), channel.rollback()[1].run) == (set(), "redo")
    assert publish(channel, 2) == again  # was left, and stays so
    assert channel.current().release.run == "redo"


@pytest.mark.parametrize("left", ["rolled back", "redone"])
def test_run_from_left_release_replaces_no_redo(store, left):
    """One of two runs of a day began with it."""
    channel = Channel(store, "production")
    if left == "rolled back":
        channel.rollback(to=1)
    else:
        publish(channel, 2, "again")
    begins = channel.current().release.seq
    for run in ("stale", "r3", "again3"):
        write_run(store, run)
    served, _ = channel.publish(candidate(store, "r3", "d3"), planned_on=begins)
    with pytest.raises(ConflictError, match=rf"begins with release {begins} now, this run was planned on 2: plan"):
        channel.publish(candidate(store, "stale", "d3"), planned_on=2)
    assert channel.current().release == served
    redo, points = channel.publish(candidate(store, "again3", "d3"), planned_on=begins)
    assert (redo.previous, points) == (served.seq, True)


def test_late_night_was_not_left_by_roll_back(store):
    """Nor is it once later nights have come."""
    channel = Channel(store, "production")
    for day in (4, 3, 5):
        publish(channel, day)
    channel.rollback(to=3)
    assert left(channel) == {5}
    assert voids(channel) == {1: None, 2: None, 3: None, 4: None, 5: "rolled back"}
    publish(channel, 6)
    assert left(channel) == {5}


def test_roll_back_leaves_release_after_removed_one(store):
    """The collection may have removed the release before it."""
    channel = Channel(store, "production")
    for day in (3, 4):
        publish(channel, day)
    channel.rollback(to=2)
    stay = [release for release in channel.releases() if release.seq != 3]
    assert rolled_back_from(stay, channel.current()) == {4}
