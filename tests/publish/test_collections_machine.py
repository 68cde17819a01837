"""Two collections beside tasks that rely on runs, interleaved at store calls.

``test_collection_machine`` compares what one collection leaves with a model. Here up to two collections, which may have
begun at different times, and up to two tasks are each paused before each call to the store, and hypothesis draws which
of them makes the next. The store's tags are hashes of bytes, as those of S3 are.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pbg_tasks.errors import ConflictError, InputError, NotFoundError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.collection import collect
from pbg_tasks.publish.gc_holds import hold
from pbg_tasks.publish.retention import Retention, pin, pins, unpin
from tests.publish.runs import candidate, whole, write_run
from tests.publish.stepper import HashTaggedStore, Over, Process, one_by_one

GRACE = 100.0
EXAMPLES = int(os.environ.get("PBG_GC_EXAMPLES", "12"))
REFUSED = (ConflictError, InputError, NotFoundError)
"""The errors of a task that asks for a run that has been removed, or is being removed."""
BEGIN = {"r1": None, "r2": None, "r3": "r2", "r4": "r3"}
"""The first runs, with the runs they continue; all but r1 are released, r4 is served."""

KINDS = ["publish", "hold", "plan", "rollback", "pin"]
"""Tasks that rely on a run."""
TASK = 2
"""Number of the task in a race; the others are collections."""


def decides(method, key):
    """Return whether a call writes a tombstone or touches a hold."""
    return key.endswith("held.json") or (method in {"put_new", "swap"} and key.startswith("gc/"))


@dataclass
class Actor:
    """A process with the model's knowledge of it.

    Attributes:
        process: that is stepped.
        kind: ``gc``, or the action of a task.
        began: when, by the store's clock.
        relies: the run that a task relies on, and those of its objects that must exist once it has ended well.
        claimed: when a collection last renewed a removal that is under way.
    """

    process: Process
    kind: str
    began: float
    relies: str | None = None
    keys: set[str] = field(default_factory=set)
    claimed: float | None = None


class Collections(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.store = HashTaggedStore(self.root)
        self.channel = Channel(self.store, "production")
        self.actors: list[Actor] = []
        self.used: dict[str, float] = {}
        self.keys: dict[str, set[str]] = {}
        self.fields: dict[str, dict] = {}
        for run, previous in BEGIN.items():
            self.keys[run] = write_run(self.store, run, previous=previous)
            self.fields[run] = candidate(self.store, run, f"d{run[1]}")
            if run != "r1":
                self.channel.publish(self.fields[run], planned_on=None, independent=True)
        self.store.now += 3 * GRACE

    def teardown(self):
        if not hasattr(self, "root"):
            return
        try:
            for actor in self.actors:
                actor.process.finish()
                self.settle(actor)
            self.nothing_is_lost()
            self.nothing_is_left()
        finally:
            for actor in self.actors:
                actor.process.kill()
            shutil.rmtree(self.root)

    # Beginning

    @precondition(lambda self: self.count("gc") < 2)
    @rule(keep=st.integers(0, 2), looks=st.booleans())
    def a_collection_begins(self, keep, looks):
        actor = self.start("gc", lambda store: collect(store, Retention(releases=keep), grace=GRACE))
        if looks:  # up to where it knows the reachable runs and begins to decide
            self.step_to(actor, lambda method, key: method != "list" and key.startswith("gc/"))

    @precondition(lambda self: len(self.actors) - self.count("gc") < 2)
    @rule(run=st.sampled_from(sorted(BEGIN)), kind=st.sampled_from(KINDS))
    def a_task_begins(self, run, kind):
        def plan(store):  # the same inputs again: a run of the same name
            hold(store, run)
            if store.head(f"runs/{run}/spec.json") is None:
                write_run(store, run, previous=BEGIN[run])

        def work(store):
            hold(store, run)
            if store.head(f"runs/{run}/spec.json") is None:
                raise InputError("the run is gone")

        seq = {release.run: release.seq for release in self.channel.releases()}.get(run, 9)
        works = {
            "publish": lambda store: Channel(store, "production").publish(
                self.fields[run], planned_on=None, independent=True
            ),
            "rollback": lambda store: Channel(store, "production").rollback(to=seq),
            "pin": lambda store: pin(Channel(store, "production"), seq),
            "plan": plan,
            "hold": work,
        }
        self.start(kind, works[kind], run, self.keys[run])

    def start(self, kind, work, run=None, keys=frozenset()):
        actor = Actor(Process(self.store, work), kind, self.store.now, run, set(keys))
        self.actors.append(actor)
        return actor

    def count(self, kind):
        return sum(actor.kind == kind for actor in self.actors)

    # Going on

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), to=st.sampled_from(["call", "hold", "tombstone", "end", "death"]))
    def one_goes_on(self, data, to):
        """Pause before the next call, after the next decision, or never.

        A decision is a look at a hold or the writing of a tombstone.
        """
        actor = data.draw(st.sampled_from(self.actors))
        if to == "death" and actor.kind == "gc":
            actor.process.kill()
        elif to == "hold":
            self.step_to(actor, lambda _, key: key.endswith("held.json"))
        elif to == "tombstone":
            self.step_to(actor, lambda method, key: method in {"put_new", "swap"} and key.startswith("gc/"))
        elif to == "end":
            self.step_to(actor, lambda *_: False)
        self.step(actor)
        self.settle(actor)

    @precondition(lambda self: not self.actors)
    @rule(
        run=st.sampled_from(["r1", "r2"]),
        kind=st.sampled_from(KINDS),
        turns=st.permutations([0, 0, 1, 1, 2, 2]) | st.lists(st.integers(0, 2), min_size=4, max_size=10),
        last=st.permutations(range(3)),
    )
    def a_race(self, run, kind, turns, last):
        """Run two collections and a task by turns, from decision to decision.

        The collections have looked already. The task holds its run with its first turn, and ends with its second.
        """
        self.store.now += 3 * GRACE
        for _ in range(2):
            self.a_collection_begins(keep=0, looks=True)
        self.a_task_begins(run, kind)
        racers = list(self.actors)
        for number, turn in enumerate(turns):
            is_held = turn == TASK and TASK in turns[:number]
            self.step_to(racers[turn], decides if not is_held else lambda *_: False)
            self.step(racers[turn])
        for turn in last:
            self.step_to(racers[turn], lambda *_: False)
            self.settle(racers[turn])

    @precondition(lambda self: pins(self.channel))
    @rule()
    def all_are_unpinned(self):
        for seq in pins(self.channel):
            unpin(self.channel, seq)

    def step_to(self, actor, is_it):
        while actor.process.coming is not None and not is_it(*actor.process.coming):
            self.step(actor)

    def step(self, actor):
        process = actor.process
        if process.coming is None:
            return
        method, key = process.coming
        if method == "swap" and key.startswith("gc/"):
            actor.claimed = self.store.now if b'"removing"' in process.data else None
        process.step()

    def settle(self, actor):
        """Record the end of a process, if it has ended."""
        if actor.process.coming is not None or actor not in self.actors:
            return
        self.actors.remove(actor)
        error = actor.process.error
        if error is not None and not isinstance(error, (Over, *REFUSED)):
            raise error
        if error is None and actor.relies is not None:
            self.used[actor.relies] = max(self.used.get(actor.relies, 0.0), actor.began)

    @rule(graces=st.sampled_from([0.4, 1.1, 3.0]))
    def time_passes(self, graces):
        """Advance the clock by some graces while no task is at work.

        A task or a batch of deletions takes less than the grace; a collection may take as long as it likes.
        """
        moments = [actor.claimed if actor.kind == "gc" else actor.began for actor in self.actors]
        until = self.store.now + graces * GRACE
        if all(moment is None or until < moment + GRACE for moment in moments):
            self.store.now = until

    # What must hold

    @invariant()
    def nothing_is_lost(self):
        if not hasattr(self, "store"):
            return
        releases = {release.seq: release for release in self.channel.releases()}
        assert all(whole(self.store, release) for release in releases.values())
        assert self.channel.current().release is not None
        begun = any(actor.kind == "pin" for actor in self.actors)
        assert begun or pins(self.channel) <= releases.keys()
        there = {info.key for info in self.store.list("runs/")}
        for run, moment in self.used.items():
            assert self.store.now - moment > GRACE or self.keys[run] <= there, run

    def nothing_is_left(self):
        """Run further collections and check that they remove what nothing reaches.

        Leftovers of earlier collections go with them.
        """
        for _ in range(2):
            self.store.now += 3 * GRACE
            collect(self.store, Retention(), grace=GRACE)
        assert {info.key.split("/")[1] for info in self.store.list("runs/")} == {
            release.run for release in self.channel.releases()
        }
        self.nothing_is_lost()
        assert not any(b'"remov' in self.store.get(info.key).data for info in self.store.list("gc/"))


@pytest.mark.usefixtures("swift_disk", "one_call_at_a_time")
def test_two_collections_remove_nothing_needed():
    run_state_machine_as_test(
        Collections,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.usefixtures("swift_disk", "one_call_at_a_time")
@pytest.mark.parametrize("kind", ["hold", "rollback"])
def test_race_in_any_order_loses_nothing(kind):
    """Try every order of two turns each in which a collection begins.

    The task ends before the collections.
    """
    orders = {order for order in permutations([0, 0, 1, 1, TASK, TASK]) if order[0] == 0}
    assert len(orders) == 30
    for order in sorted(orders):
        machine = Collections()
        machine.begin()
        try:
            machine.a_race("r2", kind, order, [TASK, 0, 1])
        finally:
            machine.teardown()


@pytest.fixture
def one_call_at_a_time(monkeypatch):
    for module in ("collection", "channel"):
        monkeypatch.setattr(f"pbg_tasks.publish.{module}.in_parallel", one_by_one)
