"""What a machine whose clock is an hour wrong commits, publishes, skips and collects is what it would have otherwise.

Order is decided by swaps, and ages are told by the store's clock.
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
"""What makes two tombstones differ by chance."""
NOW = time.time()
GRAPH = {"graph": "g", "store": "/nowhere", "snapshots": {"location": "/nowhere/{snapshot}.tsv"}, "model": MODEL}


class Nights:
    """What several machines do to one graph, always the same.

    Args:
        root: of the store.
        clocks: by how many seconds whose clock is wrong; the store's own is right.

    Attributes:
        told: what they found and decided.
        left: the runs that each collection left.
    """

    def __init__(self, root, clocks):
        self.store = TurnedStore(root)
        self.store.now = NOW
        self.channel = Channel(self.store, "production")
        self.clocks = clocks
        self.told, self.left = [], []

    def on(self, machine):
        return clock_wrong_by(self.clocks.get(machine, 0.0))

    def attempt(self, action):
        with suppress(ConflictError):
            action()
            self.told.append("done")
            return
        self.told.append("refused")

    def train(self):
        """One commits; another takes over, and the first wakes up."""
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
        self.told.append(open_committed(self.store, PREFIX)[0])

    def publish(self):
        """Nights by turns; one that was planned too early; a roll-back, after which a publish is tried again."""
        for number, machine in enumerate(("publisher", "follower", "publisher", "follower"), start=1):
            with self.on(machine):
                write_run(self.store, f"r{number}", previous=f"r{number - 1}" if number > 1 else None)
                self.publish_run(number, planned_on=number - 1 or None)
            self.store.now += 5 * MINUTE
        with self.on("publisher"):
            write_run(self.store, "r5", previous="r3")
            self.publish_run(5, planned_on=3)
        with self.on("follower"):
            self.told.append(self.channel.rollback())
        with self.on("publisher"):
            self.publish_run(4, planned_on=3)
            pin(self.channel, 1)
        pointer = self.channel.current()
        self.told.append([pointer.release, pointer.rolled_back, pointer.highest, *self.channel.releases()])

    def publish_run(self, number, *, planned_on):
        fields = candidate(self.store, f"r{number}", f"d{number}")
        self.attempt(lambda: self.told.append(self.channel.publish(fields, planned_on=planned_on)))

    def skip(self):
        """A night is planned, refused, planned again, and skipped by hand."""
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
                self.told.append((run.refusal(), why_skipped(self.channel, "d6", since=since), skipped(self.channel)))
                self.told.append((since, when_skipped(self.channel, "d6")))
                self.told.append([night.run_id for night in under_way(self.store, lambda _: True)])
            self.store.now += MINUTE

    def collect(self):
        """Runs are held, given up, and collected when they were for longer than the grace."""
        for minutes, at_work in ((0, True), (10, True), (10, True), (10, True), (20, False)):
            self.store.now += minutes * MINUTE
            if at_work:
                with self.on("trainer"):
                    hold(self.store, "r")
            with self.on("collector"):
                self.told.append(asdict(collect(self.store, Retention(releases=1), grace=GRACE)))
            self.left.append({info.key.split("/")[1] for info in self.store.list("runs/")})

    def walk(self):
        """Do it all, and return what was decided, which runs each collection left, and what lies there since when."""
        self.train()
        self.publish()
        self.skip()
        self.collect()
        objects = [
            (info.key, info.modified, NONCE.sub(b"", self.store.get(info.key).data)) for info in self.store.list()
        ]
        return self.told, self.left, objects


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    return Nights(tmp_path_factory.mktemp("right"), {}).walk()


def test_the_walk_meets_what_it_should(right):
    told, left, _ = right
    assert told[:3] == ["done", "refused", "done"]
    assert told.count("refused") == 2  # the other is the night that was planned too early
    assert ["r" in runs for runs in left] == [True, True, True, True, False]
    assert ["r5" in runs for runs in left] == [True, True, False, False, False]


@pytest.mark.parametrize("wrong", [HOUR, -HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("machine", ["trainer", "follower", "publisher", "planner", "gate", "operator", "collector"])
def test_a_machine_whose_clock_is_wrong_decides_as_the_others_do(tmp_path, right, machine, wrong):
    assert Nights(tmp_path, {machine: wrong}).walk() == right


GRACE_OF_DAYS = 72 * HOUR
DAY = 24 * HOUR


@pytest.fixture
def directory(tmp_path):
    """A local store with three releases of the last days; ``left`` is needed by nothing, ``at_work`` is trained."""
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
    """Every night for a week, while the other machines go on by the right clock."""
    for _ in range(7):
        assert not {"at_work", "waits"} & set(gone(directory, ahead))
    assert {"at_work", "waits"} <= {info.key.split("/")[1] for info in directory.list("runs/")}


def test_writes_after_clock_jump_age_nothing(directory):
    """The machine's clock jumps; what trains goes on by the new one, and what waits has not written since."""
    with clock_wrong_by(80 * HOUR):
        hold(directory, "at_work")
    assert not {"at_work", "waits"} & set(gone(directory, 80 * HOUR + MINUTE))


def test_releases_of_last_days_stay_under_clock_ahead(directory):
    with clock_wrong_by(30 * DAY):
        told = collect(directory, Retention(days=5.0), grace=GRACE_OF_DAYS)
    assert "production/2" not in told.releases


def test_trusted_clock_collects_unused_store_at_once(directory):
    assert gone(directory, 30 * DAY, trust_clock=True) == ["at_work", "left", "still", "waits"]


def test_store_with_its_own_clock_counts_every_hour(tmp_path):
    store = TurnedStore(tmp_path)
    write_run(store, "left")
    store.now += 30 * DAY
    told = collect(store, Retention(), grace=GRACE_OF_DAYS)
    assert (told.runs, told.silence) == (["left"], 0.0)
