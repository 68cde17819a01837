"""Files of a local store that have several names."""

from __future__ import annotations

import errno
import filecmp
import os
import tempfile
from pathlib import Path

import h5py
import pytest

from pbg_tasks.errors import ConflictError, StorageError
from pbg_tasks.storage import FinalFile, LocalStore


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "root")


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_copy_shares_bytes_until_one_is_replaced(store):
    source = store.put_new("a", b"bytes", metadata={"v": "1"})
    copied = store.copy("a", "b")
    first, second = (Path(store.url) / key for key in ("a", "b"))
    assert first.samefile(second)
    assert (store.head("a"), store.head("b")) == (source, copied)
    store.swap("a", b"more", expected=source)
    assert (store.get("a").data, store.get("b").data) == (b"more", b"bytes")
    store.delete("a")
    assert store.get("b").info == copied


def test_copy_where_links_are_refused(store, monkeypatch):
    link = os.link

    def refuse(*args, src_dir_fd=None, **further):
        if src_dir_fd is not None:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        link(*args, **further)

    store.put_new("a", b"bytes", metadata={"v": "1"})
    monkeypatch.setattr(os, "link", refuse)
    copied = store.copy("a", "b")
    assert not (Path(store.url) / "a").samefile(Path(store.url) / "b")
    assert (store.get("b").data, store.head("b")) == (b"bytes", copied)
    assert copied.metadata == {"v": "1"}
    assert store.remove_orphans(old=lambda _: True) == 0


def test_repeated_copy_writes_and_reads_nothing(store, monkeypatch):
    store.put_new("a", b"bytes", metadata={"v": "1"})
    copied = store.copy("a", "b")

    def refuse(*_args, **_options):
        raise AssertionError("the bytes of a file that has both names are needed for nothing")

    monkeypatch.setattr(LocalStore, "_draft", refuse)
    monkeypatch.setattr(filecmp, "cmp", refuse)
    assert store.copy("a", "b") == copied


def test_a_final_file_is_kept_and_not_copied(store, tmp_path):
    source = tmp_path / "scratch"
    source.write_bytes(b"bytes")
    os.utime(source, (0, 0))
    info = store.put_new("k", FinalFile(source), metadata={"v": "1"})
    path = Path(store.url) / "k"
    assert path.samefile(source)
    assert store.head("k") == info
    source.unlink()
    assert store.get("k").data == b"bytes"
    other = tmp_path / "other"
    other.write_bytes(b"more")
    store.swap("k", FinalFile(other), expected=info)
    assert store.get("k").data == b"more"
    with pytest.raises(ConflictError):
        store.put_new("k", FinalFile(other))
    assert [name for name in tree(Path(store.url)) if "locks" not in name] == ["k"]


def test_final_file_is_fetched_without_copying(store, tmp_path):
    stored = store.put_new("k", b"bytes", metadata={"v": "1"})
    place = FinalFile(tmp_path) / "k"
    assert store.fetch("k", place) == store.head("k") == stored
    assert place.samefile(Path(store.url) / "k")
    store.swap("k", b"more", expected=stored)
    assert place.read_bytes() == b"bytes"
    store.fetch("k", place)  # there is a file already, which is replaced
    assert place.read_bytes() == b"more"
    place.write_bytes(b"mine")
    assert store.get("k").data == b"more"


def test_final_file_stored_twice_is_copied(store, tmp_path):
    source = tmp_path / "scratch"
    source.write_bytes(b"bytes")
    first = store.put_new("a", FinalFile(source), metadata={"v": "1"})
    second = store.put_new("b", FinalFile(source), metadata={"v": "2"})
    with pytest.raises(ConflictError):
        store.put_new("a", FinalFile(source))
    assert (
        store.head("a") == first
    )  # tag and metadata are unchanged; a third hard link to the file would have changed them
    assert store.head("b") == second
    assert not (Path(store.url) / "a").samefile(Path(store.url) / "b")


def test_final_file_is_readable_while_stored(store, tmp_path):
    source = tmp_path / "scratch.h5"
    with h5py.File(source, "w") as file:
        file["rows"] = [1, 2]
    with (
        store._draft("k", FinalFile(source)),
        h5py.File(source) as file,
    ):  # HDF5 locks the file and does not wait for other locks
        assert file["rows"][:].tolist() == [1, 2]


def test_link_to_final_file_becomes_a_file(store, tmp_path):
    (tmp_path / "scratch").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    store.put("k", FinalFile(tmp_path / "link"))
    assert not (Path(store.url) / "k").is_symlink()
    assert store.get("k").data == b"bytes"


def test_final_file_of_other_file_system_is_copied(store, tmp_path):
    memory = Path("/dev/shm")  # noqa: S108 - any other file system does
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to write to")
    with tempfile.NamedTemporaryFile(dir=memory) as source:
        source.write(b"bytes")
        source.flush()
        store.put_new("k", FinalFile(source.name))
        assert not (Path(store.url) / "k").samefile(source.name)
    assert store.get("k").data == b"bytes"


def test_a_final_file_that_is_missing_is_named(store, tmp_path):
    with pytest.raises(StorageError, match="absent"):
        store.put_new("k", FinalFile(tmp_path / "absent"))
    assert tree(Path(store.url)) == []
