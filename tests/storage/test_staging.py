from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pbg_tasks.errors import ConflictError, FormatError, NotFoundError, ResourceError
from pbg_tasks.storage import LocalStore, staging
from pbg_tasks.storage.staging import Scratch, fetch_many, fetch_verified, put_all_new, sha256_file, sweep


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_sha256_file(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_file(tmp_path / "f") == digest(b"abc")


def test_verified_bytes_arrive(store, tmp_path):
    store.put_new("k", b"abc")
    assert fetch_verified(store, "k", tmp_path / "k", sha256=digest(b"abc"), size=3) == tmp_path / "k"
    assert (tmp_path / "k").read_bytes() == b"abc"


@pytest.mark.parametrize("actual", [b"abd", b"abcd", b""])
def test_other_bytes_are_named_and_removed(store, tmp_path, actual):
    store.put_new("dir/k", actual)
    with pytest.raises(FormatError, match="dir/k") as caught:
        fetch_verified(store, "dir/k", tmp_path / "k", sha256=digest(b"abc"), size=3)
    expected = (digest(b"abc"), digest(actual)) if len(actual) == 3 else ("3 bytes", f"{len(actual)} bytes")
    assert all(text in str(caught.value) for text in expected)
    assert not (tmp_path / "k").exists()


def test_many_are_fetched_in_order(store, tmp_path):
    items = []
    for number in range(20):
        data = f"{number}".encode()
        store.put_new(f"k{number}", data)
        items.append((f"k{number}", tmp_path / f"f{number}", digest(data), len(data)))
    assert fetch_many(store, iter(items), threads=3) == [target for _, target, _, _ in items]
    assert (tmp_path / "f17").read_bytes() == b"17"


def test_one_failure_among_many_is_raised(store, tmp_path):
    store.put_new("a", b"1")
    items = [("a", tmp_path / "a", digest(b"1"), 1), ("b", tmp_path / "b", digest(b"2"), 1)]
    with pytest.raises(NotFoundError, match="b"):
        fetch_many(store, items)


def test_uploads_are_described_and_repeatable(store, tmp_path):
    files = {}
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 5)
        files[f"runs/{name}"] = tmp_path / name
    expected = {f"runs/{name}": {"sha256": digest(name.encode() * 5), "size": 5} for name in ("a", "b")}
    store.put_new("runs/a", b"aaaaa", metadata={"epoch": "1", "sha256": digest(b"aaaaa")})
    assert put_all_new(store, files) == expected
    assert put_all_new(store, files) == expected
    assert store.head("runs/a").metadata == {"epoch": "1", "sha256": digest(b"aaaaa")}
    assert store.head("runs/b").metadata == {"sha256": digest(b"bbbbb")}


def test_an_upload_over_other_bytes_conflicts(store, tmp_path):
    store.put_new("k", b"other")
    (tmp_path / "k").write_bytes(b"mine!")
    with pytest.raises(ConflictError):
        put_all_new(store, {"k": tmp_path / "k"})
    assert store.get("k").data == b"other"


def test_restored_object_without_hash_is_compared_by_bytes(store, tmp_path):
    """A copy of the store need not have the metadata."""
    for name, data in (("same", b"mine!"), ("other", b"yours"), ("long", b"longer")):
        store.put_new(name, data)
    (tmp_path / "k").write_bytes(b"mine!")
    assert put_all_new(store, {"same": tmp_path / "k"}) == {"same": {"sha256": digest(b"mine!"), "size": 5}}
    for name in ("other", "long"):
        with pytest.raises(ConflictError):
            put_all_new(store, {name: tmp_path / "k"})


def test_scratch_is_private_and_temporary(tmp_path):
    with Scratch(tmp_path) as one, Scratch(tmp_path) as two:
        assert one.path != two.path
        assert one.path.parent == tmp_path
        assert one.path.stat().st_mode & 0o077 == 0
        (one.path / "f").write_bytes(b"1")
    assert list(tmp_path.iterdir()) == []


def test_scratch_directory_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PBG_SCRATCH", str(tmp_path / "made" / "when missing"))
    with Scratch() as scratch:
        assert scratch.path.parent == tmp_path / "made" / "when missing"


def test_unusable_temporary_directories_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("PBG_SCRATCH", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "full")])
    with pytest.raises(ResourceError, match=r"directory found in .*/full.*; free some space, or set PBG_SCRATCH"):
        Scratch()


def test_scratch_without_space_raises(small_disk):
    with Scratch(small_disk) as scratch:
        scratch.require(1 << 20)
        with pytest.raises(ResourceError, match=r"4\.19 MB.*2\.1 MB are free.*PBG_SCRATCH"):
            scratch.require(4 << 20)


def test_leftovers_of_killed_process_are_removed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from pbg_tasks.storage.staging import Scratch\n"
        "with Scratch(Path(sys.argv[1])) as scratch:\n"
        "    (scratch.path / 'f').write_text('1'); print(scratch.path, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        path = Path(child.stdout.readline().strip())
        assert sweep(tmp_path) == [], "its process lives"
        with Scratch(tmp_path):
            assert path.exists()
        child.send_signal(signal.SIGKILL)
    assert sweep(tmp_path) == [path]
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_not_held_yet_stays(tmp_path):
    made = tmp_path / "pbg-unheld-x"
    made.mkdir()
    assert sweep(tmp_path) == []
    os.utime(made, (0, 0))
    assert sweep(tmp_path) == [made]


def test_next_scratch_removes_leftover_of_killed_process(tmp_path):
    left = tmp_path / "pbg-scratch-x"
    (left / "deep").mkdir(parents=True)
    with Scratch(tmp_path) as scratch:
        assert list(tmp_path.iterdir()) == [scratch.path]


def test_scratch_that_others_removed_is_no_error(tmp_path):
    with Scratch(tmp_path) as scratch:
        shutil.rmtree(scratch.path)
    assert list(tmp_path.iterdir()) == []


def test_scratch_of_another_machine_stays(tmp_path, monkeypatch):
    """NFS lets every machine lock a directory."""
    flock = fcntl.flock

    def lock(descriptor, how):
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            flock(descriptor, how)

    with Scratch(tmp_path) as scratch:
        monkeypatch.setattr(fcntl, "flock", lock)
        assert sweep(tmp_path) == []
        assert scratch.path.is_dir()


def test_leftover_that_another_sweep_removes_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "pbg-scratch-x").mkdir()

    def removed_before(folder, pattern, **_):
        for path in folder.glob(pattern):
            path.rmdir()
            yield path

    monkeypatch.setattr(staging, "abandoned", removed_before)
    with Scratch(tmp_path) as scratch:
        assert scratch.path.is_dir()


def test_pipes_and_links_do_not_stop_sweep(tmp_path):
    names = [each.rstrip("*") for each in (staging._HELD, staging._UNHELD)]
    for name in names:
        os.mkfifo(tmp_path / f"{name}pipe")
        (tmp_path / f"{name}loop").symlink_to(f"{name}loop")
        (tmp_path / f"{name}link").symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    left = tmp_path / f"{names[0]}left"
    left.mkdir()
    assert sweep(tmp_path) == [left]
    assert (tmp_path / "other").is_dir()
