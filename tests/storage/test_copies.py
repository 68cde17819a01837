"""Local copies of stored objects, and the disk space they take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pbg_tasks.errors import StorageError
from pbg_tasks.storage import copies
from pbg_tasks.storage.copies import Copies

SIZE = 100


class Disk:
    """A disk with ``room`` free bytes, which records the files fetched."""

    def __init__(self, root, room):
        self.root, self.room, self.fetched = root, room, []

    def usage(self, _path):
        return SimpleNamespace(free=self.room - sum(path.stat().st_size for path in self.root.rglob("*.h5")))

    def bring(self, kept, name):
        path = self.root / "0" / f"{name}.h5"

        def fetch():
            self.fetched.append(name)
            path.write_bytes(b"x" * SIZE)
            assert self.usage(path).free >= 0

        assert kept.bring(path, SIZE, fetch).stat().st_size == SIZE

    @property
    def names(self):
        return {path.stem for path in self.root.rglob("*.h5")}


@pytest.fixture
def disk(tmp_path, monkeypatch):
    disk = Disk(tmp_path, room=10 * SIZE)
    monkeypatch.setattr(copies.shutil, "disk_usage", disk.usage)
    return disk


def test_copies_stay_while_there_is_room(disk):
    kept = Copies()
    for name in [*"abcdefghij", *"jihgfedcba"]:
        disk.bring(kept, name)
    assert disk.fetched == [*"abcdefghij"]


def test_epoch_larger_than_disk_keeps_its_first_files(disk):
    kept, epoch = Copies(reserve=6 * SIZE), [*"abcdefg"]
    for name in epoch:
        disk.bring(kept, name)
    assert disk.names == {*"abcg"}
    disk.fetched.clear()
    for name in epoch:
        disk.bring(kept, name)
    assert disk.fetched == [*"defg"]


def test_full_disk_evicts_copies_except_the_requested(disk):
    kept = Copies(reserve=2 * SIZE)
    for name in "abc":
        disk.bring(kept, name)
    disk.room = 3 * SIZE
    disk.bring(kept, "a")
    assert (disk.names, disk.fetched) == ({"a"}, [*"abc"])
    disk.room = 0  # the reserve is a wish: only the disk decides whether the file fits
    disk.bring(kept, "a")
    assert disk.names == {"a"}


def test_failed_fetch_is_tried_again(disk):
    kept = Copies()
    path = disk.root / "0" / "a.h5"

    def fail():
        raise StorageError("away")

    with pytest.raises(StorageError, match="away"):
        kept.bring(path, SIZE, fail)
    disk.bring(kept, "a")
    assert disk.fetched == ["a"]
