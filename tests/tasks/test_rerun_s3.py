"""Every task of the chain on a real S3 server, killed at a random write and then done twice: it leaves the same."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re

import pytest

from pbg_tasks.storage import open_store
from pbg_tasks.storage.s3 import S3Store
from pbg_tasks.tasks.chain import TASKS, run_chain, run_task
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.plan import plan
from tests.tasks.conftest import Workplace, ring

pytestmark = pytest.mark.s3

WRITES = ("put_new", "swap", "put", "copy", "delete")
KILLED = 77
OBJECTS_OF_A_TRY = re.compile(r"/((held|HEAD|live|training_stats)\.json|checkpoint/manifest\.v\d+\.json)$")
FIGURES_OF_A_TRY = {"usage", "seconds", "second", "memory"}
"""What tells of one try: when it was, by which writer, how fast."""


class Nights:
    """Two nights of a chain in S3; the second is done task by task.

    Attributes:
        before: all objects as they lay before each task of the second night, with their metadata.
        after: objects objects is worth comparing after it.
        writes: how often each task wrote.
    """

    def __init__(self, place, folder):
        self.store = open_store(place)
        self.place = Workplace(folder)
        self.place.write_spec({"num_epochs": 2}, store=place)
        self.place.snapshot("d1", ring(40))
        self.place.snapshot("d2", ring(44, seed=1))
        run_chain(self.place.spec, "d1")
        self.before, self.after, self.writes = {}, {}, {}
        for task in ("plan", *TASKS):
            self.before[task] = {info.key: self.store.get(info.key) for info in list(self.store.list())}
            with pytest.MonkeyPatch.context() as patch:
                written = []
                at_writes(patch, written.append, lambda _: None)
                self.do(task)
            self.after[task], self.writes[task] = self.objects(), len(written)

    @property
    def run(self):
        """URL of the second night, whose id its inputs give."""
        (url,) = {info.key.split("/")[1] for info in self.store.list("runs/d2-")}
        return f"{self.store.url}/runs/{url}"

    def do(self, task):
        """Do a task and return its result."""
        return plan(self.place.spec, "d2") if task == "plan" else run_task(task, self.run)

    def go_back(self, task):
        """Let the store be as it was before a task."""
        there, before = {info.key: info.tag for info in self.store.list()}, self.before[task]
        for key in there.keys() - before.keys():
            self.store.delete(key)
        for key, blob in before.items():
            if there.get(key) != blob.info.tag:
                self.store.put(key, blob.data, metadata=blob.info.metadata)

    def objects(self):
        """Return what the run's objects hold that no try may change, by key."""
        run = RunContext.open(self.run)
        return {
            info.key: comparable(info.key, self.store.get(info.key).data)
            for info in self.store.list(run.key(""))
            if not OBJECTS_OF_A_TRY.search(info.key)
        }


def comparable(key, data):
    """Return the SHA-256 of an object; a task's result without what tells of the try."""
    return timeless(json.loads(data)) if "/results/" in key else hashlib.sha256(data).hexdigest()


def timeless(value):
    if isinstance(value, dict):
        return {name: timeless(each) for name, each in value.items() if not FIGURES_OF_A_TRY & set(name.split("_"))}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def at_writes(patch, before, after):
    """Have the number of each write to S3 told before it is sent and when the server has it."""
    numbers = itertools.count()
    for name in WRITES:
        real = getattr(S3Store, name)

        def called(store, *args, _real=real, **kwargs):
            number = next(numbers)
            before(number)
            result = _real(store, *args, **kwargs)
            after(number)
            return result

        patch.setattr(S3Store, name, called)


def end_when(wanted):
    return lambda number: os._exit(KILLED) if number == wanted else None


def killed(work, write, *, sent):
    """Do something in a process that ends at a write: before it is sent, or before its answer is seen."""
    child = os.fork()
    if not child:
        try:
            with pytest.MonkeyPatch.context() as patch:
                at_writes(patch, end_when(None if sent else write), end_when(write if sent else None))
                work()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


@pytest.fixture(scope="module")
def nights(object_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rerun")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in object_store.environment().items():
            patch.setenv(name, value)
        patch.setenv("PBG_SCRATCH", str(folder / "scratch"))
        yield Nights(object_store.create_bucket("reruns"), folder)


@pytest.mark.parametrize("task", ["plan", *TASKS])
def test_a_task_that_is_killed_and_done_twice_leaves_the_same_objects(nights, task):
    chosen = random.Random(task)
    write, sent = chosen.randrange(nights.writes[task]), chosen.random() < 0.5
    nights.go_back(task)
    killed(lambda: nights.do(task), write, sent=sent)
    first = nights.do(task)
    assert nights.objects() == nights.after[task], f"killed at write {write}, {'sent' if sent else 'not sent'}"
    assert nights.do(task) == first
    assert nights.objects() == nights.after[task]
