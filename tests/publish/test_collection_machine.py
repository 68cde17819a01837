"""Collections never remove an object that is needed.

Runs are published, rolled back, pinned and collected in any order. Each action may be interrupted anywhere, and happen
in the middle of another. A pure-Python model knows after every step which objects must exist; after a collection
without interruption also that there are no others.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
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
from pbg_tasks.publish.gc_holds import hold, hold_key
from pbg_tasks.publish.retention import Retention, pin, pins, unpin
from tests.publish.runs import candidate, whole, write_run
from tests.publish.turned_store import TurnedStore

GRACE = 100.0
EXAMPLES = int(os.environ.get("PBG_GC_EXAMPLES", "12"))
GONE = (ConflictError, InputError, NotFoundError)
"""The errors of a task that asks for a run that has been removed, or is being removed."""


class Killed(BaseException):
    """The process died."""


@dataclass
class Run:
    """The model's knowledge of a run.

    ``used`` is when it was last written or held.
    """

    name: str
    snapshot: str
    previous: str | None
    planned_on: int | None
    keys: set[str]
    used: float
    fields: dict


def is_hold(key):
    return key == hold_key(key.split("/")[1])


class Collections(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.store = TurnedStore(self.root)
        self.channel = Channel(self.store, "production")
        self.runs: dict[str, Run] = {}
        self.releases: dict[int, tuple[Run, int | None]] = {}  # by number: run, previous number
        self.current: int | None = None
        self.pinned: set[int] = set()
        self.count = 0

    def teardown(self):
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    # Actions of users; each may happen in the middle of a collection.

    def plan(self, day):
        self.count += 1
        name, snapshot = f"r{self.count}", f"d{day}"
        before = self.channel.before(snapshot)
        if before is not None:
            self.hold(before.run)
        keys = write_run(self.store, name, previous=before.run if before else None)
        run = Run(name, snapshot, before and before.run, before and before.seq, keys, self.store.now, {})
        run.fields = candidate(self.store, name, snapshot)
        self.runs[name] = run

    def hold(self, name):
        hold(self.store, name)
        self.runs[name].used = self.store.now

    def publish(self, run):
        alive = self.alive(run)
        left = self.releases[self.current][0] if self.current is not None else None
        try:
            release, points = self.channel.publish(run.fields, planned_on=run.planned_on, independent=True)
        except GONE:
            assert not alive
            return
        run.used = self.store.now
        if release.seq not in self.releases:
            self.releases[release.seq] = (run, release.previous)
        if points:
            if left is not None:
                left.used = self.store.now
            self.current = release.seq

    def roll_back(self, seq):
        if self.current is None:
            return
        left, target = self.releases[self.current][0], self.releases[seq][0]
        try:
            self.channel.rollback(to=seq)
        except GONE:
            assert seq not in self.listed()
            return
        if seq != self.current:
            left.used = target.used = self.store.now
        self.current = seq

    def pin(self, seq):
        try:
            pin(self.channel, seq)
        except GONE:
            assert seq not in self.listed()
            return
        self.pinned.add(seq)
        self.releases[seq][0].used = self.store.now

    # Rules

    @rule(day=st.integers(1, 5), publish=st.booleans())
    def a_night(self, day, publish):
        self.plan(day)
        if publish:
            self.publish(self.runs[f"r{self.count}"])

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def an_old_run_is_published(self, data):
        self.publish(self.pick(data, self.runs.values()))

    @precondition(lambda self: self.releases)
    @rule(data=st.data())
    def a_roll_back(self, data):
        self.roll_back(self.pick(data, self.releases))

    @precondition(lambda self: self.releases)
    @rule(data=st.data())
    def a_pin(self, data):
        self.pin(self.pick(data, self.releases))

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def an_unpin(self, data):
        seq = self.pick(data, sorted(self.pinned))
        unpin(self.channel, seq)
        self.pinned.discard(seq)

    @rule(graces=st.sampled_from([0.4, 1.1, 3.0]))
    def time_passes(self, graces):
        self.store.now += graces * GRACE

    @rule(keep=st.integers(0, 2))
    def a_collection(self, keep):
        listed = self.listed()
        self.collect(keep)
        stay = self.expected(listed, keep)
        assert self.listed() == stay
        now = self.store.now
        young = {run.name for run in self.runs.values() if now - run.used <= GRACE}
        continued = {self.runs[name].previous for name in young} - {None}
        assert self.there() == {self.releases[seq][0].name for seq in stay} | young | (continued & self.there())
        # Publishing a run that is gone leaves a hold of it, which a later collection removes.
        alone = [info for info in self.store.list("runs/") if info.key.split("/")[1] not in self.there()]
        assert all(now - info.modified <= GRACE for info in alone)

    @rule(keep=st.integers(0, 2), after=st.integers(0, 60))
    def a_collection_that_is_killed(self, keep, after):
        self.store.interrupt(after, self.die)
        with suppress(Killed):
            self.collect(keep)
        self.store.calm()

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), keep=st.integers(0, 2), after=st.integers(0, 60))
    def something_happens_during_a_collection(self, data, keep, after):
        run = self.pick(data, self.runs.values())
        actions = [lambda: self.plan(3), lambda: self.publish(run)]
        if self.releases:
            seq = self.pick(data, self.releases)
            actions += [lambda: self.roll_back(seq), lambda: self.pin(seq)]
        self.store.interrupt(after, data.draw(st.sampled_from(actions)))
        self.collect(keep)
        self.store.calm()

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), keep=st.integers(0, 2), after=st.integers(0, 12))
    def a_collection_happens_during_something(self, data, keep, after):
        self.store.interrupt(after, lambda: self.collect(keep))
        self.publish(self.pick(data, self.runs.values()))
        self.store.calm()

    def collect(self, keep):
        return collect(self.store, Retention(releases=keep), grace=GRACE)

    def die(self):
        raise Killed

    @staticmethod
    def pick(data, choices):
        return data.draw(st.sampled_from(list(choices)))

    # The model

    def listed(self):
        return {release.seq for release in self.channel.releases()}

    def there(self):
        return {info.key.split("/")[1] for info in self.store.list("runs/") if not is_hold(info.key)}

    def alive(self, run):
        """Return whether a run must still exist.

        It does where it is in use, or belongs to a release that readers may come to.
        """
        sure = {self.current, *self.pinned}
        return self.store.now - run.used <= GRACE or any(
            seq in sure for seq, (made_of, _) in self.releases.items() if made_of is run
        )

    def day(self, seq):
        return self.releases[seq][0].snapshot

    def expected(self, listed, keep):
        """Return the numbers that a collection leaves, of those listed."""
        newest = sorted(listed, key=lambda seq: (self.day(seq), seq), reverse=True)
        days = list(dict.fromkeys(map(self.day, newest)))
        stay = {seq for seq in newest if self.day(seq) in days[:keep]} if len(days) > 1 else {*newest[:keep]}
        stay |= (self.pinned & listed) | {*sorted(listed)[-1:]}
        at, line = self.current, []
        while at in listed:
            line.append(at)
            if self.day(at) != self.day(self.current):
                break
            before, day = self.releases[at][1], self.day(at)
            if (
                before not in listed or self.day(before) > day
            ):  # then a roll-back goes to the newest release of an earlier day
                before = next((seq for seq in newest if self.day(seq) < day), None)
            at = before
        stay |= set(line if at in listed else line[:2])  # a redo of the earliest day goes back to none
        runs = {self.releases[seq][0].name for seq in stay}
        now = self.store.now
        runs |= {run.name for run in self.runs.values() if now - run.used <= GRACE}
        runs |= {run.previous for run in self.runs.values() if now - run.used <= GRACE}
        return {seq for seq in listed if self.releases[seq][0].name in runs}

    @invariant()
    def the_channel_opens(self):
        if not hasattr(self, "store"):
            return
        release = self.channel.current().release
        assert (release.seq if release else None) == self.current
        assert release is None or whole(self.store, release)

    @invariant()
    def every_release_that_is_listed_is_whole(self):
        if hasattr(self, "store"):
            assert all(whole(self.store, release) for release in self.channel.releases())

    @invariant()
    def pinned_releases_stay(self):
        if hasattr(self, "store"):
            assert pins(self.channel) == self.pinned
            assert self.pinned <= self.listed()

    @invariant()
    def runs_in_use_are_whole(self):
        if hasattr(self, "store"):
            there = {info.key for info in self.store.list("runs/")}
            for run in self.runs.values():
                assert not self.alive(run) or run.keys <= there, run.name


@pytest.mark.usefixtures("swift_disk")
def test_collections_never_remove_needed_objects():
    run_state_machine_as_test(
        Collections,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
