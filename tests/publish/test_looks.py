"""Collections of a directory shared by machines with different clocks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pbg_tasks.checkpoint import claim
from pbg_tasks.checkpoint.manifest import decode
from pbg_tasks.errors import FormatError
from pbg_tasks.publish import Channel, looks
from pbg_tasks.publish.collection import collect
from pbg_tasks.publish.gc_holds import condemn, hold, read_decision, tombstone_key
from pbg_tasks.publish.looks import LOOKS, Dates, Looks, Seen
from pbg_tasks.publish.retention import Retention
from pbg_tasks.storage import LocalStore, ObjectInfo
from tests.clocks import HOUR, clock_wrong_by
from tests.publish.runs import candidate, write_run

DAY = 24 * HOUR
GRACE = 72 * HOUR


class Machines:
    """Machines that share a directory, each with its clock.

    Attributes:
        store: the directory.
        passed: seconds since the beginning.
    """

    def __init__(self, monkeypatch, root):
        self._monkeypatch = monkeypatch
        self.store = LocalStore(root)
        self.passed = 0.0

    def clock(self, wrong=0.0):
        """Date the writes of this process by a wrong clock."""
        return clock_wrong_by(self.passed + wrong)

    def collect(self, machine="a", wrong=0.0, **options):
        self._monkeypatch.setattr(looks, "_machine", lambda: machine)
        self._monkeypatch.setattr(looks, "_uptime", lambda: 1000.0 + self.passed)
        with self.clock(wrong):
            return collect(self.store, options.pop("retention", Retention()), **{"grace": GRACE, **options})

    def write(self, run, wrong=0.0):
        with self.clock(wrong):
            write_run(self.store, run)
            hold(self.store, run)

    def publish(self, number, run, wrong=0.0):
        with self.clock(wrong):
            write_run(self.store, run)
            fields = candidate(self.store, run, f"d{number}")
            Channel(self.store, "production").publish(fields, planned_on=number - 1 or None)

    def runs(self):
        return sorted({info.key.split("/")[1] for info in self.store.list("runs/")})


def seen_by_a(store):
    key = f"{LOOKS}a.json"
    return decode(Seen, store.get(key).data, source=key).first


@pytest.fixture
def machines(monkeypatch, tmp_path):
    return Machines(monkeypatch, tmp_path)


@pytest.mark.parametrize("ahead", [80 * HOUR, -80 * HOUR, 365 * DAY])
def test_run_of_machine_with_other_clock_stays(machines, ahead):
    """Train on a machine with the right clock, and collect on another."""
    machines.write("trained")
    for night in range(1, 7):
        machines.publish(night, f"night{night}", wrong=ahead)
        with machines.clock():
            machines.store.put(f"runs/trained/checkpoint/epoch{night}", b"")
        for machine, wrong in (("b", ahead), ("a", 0.0)):
            assert "trained" not in machines.collect(machine, wrong).runs
        machines.passed += DAY
    machines.passed += GRACE
    assert "trained" in machines.collect("b", ahead).runs


def test_hold_by_other_clock_keeps_what_run_continues(machines):
    """Let a run continue a release that has left its channel."""
    for number in range(1, 5):
        machines.publish(number, f"night{number}")
    machines.collect("b", 80 * HOUR, retention=Retention(releases=4))
    machines.passed += GRACE
    with machines.clock():
        hold(machines.store, "night1")
        write_run(machines.store, "tried", previous="night1")
        hold(machines.store, "tried")
    machines.passed += HOUR
    assert machines.collect("b", 80 * HOUR).runs == ["night2"]


def test_renewed_hold_starts_grace_anew(machines):
    machines.write("tried")
    machines.collect()
    machines.passed += GRACE - HOUR
    with machines.clock():
        hold(machines.store, "tried")
    machines.passed += 2 * HOUR
    assert machines.collect().runs == []
    machines.passed += GRACE
    assert machines.collect().runs == ["tried"]


A, B = ObjectInfo("runs/r/a", 1, "1-1"), ObjectInfo("runs/r/b", 1, "2-1")


@pytest.mark.parametrize(
    ("infos", "unchanged"),
    [
        pytest.param([B, A], True, id="listed in another order"),
        pytest.param([A], False, id="one gone"),
        pytest.param([A, B, ObjectInfo("runs/r/c", 1, "3-1")], False, id="one more"),
        pytest.param([A, ObjectInfo("runs/r/b", 1, "3-1")], False, id="one rewritten"),
        pytest.param([A, ObjectInfo("runs/r/c", 1, "2-1")], False, id="one renamed"),
    ],
)
def test_change_of_any_object_makes_all_young(tmp_path, infos, unchanged):
    first = Looks(LocalStore(tmp_path), GRACE, "a", began=100.0, before={})
    assert not first.unchanged([A, B])
    later = Looks(first.store, GRACE, "a", began=100.0 + GRACE, before=dict.fromkeys(first.seen, 100.0))
    assert later.unchanged(infos) is unchanged


def test_run_with_exports_goes_with_them(machines):
    """A released run beside it is needed, and stays."""
    machines.publish(1, "night1")
    machines.write("left")
    with machines.clock():
        machines.store.put("exports/rows/left/_manifest.json", b"{}")
    machines.passed += GRACE + 1
    assert machines.collect(retention=Retention(releases=1)).unwatched == ["left"]
    machines.passed += GRACE + 1
    assert machines.collect(retention=Retention(releases=1)).runs == ["left"]
    assert not list(machines.store.list("exports/"))


def test_first_collection_of_machine_names_what_it_leaves(machines):
    machines.write("left")
    machines.passed += GRACE + HOUR
    machines.write("young")
    found = machines.collect()
    assert (found.runs, found.unwatched) == ([], ["left"])
    machines.passed += GRACE - 1
    found = machines.collect()
    assert (found.runs, found.unwatched) == ([], ["left"])
    machines.passed += 2
    found = machines.collect()
    assert (found.runs, found.unwatched) == (["left", "young"], [])


def test_collection_after_restart_counts_anew(machines):
    machines.write("left")
    machines.collect("a")
    machines.passed += GRACE + 1
    assert machines.collect("a since its restart").unwatched == ["left"]
    assert machines.collect("a").runs == ["left"]


def test_machine_without_boot_id_asks_for_trusted_clock(machines):
    machines.write("left")
    for _ in range(3):
        machines.passed += GRACE
        assert machines.collect(None).runs == []
    assert machines.collect(None, trust_clock=True).runs == ["left"]


def test_dry_run_leaves_no_look(machines):
    machines.write("left")
    machines.collect(dry_run=True)
    machines.passed += GRACE + 1
    assert not list(machines.store.list(LOOKS))
    assert machines.collect().runs == []


def test_clock_that_jumps_between_looks_ages_nothing(machines):
    machines.write("waits")
    machines.collect()
    machines.passed += HOUR
    assert machines.collect(wrong=10 * 365 * DAY).runs == []


def test_half_written_part_by_other_clock_stays(machines):
    """The clock of the gang's machine is behind the collection's."""
    machines.publish(1, "night1")
    part = "runs/night1/checkpoint/partial/embeddings"
    with machines.clock(), claim(machines.store, "runs/night1/checkpoint", b"{}"):
        machines.store.put(part, b"bytes")
    machines.collect("b", 80 * HOUR)
    assert machines.store.head(part) is not None
    machines.passed += GRACE + 1
    machines.collect("b", 80 * HOUR)
    assert machines.store.head(part) is None


def test_removal_by_other_clock_is_not_over(machines):
    machines.write("left")
    with machines.clock():
        going = condemn(machines.store, "left")
        assert going.remove(Dates(machines.passed + 1e12))
    machines.collect("b", 80 * HOUR)
    assert not machines.runs()
    machines.collect("b", 80 * HOUR)
    assert read_decision(machines.store, "left").state == "removing"
    machines.passed += GRACE + 1
    machines.collect("b", 80 * HOUR)
    assert machines.store.head(tombstone_key("left")) is None


def test_look_forgets_what_is_gone(machines):
    machines.write("left")
    for counted in (1, 5, 5, 1, 0):  # the run; its tombstone and four bare folders, twice; the tombstone; nothing
        machines.collect()
        assert len(seen_by_a(machines.store)) == counted
        machines.passed += GRACE


def test_moment_of_look_is_its_end(monkeypatch, tmp_path):
    """Objects written during the look may be among those seen."""
    monkeypatch.setattr(looks, "_machine", lambda: "a")
    monkeypatch.setattr(looks, "_uptime", iter([100.0, 160.0]).__next__)
    look = Looks.of(LocalStore(tmp_path), GRACE)
    look.unchanged([A])
    look.keep()
    assert list(seen_by_a(look.store).values()) == [160.0]


def test_collection_that_fails_leaves_its_look(machines, monkeypatch):
    machines.write("left")
    with monkeypatch.context() as patch:
        patch.setattr(machines.store, "remove_orphans", lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            machines.collect()
    machines.passed += GRACE
    assert machines.collect().runs == ["left"]


@pytest.mark.parametrize("first", [b"", b', "first": {"a": -1e9}', b', "first": {"a": NaN}'])
def test_damaged_look_is_refused_by_name(machines, first):
    machines.write("left")
    machines.store.put(f"{LOOKS}a.json", b'{"format": 1' + first + b"}")
    with pytest.raises(FormatError, match=r"\.looks/a\.json"):
        machines.collect()
    assert machines.runs() == ["left"]


def test_look_names_kernel_start_and_survives_json(tmp_path):
    """Run two collections of this machine with a short grace between them."""
    store = LocalStore(tmp_path)
    write_run(store, "left")
    assert collect(store, Retention(), grace=0.05).runs == []
    assert len(list(store.list(LOOKS))) == 1
    while not (found := collect(store, Retention(), grace=0.05)).runs:
        pass
    assert found.runs == ["left"]


def test_look_in_time_namespace_counts_from_kernel_start():
    """Use one boot id, and a clock days ahead of the host's."""
    ahead = [shutil.which("unshare") or "unshare", "--time", "--boottime", "400000", "--fork", sys.executable, "-c"]
    program = "from pbg_tasks.publish import looks; print(looks._uptime(), looks._machine())"
    try:
        subprocess.run([*ahead, ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this process may not make a time namespace")
    before = looks._uptime()
    uptime, machine = subprocess.run([*ahead, program], check=True, capture_output=True, text=True).stdout.split()
    assert before <= float(uptime) <= looks._uptime()
    assert machine == looks._machine()


def test_run_with_undecodable_file_name_gets_older(machines):
    machines.write("left")
    Path(machines.store.url, "runs/left", os.fsdecode(b"a\xff")).touch()
    assert machines.collect().runs == []
    machines.passed += GRACE + 1
    assert machines.collect(dry_run=True).runs == ["left"]
