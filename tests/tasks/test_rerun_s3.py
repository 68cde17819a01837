"""Tasks of the chain on real S3, killed and done twice.

Each is killed at a random write and then leaves the same objects.
"""

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
    """Two nights of a chain in S3, the second task by task.

    Attributes:
        before: all objects before each task of the second night.
        after: comparable objects of the run after it.
        writes: number of writes of each task.
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
        """URL of the second night, whose id follows from its inputs."""
        (url,) = {info.key.split("/")[1] for info in self.store.list("runs/d2-")}
        return f"{self.store.url}/runs/{url}"

    def do(self, task):
        """Do a task and return its result."""
        return plan(self.place.spec, "d2") if task == "plan" else run_task(task, self.run)

    def objects(self):
        """Return the contents of the run that no try may change.

        They are by key.
        """
        return objects(self.store, RunContext.open(self.run).key(""))


@pytest.fixture(scope="module")
def nights(object_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rerun")
    with bucket(object_store, "reruns", folder) as place:
        yield Nights(place, folder)


@pytest.mark.parametrize("task", ["plan", *TASKS])
def test_killed_and_repeated_task_leaves_equal_objects(nights, task):
    for death in deaths(nights.writes[task]):
        nights.before[task].restore()
        killed(lambda: nights.do(task), **death)
        first = nights.do(task)
        assert nights.objects() == nights.after[task], f"killed at {death}, PBG_ROTATION={rotation()}"
        assert nights.do(task) == first
        assert nights.objects() == nights.after[task]
