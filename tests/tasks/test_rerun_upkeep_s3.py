"""Upkeep commands on a real S3 server, killed and repeated.

Each is killed at a random write and then done twice.
"""

from __future__ import annotations

import re
from functools import partial

import pytest

from pbg_tasks.config import RunLayout
from pbg_tasks.errors import QualityGateError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.announcing import announced
from pbg_tasks.tasks.approval import approve, reject
from pbg_tasks.tasks.nightly.chain import TASKS, run_chain, run_task
from pbg_tasks.tasks.nightly.export_release import export_release
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.release.adopt import adopt
from pbg_tasks.tasks.release.releases import drill, gc, pin, rollback, skip, unpin
from pbg_tasks.tasks.release.repartition import repartition
from pbg_tasks.tasks.view.report import report, report_graph
from tests.rotation import rotation
from tests.tasks.conftest import Workplace, ring
from tests.tasks.reruns import BY_THE_CLOCK, State, bucket, deaths, killed, objects, timeless, writes_of

pytestmark = pytest.mark.s3

OF_A_TRY = re.compile(rf"{BY_THE_CLOCK.pattern}|^gc/|(^|/)\.probe/")
"""Tombstones, which the collection after the next removes, and leftovers that a probe could not remove itself."""
OLD = -1 / 60
"""Grace in hours that makes every object older than it, even one stored in the same second."""


class Upkeep:
    """Two released nights in S3, and a third that was refused.

    The quality gate refused it.

    Attributes:
        place: with the spec of the graph.
        released: URL of the second night.
        refused: URL of the third.
        other: a spec of the same graph in a store that has no releases yet.
        before: all objects at first.
    """

    def __init__(self, place, folder):
        self.store = open_store(place)
        self.place = Workplace(folder)
        self.spec(exports=[{"format": "npy"}])
        for number in (1, 2, 3):
            self.place.snapshot(f"d{number}", ring(40 + number, seed=number))
        run_chain(self.place.spec, "d1")
        self.released = plan(self.place.spec, "d2")["run"]
        for task in TASKS:  # and no export yet
            run_task(task, self.released)
        self.spec(gates={"min_mrr": 1.5, "max_mrr_drop": 1.0})
        self.refused = plan(self.place.spec, "d3")["run"]
        with pytest.raises(QualityGateError):
            run_chain(self.place.spec, "d3")
        self.spec()
        self.other = folder / "other.yaml"
        self.other.write_text(self.place.spec.read_text().replace(f"store: {place}", f"store: {place}/other"))
        self.before = State(self.store)

    def spec(self, **sections):
        self.place.write_spec({"num_epochs": 1}, store=self.store.url, **sections)

    def objects(self):
        """Return the contents of the store that no try may change.

        They are by key.
        """
        return objects(self.store, without=OF_A_TRY)


@pytest.fixture(scope="module")
def upkeep(object_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("upkeep")
    with bucket(object_store, "upkeep", folder) as place:
        yield Upkeep(place, folder)


WORKS = {
    "export_release": lambda upkeep: export_release(upkeep.released, "npy"),
    "announced": lambda upkeep: announced(upkeep.released, "publish"),
    "report": lambda upkeep: report(upkeep.released),
    "report_graph": lambda upkeep: report_graph(upkeep.place.spec),
    "drill": lambda upkeep: drill(upkeep.place.spec),
    "rollback": lambda upkeep: rollback(upkeep.place.spec, to=1),
    "pin": lambda upkeep: pin(upkeep.place.spec, 1),
    "unpin": lambda upkeep: (pin(upkeep.place.spec, 1), unpin(upkeep.place.spec, 1))[1],
    "skip": lambda upkeep: skip(upkeep.place.spec, "d9", reason="half of it is missing"),
    "approve": lambda upkeep: approve(upkeep.refused, by="ada", reason="a first night"),
    "reject": lambda upkeep: reject(upkeep.refused, by="ada", reason="a bad night"),
    "gc": lambda upkeep: gc(upkeep.store.url, keep_releases=1, grace_hours=OLD),
    "adopt": lambda upkeep: adopt(*[f"{upkeep.released}/{RunLayout.release}"] * 2, upkeep.other),
    "repartition": lambda upkeep: repartition(upkeep.place.spec, partitions=3),
}
LEAVES_NOTHING = {"unpin"}
LISTS_CHANGES = {"gc", "repartition", "rollback"}
"""Works whose result lists their changes, so that a second time differs."""


@pytest.mark.parametrize("name", WORKS)
def test_killed_and_repeated_upkeep_leaves_equal_objects(upkeep, name):
    work = partial(WORKS[name], upkeep)
    upkeep.before.restore()
    untouched = upkeep.objects()
    writes = writes_of(work)
    undisturbed = upkeep.objects()
    assert (undisturbed == untouched) == (name in LEAVES_NOTHING)
    for death in deaths(writes):
        upkeep.before.restore()
        killed(work, **death)
        first = work()
        assert upkeep.objects() == undisturbed, f"killed at {death}, PBG_ROTATION={rotation()}"
        again = work()
        assert timeless(again) == timeless(first) or name in LISTS_CHANGES
        assert upkeep.objects() == undisturbed
