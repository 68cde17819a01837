"""Commits, releases, skips and collections of machines with a wrong clock.

A machine whose clock is an hour wrong does the same as one whose clock is right: order is decided by swaps, and ages
are taken from the store's clock.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict

import pytest

from pbg_tasks.checkpoint import claim, open_committed
from pbg_tasks.config import GraphSpec, RunSpec
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConflictError
from pbg_tasks.publish import Channel
from pbg_tasks.publish.collection import collect
from pbg_tasks.publish.gc_holds import hold
from pbg_tasks.publish.retention import Retention, pin
from pbg_tasks.publish.skips import skip_anew, skipped, when_skipped, why_skipped
from pbg_tasks.storage import LocalStore
from pbg_tasks.tasks.approval import under_way
from pbg_tasks.tasks.context import RunContext
from tests.checkpoint.samples import PREFIX, SPEC, commit
from tests.clocks import HOUR, clock_wrong_by
from tests.publish.runs import candidate, write_run
from tests.publish.turned_store import TurnedStore
from tests.tasks.conftest import MODEL

GRACE = 900.0
MINUTE = 60.0
NONCE = re.compile(rb'(?<="nonce":")[0-9a-f]+')
"""The part of a tombstone that differs by chance."""
NOW = time.time()
GRAPH = {"graph": "g", "store": "/nowhere", "snapshots": {"location": "/nowhere/{snapshot}.tsv"}, "model": MODEL}


class Nights:
    """A fixed sequence of actions of several machines on one graph.

    Args:
        root: of the store.
        clocks: error in seconds of each machine's clock; the store's own is right.

    Attributes:
        found: findings and decisions of the machines.
        left: the runs that each collection left.
    """

    def __init__(self, root, clocks):
        self.store = TurnedStore(root)
        self.store.now = NOW
        self.channel = Channel(self.store, "production")
        self.clocks = clocks
        self.found, self.left = [], []

    def on(self, machine):
        return clock_wrong_by(self.clocks.get(machine, 0.0))

    def attempt(self, action):
        with suppress(ConflictError):
            action()
            self.found.append("done")
            return
        self.found.append("refused")

    def train(self):
        """Let a writer commit, another take over, and the first wake up."""
        with ExitStack() as claims:
            with self.on("trainer"):
                hold(self.store, "r")
                old = claims.enter_context(claim(self.store, PREFIX, SPEC))
                commit(old, 1)
            with self.on("follower"):
                new = claims.enter_context(claim(self.store, PREFIX, SPEC, patience=0))
                self.attempt(lambda: commit(new, 2, b"the follower's"))
            with self.on("trainer"):
                self.attempt(lambda: commit(old, 2, b"the trainer's"))
            with self.on("follower"):
                self.attempt(lambda: commit(new, 3))
        self.found.append(open_committed(self.store, PREFIX)[0])

    def publish(self):
        """Publish nights by turns, among them one that was planned too early.

        After a roll-back a publish is tried again.
        """
        for number, machine in enumerate(("publisher", "follower", "publisher", "follower"), start=1):
            with self.on(machine):
                write_run(self.store, f"r{number}", previous=f"r{number - 1}" if number > 1 else None)
                self.publish_run(number, planned_on=number - 1 or None)
            self.store.now += 5 * MINUTE
        with self.on("publisher"):
            write_run(self.store, "r5", previous="r3")
            self.publish_run(5, planned_on=3)
        with self.on("follower"):
            self.found.append(self.channel.rollback())
        with self.on("publisher"):
            self.publish_run(4, planned_on=3)
            pin(self.channel, 1)
        pointer = self.channel.current()
        self.found.append([pointer.release, pointer.rolled_back, pointer.highest, *self.channel.releases()])

    def publish_run(self, number, *, planned_on):
        fields = candidate(self.store, f"r{number}", f"d{number}")
        self.attempt(lambda: self.found.append(self.channel.publish(fields, planned_on=planned_on)))

    def skip(self):
        """Plan, refuse, plan again and skip a night by hand."""
        spec = RunSpec(graph=parse(GraphSpec, GRAPH, source="spec"), snapshot="d6", files=())
        run = RunContext(self.store, spec.run_id, spec, spec.to_bytes())
        steps = [
            ("planner", lambda: (run.store_spec(), run.begin())),
            ("gate", lambda: run.refuse("half of it is missing")),
            ("planner", run.begin),
            ("operator", lambda: skip_anew(self.channel, "d6", None)),
        ]
        for machine, act in steps:
            with self.on(machine):
                act()
            with self.on("planner"):
                since = run.planned()
                self.found.append((run.refusal(), why_skipped(self.channel, "d6", since=since), skipped(self.channel)))
                self.found.append((since, when_skipped(self.channel, "d6")))
                self.found.append([night.run_id for night in under_way(self.store, lambda _: True)])
            self.store.now += MINUTE

    def collect(self):
        """Hold runs, give them up, and collect them after the grace."""
        for minutes, at_work in ((0, True), (10, True), (10, True), (10, True), (20, False)):
            self.store.now += minutes * MINUTE
            if at_work:
                with self.on("trainer"):
                    hold(self.store, "r")
            with self.on("collector"):
                self.found.append(asdict(collect(self.store, Retention(releases=1), grace=GRACE)))
            self.left.append({info.key.split("/")[1] for info in self.store.list("runs/")})

    def walk(self):
        """Do it all; return decisions, runs left and stored objects.

        The runs are those that each collection left; the objects come with their dates.
        """
        self.train()
        self.publish()
        self.skip()
        self.collect()
        objects = [
            (info.key, info.modified, NONCE.sub(b"", self.store.get(info.key).data)) for info in self.store.list()
        ]
        return self.found, self.left, objects


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    return Nights(tmp_path_factory.mktemp("right"), {}).walk()


def test_walk_contains_commits_refusals_and_removals(right):
    found, left, _ = right
    assert found[:3] == ["done", "refused", "done"]
    assert found.count("refused") == 2  # the other refusal is of the night that was planned too early
    assert ["r" in runs for runs in left] == [True, True, True, True, False]
    assert ["r5" in runs for runs in left] == [True, True, False, False, False]


@pytest.mark.parametrize("wrong", [HOUR, -HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("machine", ["trainer", "follower", "publisher", "planner", "gate", "operator", "collector"])
def test_machine_with_wrong_clock_decides_the_same(tmp_path, right, machine, wrong):
    assert Nights(tmp_path, {machine: wrong}).walk() == right


GRACE_OF_DAYS = 72 * HOUR
DAY = 24 * HOUR


@pytest.fixture
def directory(tmp_path):
    """A local store with three releases of the last days.

    The run ``left`` is needed by none of them; ``at_work`` is being trained.
    """
    store = LocalStore(tmp_path)
    for number in (1, 2, 3):
        with clock_wrong_by(-(9 - 3 * number) * DAY):
            write_run(store, f"r{number}")
            Channel(store, "production").publish(
                candidate(store, f"r{number}", f"d{number}"), planned_on=number - 1 or None
            )
    for hours, run in ((100, "left"), (70, "still"), (35, "waits"), (2, "at_work")):
        with clock_wrong_by(-hours * HOUR):
            write_run(store, run)
            hold(store, run)
    return store


def gone(store, ahead, **options):
    with clock_wrong_by(ahead):
        return collect(store, Retention(releases=3), grace=GRACE_OF_DAYS, **options).runs


@pytest.mark.parametrize("ahead", [80 * HOUR, 365 * DAY])
def test_collection_under_clock_ahead_keeps_half_grace(directory, ahead):
    """Collect every night for a week while other machines keep right clocks."""
    for _ in range(7):
        assert not {"at_work", "waits"} & set(gone(directory, ahead))
    assert {"at_work", "waits"} <= {info.key.split("/")[1] for info in directory.list("runs/")}


def test_writes_after_clock_jump_age_nothing(directory):
    """Let the machine's clock jump.

    The training run writes by the new time; the waiting run has not written since.
    """
    with clock_wrong_by(80 * HOUR):
        hold(directory, "at_work")
    assert not {"at_work", "waits"} & set(gone(directory, 80 * HOUR + MINUTE))


def test_releases_of_last_days_stay_under_clock_ahead(directory):
    with clock_wrong_by(30 * DAY):
        found = collect(directory, Retention(days=5.0), grace=GRACE_OF_DAYS)
    assert "production/2" not in found.releases


def test_trusted_clock_collects_unused_store_at_once(directory):
    assert gone(directory, 30 * DAY, trust_clock=True) == ["at_work", "left", "still", "waits"]


def test_store_with_its_own_clock_counts_every_hour(tmp_path):
    store = TurnedStore(tmp_path)
    write_run(store, "left")
    store.now += 30 * DAY
    found = collect(store, Retention(), grace=GRACE_OF_DAYS)
    assert (found.runs, found.silence) == (["left"], 0.0)
