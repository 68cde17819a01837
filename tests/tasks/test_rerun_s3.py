"""Every task of the chain on a real S3 server, killed at a random write and then done twice: it leaves the same."""

from __future__ import annotations

import pytest

from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import TASKS, run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from tests.rotation import rotation
from tests.tasks.conftest import Workplace, ring
from tests.tasks.reruns import State, bucket, deaths, killed, objects, writes_of

pytestmark = pytest.mark.s3


class Nights:
    """Two nights of a chain in S3; the second is done task by task.

    Attributes:
        before: all objects as they lay before each task of the second night.
        after: what of the run's objects is worth comparing after it.
        writes: how often each task wrote.
    """

    def __init__(self, place, folder):
        self.store = open_store(place)
        self.place = Workplace(folder)
        self.place.write_spec({"num_epochs": 2, "checkpoint_preservation_interval": 1}, store=place)
        self.place.snapshot("d1", ring(40))
        self.place.snapshot("d2", ring(44, seed=1))
        run_chain(self.place.spec, "d1")
        self.before, self.after, self.writes = {}, {}, {}
        for task in ("plan", *TASKS):
            self.before[task] = State(self.store)
            self.writes[task] = writes_of(lambda task=task: self.do(task))
            self.after[task] = self.objects()

    @property
    def run(self):
        """URL of the second night, whose id its inputs give."""
        (url,) = {info.key.split("/")[1] for info in self.store.list("runs/d2-")}
        return f"{self.store.url}/runs/{url}"

    def do(self, task):
        """Do a task and return its result."""
        return plan(self.place.spec, "d2") if task == "plan" else run_task(task, self.run)

    def objects(self):
        """Return what the run's objects hold that no try may change, by key."""
        return objects(self.store, RunContext.open(self.run).key(""))


@pytest.fixture(scope="module")
def nights(object_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rerun")
    with bucket(object_store, "reruns", folder) as place:
        yield Nights(place, folder)


@pytest.mark.parametrize("task", ["plan", *TASKS])
def test_a_task_that_is_killed_and_done_twice_leaves_the_same_objects(nights, task):
    for death in deaths(nights.writes[task]):
        nights.before[task].restore()
        killed(lambda: nights.do(task), **death)
        first = nights.do(task)
        assert nights.objects() == nights.after[task], f"killed at {death}, PBG_ROTATION={rotation()}"
        assert nights.do(task) == first
        assert nights.objects() == nights.after[task]
