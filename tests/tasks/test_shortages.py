"""Tasks of a night that lack some resource.

Each day tries some of the tasks and limits; ``DAYS`` days, each the fifth, come to all of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import ExitStack
from functools import partial

import pytest

from pbg_tasks.errors import ResourceError
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import TASKS, run_chain
from pbg_tasks.tasks.nightly.plan import plan
from tests.rotation import of_today, rotation
from tests.tasks import shortages
from tests.tasks.conftest import ring, workplace
from tests.tasks.reruns import objects
from tests.tasks.shortages import fill, pbg

DAYS = 41
COMMANDS = ("plan", *TASKS, "export-release", "report", "gc")
LIMITS = {
    "descriptors": (1, 2, 3, 4, 6, 8, 12, 20),
    "addresses": (16, 64, 400),
    "file_size": (0, 1, 2, 8, 32),
    "disk": (0, 4, 16, 64, 200),
    "clock_jump": (-24, -1, 1, 9600),
}
"""The remaining resource: files, MB, kB of a file, kB of the disk; and the hours by which the clock jumps."""
CASES = [(kind, value, name) for name in COMMANDS for kind, values in LIMITS.items() for value in values]
NAMED_BY_TIME = re.compile(r"\.[0-9a-f]+-[0-9a-f]+\.json$")
OF_A_TRY = re.compile(r"(^|/)(lease|live)\.json$|/locks/|/runs/[^/]+/failed\.json$")


class Night:
    """A night of which each task can be repeated.

    Attributes:
        commands: arguments of ``pbg`` by name.
        disk: where store and scratch are.
    """

    def __init__(self, place, disk, saved):
        self.place, self.disk, self._saved = place, disk, saved
        self.store = open_store(place.store)
        run_chain(place.spec, "d1")
        self.commands = {"plan": ["plan", place.spec, "--snapshot", "d2"]}
        self._after = {}
        self._done("plan")
        (run,) = (place.store / "runs").glob("d2-*")
        self.commands |= {task: [task, run] for task in TASKS}
        self.commands |= {"export-release": ["export-release", run, "npy"], "report": ["report", run]}
        self.commands["gc"] = ["gc", place.store, "--keep-releases", "1", "--grace", "0"]
        for name in list(self.commands)[1:]:
            if name == "gc":
                plan(place.spec, "d3")  # a run that nothing reaches
            self._done(name)

    def _done(self, name):
        shutil.copytree(self.place.store, self._saved / name)
        assert pbg(self.commands[name]).status == 0, name
        self._after[name] = self.state()

    def restore(self, name):
        """Restore the store of before a task; empty scratch."""
        for path in (*self.place.store.iterdir(), *self.scratch()):
            shutil.rmtree(path)
        shutil.copytree(self._saved / name, self.place.store, dirs_exist_ok=True)

    def scratch(self):
        return list((self.place.root / "scratch").glob("*"))

    def state(self):
        """Return the store's objects, and the names of its files."""
        paths = [path for path in self.place.store.rglob("*") if path.is_file() and not OF_A_TRY.search(str(path))]
        names = {NAMED_BY_TIME.sub("", str(path.relative_to(self.place.store))) for path in paths}
        return objects(self.store), names

    def check(self, name):
        """Compare with the result of the unlimited task."""
        found, expected = self.state(), self._after[name]
        differ = [key for key in found[0].keys() | expected[0].keys() if found[0].get(key) != expected[0].get(key)]
        assert not differ
        assert found[1] == expected[1]


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    root = tmp_path_factory.mktemp("shortages")
    disk = root / "disk"
    disk.mkdir()
    with ExitStack() as stack:
        mount = shutil.which("mount")
        command = [str(mount), "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
        if mount and subprocess.run(command, check=False, capture_output=True).returncode == 0:
            stack.callback(subprocess.run, ["umount", "--lazy", str(disk)], check=True)
        place = stack.enter_context(workplace(disk))
        place.write_spec(exports=[{"format": "npy"}])
        for number in (1, 2, 3):
            place.snapshot(f"d{number}", ring(36 + 4 * number, seed=number))
        (root / "saved").mkdir()
        yield Night(place, disk, root / "saved")


def limited(night, kind, value, name):
    """Do a task with a limited resource."""
    if kind != "disk":
        return pbg(night.commands[name], partial(getattr(shortages, kind), value))
    if not night.disk.is_mount():
        pytest.skip("mounting a small file system takes root and the right to mount")
    filler = fill(night.disk, value)
    try:
        return pbg(night.commands[name])
    finally:
        filler.unlink()


@pytest.mark.parametrize(("kind", "value", "name"), of_today(CASES, DAYS))
def test_task_with_limited_resource_ends_with_sentence(night, kind, value, name):
    night.restore(name)
    ended = limited(night, kind, value, name)
    repeat = f"PBG_ROTATION={rotation()}: {ended}"
    if ended.status:
        assert kind != "clock_jump", repeat
        assert ended.status == ResourceError.exit_code, repeat
        *progress, sentence = ended.text.splitlines()
        assert sentence.startswith("error: resource: "), repeat
        assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in progress), repeat
        assert kind == "descriptors" or not night.scratch(), repeat  # emptying a directory takes an open file
        again = pbg(night.commands[name])
        assert again.status == 0, again
    night.check(name)


@pytest.mark.parametrize("name", of_today(COMMANDS, 7))
def test_task_with_64_descriptors_succeeds(night, name):
    night.restore(name)
    ended = pbg(night.commands[name], partial(shortages.descriptors, 64 - 3))
    assert ended.status == 0, ended
    night.check(name)
