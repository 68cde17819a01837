"""Several writers of one run make one lineage of versions.

Each stands still at any point for any time. A superseded writer never commits, and no byte that was committed ever
changes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from functools import partial
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

from pbg_tasks.checkpoint import CheckpointWriter, open_committed
from pbg_tasks.checkpoint import writer_heartbeat as lease
from pbg_tasks.storage import LocalStore
from tests.checkpoint.lineage import Lineage, names, train
from tests.checkpoint.paused import PausedWriter
from tests.checkpoint.samples import PREFIX

EXAMPLES = int(os.environ.get("PBG_EXAMPLES", "50"))
STEPS = 50
WRITERS = 3
SEEN: Counter[str] = Counter()


class Writers(RuleBasedStateMachine):
    @initialize(adopt=st.sampled_from([None, names]))
    def begin(self, adopt):
        self.root = Path(tempfile.mkdtemp())
        self.store = LocalStore(self.root / "store")
        self.lineage = Lineage(self.store)
        self.writers: list[PausedWriter] = []
        self.adopt, self.count = adopt, 0

    def teardown(self):
        for writer in self.writers:
            writer.kill()
        SEEN.update(self.lineage.seen)
        shutil.rmtree(self.root)

    @precondition(lambda self: len(self.writers) < WRITERS)
    @rule(gang=st.booleans(), epochs=st.integers(1, 3))
    def one_comes(self, gang, epochs):
        self.count += 1
        work = partial(train, folder=self.root / f"w{self.count}", gang=gang, epochs=epochs, adopt=self.adopt)
        self.writers.append(PausedWriter(self.store, work))

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, WRITERS - 1), operations=st.sampled_from([1, 2, 3, 5, 8, 13, 40]))
    def one_goes_on(self, which, operations):
        writer = self.chosen(which)
        while operations and self.step(writer):
            operations -= 1

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, WRITERS - 1), operation=st.sampled_from(["put_new", "swap", "copy", "delete"]))
    def one_goes_on_until_it_would_write(self, which, operation):
        writer = self.chosen(which)
        while self.step(writer) and writer.next != operation:
            pass

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, WRITERS - 1))
    def one_dies(self, which):
        writer = self.chosen(which)
        writer.kill()
        self.writers.remove(writer)

    def chosen(self, which):
        return self.writers[which % len(self.writers)]

    def step(self, writer):
        goes_on = self.lineage.step(writer)
        if not goes_on:
            self.writers.remove(writer)
        return goes_on

    @invariant()
    def a_reader_finds_the_newest_version(self):
        head = self.lineage.head
        if head is not None and head.version:
            assert open_committed(self.store, PREFIX)[0].version == head.version


@pytest.fixture(autouse=True)
def _swift(swift_disk, monkeypatch):
    """Skip the messages about waiting, too."""
    monkeypatch.setattr(lease, "say", lambda _: None)


@pytest.mark.rotated(3)
@pytest.mark.timeout(3600)  # 2,000 examples take ten minutes
def test_paused_and_killed_writers_make_one_lineage():
    SEEN.clear()
    run_state_machine_as_test(
        Writers,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert min(SEEN[each] for each in ("committed", "taken over", "shut out")) > 0


def overtake(root, after, *, old, new):
    """Pause a writer after so many operations while another one finishes.

    Both meet a file that a third writer has left under the name of what they are going to commit. Returns whether the
    writer was paused.
    """
    lineage = Lineage(store := LocalStore(root / "store"))

    def writer(name, *, gang):
        return PausedWriter(store, partial(train, folder=root / name, gang=gang))

    first = writer("first", gang=False)
    while not store.head(f"{PREFIX}/{names(1)[1]}"):
        lineage.step(first)
    first.kill()
    slow, fast, last = writers = [writer("slow", gang=old), writer("fast", gang=new), writer("last", gang=new)]
    try:
        for _ in range(after):
            if not lineage.step(slow):
                return False
        for each in (fast, slow, last):
            while lineage.step(each):
                pass
    finally:
        for each in writers:
            each.kill()
    assert lineage.seen["committed"] >= 2
    return True


@pytest.mark.parametrize("old", [False, True], ids=["alone", "gang"])
@pytest.mark.parametrize("new", [False, True], ids=["overtaken by one", "overtaken by a gang"])
def test_writer_paused_anywhere_changes_no_later_commit(tmp_path, old, new):
    after = 0
    while overtake(tmp_path / str(after), after, old=old, new=new):
        after += 1
    assert after > 10


def swap_whatever_is_there(self, key, source, *, expected, metadata=None):
    return self.put(key, source, metadata=metadata)


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        (LocalStore, "swap", swap_whatever_is_there),
        (CheckpointWriter, "_refuse_newer", lambda *_: None),
    ],
    ids=["a store that compares nothing", "a writer that replaces what a newer one wrote"],
)
def test_broken_fence_is_detected(tmp_path, monkeypatch, where, name, wrong):
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(AssertionError, match=r"a claim changed more|superseded|other bytes"):
        test_writer_paused_anywhere_changes_no_later_commit(tmp_path, False, False)
