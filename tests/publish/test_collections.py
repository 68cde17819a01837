"""Two collections at once, and a run held between their looks.

The run stays. ``test_collections_machine`` draws the moments; here each is set.
"""

from __future__ import annotations

import json
import math
import time

import pytest

from pbg_tasks.errors import ConflictError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.collection import collect
from pbg_tasks.publish.gc_holds import condemn, hold, tombstone_key
from pbg_tasks.publish.looks import Dates
from pbg_tasks.publish.retention import Retention, pin
from pbg_tasks.storage import open_store
from tests.publish.nights import DAY, GRACE, gc, night
from tests.publish.runs import candidate, whole, write_run
from tests.publish.turned_store import TurnedStore

YOUNG = 1.0
"""Seconds of grace in stores whose clock cannot be turned."""


class Hooked:
    """A store with one event after its first matching call.

    The call is of one method for one key.
    """

    def __init__(self, store, method, key, happens):
        self._store, self._method, self._key, self._happens = store, method, key, happens

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name != self._method:
            return found

        def call(key, *arguments, **options):
            answer = found(key, *arguments, **options)
            if name == "list":
                answer = list(answer)
            if key == self._key and (happens := self._happens) is not None:
                self._happens = None
                happens()
            return answer

        return call


@pytest.fixture(params=["local", "dated", pytest.param("s3", marks=pytest.mark.s3)])
def place(request, tmp_path):
    return request.getfixturevalue("s3_bucket") if request.param == "s3" else str(tmp_path)


@pytest.fixture
def dated(request):
    """Return whether a directory's dates count as its clock."""
    return "dated" in request.node.name


def publish(store):
    Channel(store, "production").publish(candidate(store, "tried", "d4"), planned_on=3)


@pytest.mark.parametrize(
    ("run", "act"),
    [
        pytest.param("tried", publish, id="publish"),
        pytest.param("r1", lambda store: Channel(store, "production").rollback(to=1), id="rollback"),
        pytest.param("r1", lambda store: pin(Channel(store, "production"), 1), id="pin"),
        pytest.param("r1", lambda store: hold(store, "r1"), id="plan"),
    ],
)
def test_run_condemned_again_after_hold_stays(place, dated, run, act):
    store = open_store(place)
    channel = Channel(store, "production")
    for number in (1, 2, 3):
        write_run(store, f"r{number}")
        channel.publish(candidate(store, f"r{number}", f"d{number}"), planned_on=number - 1 or None)
    write_run(store, "tried")
    first = channel.release(1)
    collect(store, Retention(releases=3), grace=YOUNG)
    time.sleep(3 * YOUNG)
    happened = []

    def meanwhile():
        act(store)
        condemn(store, run)  # as by a collection that looked up the reachable runs before
        happened.append(act)

    collect(Hooked(store, "list", f"runs/{run}/", meanwhile), Retention(), grace=YOUNG, trust_clock=dated)
    assert happened
    assert whole(store, channel.current().release)
    assert run != "r1" or whole(store, first)


@pytest.fixture
def store(tmp_path):
    return TurnedStore(tmp_path)


def test_tombstones_written_twice_have_different_bytes(store):
    seen = set()
    for _ in range(5):
        condemn(store, "r1")
        seen.add(store.get(tombstone_key("r1")).data)
        hold(store, "r1")
        seen.add(store.get(tombstone_key("r1")).data)
    assert len(seen) == 10


@pytest.mark.parametrize("state", ["condemned", "rescued", "removing"])
def test_tombstones_of_earlier_versions_are_read(store, state):
    write_run(store, "tried")
    store.put(tombstone_key("tried"), json.dumps({"format": 1, "state": state}).encode())
    store.now += DAY
    assert gc(store).runs == ["tried"]
    assert not list(store.list("runs/"))


def test_hold_refused_leaves_nothing_behind(store):
    assert condemn(store, "tried").remove(Dates(math.inf))
    with pytest.raises(ConflictError, match="is being removed"):
        hold(store, "tried")
    assert [info.key for info in store.list()] == [tombstone_key("tried")]


def removal_taken_over(store, monkeypatch, meanwhile):
    """Let an event happen between the batches of a removal of ``tried``.

    It comes between the first and the second batch.
    """
    monkeypatch.setattr("pbg_tasks.publish.collection._BATCH", 1, raising=False)
    keys = write_run(store, "tried")
    store.now += DAY
    manifest = "runs/tried/release/manifest.json"
    gc(Hooked(store, "delete", manifest, meanwhile))
    return keys


def test_slow_removal_stops_at_run_planned_again(store, monkeypatch):
    def meanwhile():
        store.now += DAY
        assert gc(store).runs == ["tried"]
        hold(store, "tried")
        write_run(store, "tried")

    keys = removal_taken_over(store, monkeypatch, meanwhile)
    assert keys <= {info.key for info in store.list("runs/")}


def test_removal_leaves_run_to_other_collection(store, monkeypatch, capsys):
    told = []
    removal_taken_over(store, monkeypatch, lambda: told.append(gc(store).runs))
    assert told == [["tried"]]
    assert "run tried is left to another collection" in capsys.readouterr().err
    assert not list(store.list("runs/"))


def test_release_with_moved_rows_is_held_there(store):
    """Release a run whose documents name two runs.

    Documents of earlier versions name the run that trained, and a directory of another one.
    """
    channel = Channel(store, "production")
    night(store, 1)
    write_run(store, "moved")
    channel.publish(candidate(store, "moved", "d2") | {"run": "trained"}, planned_on=1)
    night(store, 3, 4, 5)
    channel.rollback(to=2)
    channel.rollback(to=5)
    assert "moved" not in gc(store, grace=GRACE).runs
    assert whole(store, channel.release(2))
