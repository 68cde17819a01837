"""Promotions, shares, pins and collections in any order keep readers whole.

Each action may be killed anywhere, or happen in the middle of another one. After every step each reader finds all files
of its release, in the space that it had.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pbg_tasks.errors import ConflictError, IncompatibleError, InputError, NotFoundError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.collection import collect
from pbg_tasks.publish.promotion import Move, release_for, stop_share
from pbg_tasks.publish.retention import Retention
from pbg_tasks.publish.service_pins import pin_service, service_pins, unpin_service
from tests.publish.runs import candidate, whole, write_run
from tests.publish.turned_store import TurnedStore

GRACE = 100.0
EXAMPLES = int(os.environ.get("PBG_GC_EXAMPLES", "8"))
KEYS = [f"user-{number}" for number in range(6)]
REFUSED = (ConflictError, IncompatibleError, InputError, NotFoundError)
ACTIONS = ("night", "promote", "share", "stop", "roll back", "roll back nights", "pin", "unpin", "collect")


class Killed(BaseException):
    """The process died."""


class Promotions(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.store = TurnedStore(self.root)
        self.nights, self.readers = Channel(self.store, "shadow"), Channel(self.store, "production")
        self.count = 0
        for _ in range(2):
            self.night(1)
        self.promote(1)

    def teardown(self):
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    def night(self, number):
        self.count += 1
        run, there = f"r{self.count}", self.nights.current().release
        write_run(self.store, run, channel="shadow", space="other" if number == 4 else "s")
        fields = candidate(self.store, run, f"d{self.count}")
        self.nights.publish(fields, planned_on=there.seq if there else None, independent=True)

    def promote(self, number):
        Move.of(self.nights, self.readers, number or None, by="mia").promote()

    def share(self, number):
        Move.of(self.nights, self.readers, number or None, by="mia").share(0.5)

    def act(self, action, number):
        acts = {
            "night": self.night,
            "promote": self.promote,
            "share": self.share,
            "stop": lambda _: stop_share(self.readers),
            "roll back": lambda _: self.readers.rollback(),
            "roll back nights": lambda _: self.nights.rollback(),
            "pin": lambda number: pin_service(self.readers, "ads", number or 1, owner="mia"),
            "unpin": lambda _: unpin_service(self.readers, "ads"),
            "collect": lambda number: collect(self.store, Retention(releases=number % 3), grace=GRACE),
        }
        with suppress(*REFUSED):
            acts[action](number)

    @rule(action=st.sampled_from(ACTIONS), number=st.integers(0, 6))
    def one_action(self, action, number):
        self.act(action, number)

    @rule(action=st.sampled_from(ACTIONS), number=st.integers(0, 6), after=st.integers(1, 40))
    def killed_action(self, action, number, after):
        def die():
            raise Killed

        self.store.interrupt(after, die)
        with suppress(Killed):
            self.act(action, number)
        self.store.calm()

    @rule(
        first=st.sampled_from(ACTIONS),
        second=st.sampled_from(ACTIONS),
        number=st.integers(0, 6),
        after=st.integers(1, 40),
    )
    def action_within_another(self, first, second, number, after):
        self.store.interrupt(after, lambda: self.act(second, 0))
        self.act(first, number)
        self.store.calm()

    @rule(graces=st.sampled_from([0.4, 1.1, 3.0]))
    def time_passes(self, graces):
        self.store.now += graces * GRACE

    @invariant()
    def readers_find_their_releases_whole(self):
        if not hasattr(self, "store"):
            return
        pointer = self.readers.current()
        read = {None: pointer.release} | {key: release_for(self.readers, key) for key in KEYS}
        assert all(whole(self.store, release) for release in read.values())
        assert {release.run for key, release in read.items()} <= {
            each.run for each in (pointer.release, self.readers.canary_release(pointer)) if each is not None
        }
        for pin in service_pins(self.readers):
            assert whole(self.store, self.readers.release(pin.seq))
        assert whole(self.store, self.nights.current().release)


@pytest.mark.usefixtures("swift_disk")
def test_readers_stay_whole_in_any_order():
    run_state_machine_as_test(
        Promotions,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
