"""Promotion between channels, shares of keys, and pins of services."""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from pbg_tasks.errors import ConfigError, ConflictError, FormatError, IncompatibleError, InputError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.collection import collect
from pbg_tasks.publish.gc_holds import condemn
from pbg_tasks.publish.promotion import Move, draws, release_for, stop_share
from pbg_tasks.publish.retention import Retention
from pbg_tasks.publish.service_pins import pin_of, pin_service, service_pins, unpin_service
from pbg_tasks.storage import LocalStore
from tests.publish.runs import candidate, whole, write_run
from tests.publish.turned_store import TurnedStore
from tests.rotation import of_today

pytestmark = pytest.mark.usefixtures("swift_disk")

KEYS = [f"user-{number}" for number in range(400)]
LAST = 36
"""Number of operations of a store at which an action is interrupted at the latest; most have fewer."""


class Killed(BaseException):
    """The process died."""


def night(store, number, *, space="s", channel="shadow"):
    nights = Channel(store, channel)
    there = nights.current().release
    write_run(store, f"r{number}", channel=channel, space=space)
    fields = candidate(store, f"r{number}", f"d{number}")
    return nights.publish(fields, planned_on=there.seq if there else None)[0]


@pytest.fixture
def store(tmp_path):
    """Three nights in ``shadow``, the first of which is in production."""
    store = TurnedStore(tmp_path / "store")
    for number in (1, 2, 3):
        night(store, number)
    move(store, 1).promote()
    return store


def move(store, seq=None, **options):
    return Move.of(Channel(store, "shadow"), Channel(store, "production"), seq, **{"by": "mia", **options})


def served(store):
    return Channel(store, "production").current()


def readers(store, keys=KEYS):
    return {key: release_for(Channel(store, "production"), key).run for key in keys}


def objects(store):
    return {info.key: store.get(info.key).data for info in store.list("channels/")}


def test_promotion_twice_is_one_and_rollback_undoes_it(store):
    promoted = move(store).promote()
    assert (promoted.channel, promoted.seq, promoted.run, promoted.previous) == ("production", 2, "r3", 1)
    assert (promoted.promoted.channel, promoted.promoted.seq, promoted.promoted.by) == ("shadow", 3, "mia")
    pointer = served(store)
    assert (pointer.release, pointer.by) == (promoted, "mia")
    assert abs(pointer.at - datetime.now(UTC)) < timedelta(minutes=5)
    before = objects(store)
    assert move(store, by="noah").promote() == promoted
    assert objects(store) == before
    assert Channel(store, "production").rollback(by="noah")[1].run == "r1"
    assert (served(store).by, served(store).rolled_back) == ("noah", True)
    for again in (lambda: move(store).promote(), lambda: move(store).share(0.1)):
        with pytest.raises(ConflictError, match=r"was rolled back from this release.*`pbg rollback SPEC 2 --channel"):
            again()
    assert served(store).release.run == "r1"
    assert move(store, 2).promote().run == "r2"  # another release is no repetition


def test_share_of_keys_is_stable_and_grows(store):
    assert set(readers(store).values()) == {"r1"}
    move(store).share(0.1)
    few = {key for key, run in readers(store).items() if run == "r3"}
    assert 20 < len(few) < 60
    before = objects(store)
    move(store, by="noah").share(0.1)
    assert objects(store) == before
    move(store).share(0.5)
    more = {key for key, run in readers(store).items() if run == "r3"}
    assert few < more
    assert release_for(Channel(store, "production"), None).run == "r1"
    ended = stop_share(Channel(store, "production"))
    assert (ended.share, ended.by, served(store).canary) == (0.5, "mia", None)
    assert stop_share(Channel(store, "production")) is None
    assert set(readers(store).values()) == {"r1"}


def test_key_is_within_documented_share():
    # printf 'production\0user-17' | sha256sum begins with dbe256ca9bbd0c7f, of 2**64 this is 0.85892
    assert [draws("production", "user-17", share) for share in (0.8589, 0.8590)] == [False, True]


def test_every_move_of_channel_ends_the_share(store):
    move(store, 2).share(0.5)
    move(store).promote()
    assert set(readers(store).values()) == {"r3"}
    night(store, 4)
    move(store).share(0.5)
    Channel(store, "production").rollback()
    assert set(readers(store).values()) == {"r1"}
    assert served(store).canary is None


def test_release_of_other_space_is_refused_unless_allowed(store):
    night(store, 4, space="other")
    for refused in (lambda: move(store).promote(), lambda: move(store).share(0.1)):
        with pytest.raises(
            IncompatibleError, match=r"release 4 of channel 'shadow' is in another vector space \(other\)"
        ):
            refused()
    assert (served(store).release.run, len(Channel(store, "production").numbers())) == ("r1", 1)
    move(store, other_space=True).share(0.1)
    assert move(store, other_space=True).promote().run == "r4"


def test_release_gone_damaged_or_older_is_refused(store):
    move(store, 2).promote()
    with pytest.raises(ConflictError, match="serves snapshot d2, which is newer than d1 of release 1 of 'shadow'"):
        move(store, 1).promote()
    with pytest.raises(InputError, match="has no release 9"):
        move(store, 9)
    with pytest.raises(ConfigError, match="cannot take over a release of its own"):
        Move.of(Channel(store, "shadow"), Channel(store, "shadow"), None, by="mia")
    empty = Channel(store, "empty")
    with pytest.raises(InputError, match=r"'empty' of .* has no release yet; a night makes one"):
        Move.of(empty, Channel(store, "production"), None, by="mia")
    with pytest.raises(InputError, match="'empty' has no release yet, so there is nothing to share"):
        Move.of(Channel(store, "shadow"), empty, None, by="mia").share(0.1)
    with pytest.raises(InputError, match="serves this release to all readers"):
        move(store, 2).share(0.1)
    store.delete("runs/r3/release/model.v1.h5")
    with pytest.raises(FormatError, match=r"r3/release/model\.v1\.h5: missing"):
        move(store)
    assert served(store).release.run == "r2"


def test_other_graphs_channel_is_refused(store):
    write_run(store, "foreign", channel="other")
    Channel(store, "other").publish({**candidate(store, "foreign", "d0"), "graph": "h"}, planned_on=None)
    for take in (Move.promote, lambda move: move.share(0.1)):
        with pytest.raises(ConfigError, match="serves graph 'h', not 'g'"):
            take(Move.of(Channel(store, "shadow"), Channel(store, "other"), None, by="mia"))


ACTIONS = {
    "promote": lambda store: move(store).promote(),
    "share": lambda store: move(store).share(0.3),
    "stop": lambda store: stop_share(Channel(store, "production")),
    "roll back": lambda store: Channel(store, "production").rollback(),
    "pin": lambda store: pin_service(Channel(store, "production"), "ads", 1, owner="mia"),
}


def outcome(store):
    """Return the state that readers see."""
    pointer = served(store)
    canary = pointer.canary and (pointer.canary.seq, pointer.canary.share)
    pins = [(pin.service, pin.seq) for pin in service_pins(Channel(store, "production"))]
    return pointer.release.run, canary, pins


def prepared(store, action):
    if action == "stop":
        move(store).share(0.3)
    if action == "roll back":
        move(store, 2).promote()


@pytest.mark.parametrize("action", ACTIONS)
def test_killed_action_is_done_or_undone(store, tmp_path, action):
    """Readers see one of two states, and a second try ends it."""
    prepared(store, action)
    whole_way = store.copy_to(tmp_path / "whole")
    before = outcome(store)
    ACTIONS[action](whole_way)
    after = outcome(whole_way)
    assert before != after
    for step in of_today(range(1, LAST), 3):
        killed = store.copy_to(tmp_path / f"killed{step}")

        def die():
            raise Killed

        killed.interrupt(step, die)
        try:
            ACTIONS[action](killed)
        except Killed:
            assert outcome(killed) in (before, after)
            if outcome(killed) != after:  # a roll-back that was done would go back once more
                ACTIONS[action](killed)
            assert outcome(killed) == after
        shutil.rmtree(killed.url)


@pytest.mark.parametrize("second", ["promote", "share", "stop", "roll back"])
@pytest.mark.parametrize("first", ["promote", "share"])
def test_two_at_once_leave_one_order(store, tmp_path, first, second):
    """The result is that of one order, or one of them lost."""
    move(store, 2).promote()
    ACTIONS["share"](store)
    night(store, 4)
    orders = set()
    for number, order in enumerate(((first, second), (second, first))):
        copy = store.copy_to(tmp_path / f"order{number}")
        for action in order:
            with suppress(ConflictError, InputError):
                ACTIONS[action](copy)
            orders.add(outcome(copy)[:2])
    happened = 0
    for step in of_today(range(1, LAST), 6):
        copy = store.copy_to(tmp_path / f"step{step}")
        copy.interrupt(step, lambda copy=copy: ACTIONS[second](copy))
        with suppress(ConflictError, InputError):
            ACTIONS[first](copy)
        happened += copy.calm()
        assert outcome(copy)[:2] in orders
        shutil.rmtree(copy.url)
    assert happened


@pytest.mark.parametrize("clock", [True, False], ids=["clock", "directory"])
def test_collections_keep_what_shares_and_pins_name(store, clock):
    """Ages are counted by the store's clock or without one."""
    nights = Channel(store, "shadow")
    for number in (4, 5, 6, 7):
        night(store, number)
    move(store, 3).share(0.1)
    pin_service(nights, "ads", 4, owner="mia", until=date(2999, 1, 1))
    pin_service(nights, "old", 2, owner="mia", until=date(2999, 1, 1))
    key = "channels/shadow/pins/for-old.json"
    store.put(key, store.get(key).data.replace(b"2999", b"2001"))
    assert pin_of(nights, "old").is_expired()
    store.now += 1000.0
    place = store if clock else LocalStore(Path(store.url))
    assert collect(place, Retention(), grace=0.0).runs == ["r5"]  # shadow serves r7, a roll-back goes to r6
    assert all(whole(place, release) for release in Channel(place, "shadow").releases())
    assert set(readers(place, KEYS[:50]).values()) == {"r1", "r3"}
    stop_share(Channel(place, "production"))
    for service in ("ads", "old"):
        unpin_service(Channel(place, "shadow"), service)
    if clock:
        assert collect(place, Retention(), grace=100.0).runs == []  # readers have the grace to finish
        store.now += 1000.0
    assert {"r2", "r3", "r4"} <= {*collect(place, Retention(), grace=0.0).runs}


def test_release_that_a_pin_left_has_the_grace(store):
    nights = Channel(store, "shadow")
    for number in (4, 5, 6):
        night(store, number)
    pin_service(nights, "ads", 2, owner="mia")
    pin_service(nights, "search", 3, owner="mia")
    store.now += 1000.0
    pin_service(nights, "ads", 4, owner="mia")
    unpin_service(nights, "search")
    assert collect(store, Retention(), grace=100.0).runs == []
    store.now += 1000.0
    assert collect(store, Retention(), grace=100.0).runs == ["r2", "r3"]
    store.put("channels/shadow/pins/for-ads.json", b"cut")
    unpin_service(nights, "ads")
    assert pin_of(nights, "ads") is None


def test_rollback_to_what_is_served_ends_share(store):
    move(store).share(0.5)
    there = served(store).release
    assert Channel(store, "production").rollback(to=1, by="noah") == (there, there)
    assert set(readers(store).values()) == {"r1"}
    assert (served(store).stopped.seq, served(store).stopped.by) == (3, "noah")


def test_canary_being_removed_does_not_stop_rollback(store):
    move(store, 2).promote()
    move(store).share(0.5)
    assert condemn(store, "r3").move("removing")
    assert Channel(store, "production").rollback()[1].run == "r1"


def test_collection_of_named_channels_covers_both(store):
    for number in (4, 5):
        night(store, number)
        move(store).promote()
    store.now += 1000.0
    assert collect(store, Retention(), grace=0.0, channel="shadow").runs == ["r2", "r3"]
    assert [release.run for release in Channel(store, "production").releases()] == ["r1", "r4", "r5"]
    assert collect(store, Retention(), grace=0.0, channel=["shadow", "production"]).runs == ["r1"]


def test_damaged_canary_does_not_hold_up_rollback(store):
    move(store, 2).promote()
    move(store).share(0.5)
    key = Channel(store, "shadow").release_key(3)
    store.put(key, store.get(key).data + b" ")
    assert Channel(store, "production").rollback()[1].run == "r1"
    assert set(readers(store).values()) == {"r1"}


def test_pin_of_service_is_replaced_and_removed(store):
    channel = Channel(store, "production")
    move(store).promote()
    first = pin_service(channel, "ads", 1, owner="mia", until=date(2999, 1, 1))
    assert (first.run, first.is_expired()) == ("r1", False)
    assert pin_service(channel, "ads", 1, owner="mia", until=date(2999, 1, 1)) == first
    pin_service(channel, "ads", 2, owner="noah")
    pin_service(channel, "search", 1, owner="mia")
    assert [(pin.service, pin.seq, pin.owner) for pin in service_pins(channel)] == [
        ("ads", 2, "noah"),
        ("search", 1, "mia"),
    ]
    for _ in range(2):
        unpin_service(channel, "ads")
        assert pin_of(channel, "ads") is None
    with pytest.raises(InputError, match="has no release 9"):
        pin_service(channel, "ads", 9, owner="mia")
    with pytest.raises(ConfigError, match="--until 2001-01-01: this day is over"):
        pin_service(channel, "ads", 1, owner="mia", until=date(2001, 1, 1))
    with pytest.raises(ConfigError, match=r"service '\.\./x': a name has up to 64 letters"):
        pin_service(channel, "../x", 1, owner="mia")


def test_service_pinned_twice_at_once_has_one_pin(store):
    channel = Channel(store, "production")
    lost = set(range(1, 12))
    for step in range(1, 12):
        unpin_service(channel, "ads")
        store.interrupt(step, lambda: pin_service(channel, "ads", 1, owner="noah"))
        with suppress(ConflictError):
            pin_service(channel, "ads", 1, owner="mia")
            lost.discard(step)
        store.calm()
        assert pin_of(channel, "ads").owner == ("noah" if step in lost else "mia")
    assert lost
