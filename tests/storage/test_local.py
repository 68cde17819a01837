from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from pbg_tasks.errors import AccessError, ConfigError, ConflictError, FormatError, ResourceError, StorageError
from pbg_tasks.storage import LocalStore, local
from tests.contract.store import StoreContract, large_file

__all__ = ["large_file"]
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "root")


class TestLocalStore(StoreContract):
    pass


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_reader_sees_plain_files_and_nothing_else(store):
    store.put_new("edges/edges_0_0.h5", b"x", metadata={"v": "1"})
    root = Path(store.url)
    assert sorted(path.name for path in root.iterdir()) == [".pbg", "edges"]
    assert (root / "edges" / "edges_0_0.h5").read_bytes() == b"x"


def test_writes_are_flushed_and_local_copies_are_not(store, tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    store.put_new("k", b"x")
    written = len(flushed)
    store.fetch("k", tmp_path / "copy")
    assert written >= 2  # the file and its folder
    assert len(flushed) == written
    assert (tmp_path / "copy").read_bytes() == b"x"


def test_stopped_writer_delays_others_for_limited_time(store, monkeypatch):
    def stop_within():
        with store._locked("k"):
            os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(local, "_LOCK_SECONDS", 0.3)
    stopped = FORK.Process(target=stop_within)
    stopped.start()
    assert os.WIFSTOPPED(os.waitpid(stopped.pid, os.WUNTRACED)[1])
    with pytest.raises(StorageError, match=r"/locks/\d\d: another writer has kept this lock for 0.3 s, so nothing"):
        store.put("k", b"1")
    assert store.head("k") is None
    os.kill(stopped.pid, signal.SIGCONT)
    stopped.join(timeout=20)
    assert store.put("k", b"1").size == 1


def test_nothing_is_made_by_reading(tmp_path):
    store = LocalStore(tmp_path / "absent")
    assert list(store.list()) == []
    assert store.head("x") is None
    store.delete("x")
    assert not (tmp_path / "absent").exists()


def test_replaced_and_deleted_objects_leave_no_metadata(store):
    first = store.put_new("k", b"1", metadata={"v": "1"})
    store.swap("k", b"2", expected=first, metadata={"v": "2"})
    store.delete("k")
    assert [name for name in tree(Path(store.url)) if "locks" not in name] == []


def test_a_file_edited_by_hand_is_another_version(store):
    info = store.put_new("k", b"1", metadata={"v": "1"})
    (Path(store.url) / "k").write_bytes(b"2")
    assert store.head("k").metadata == {}
    with pytest.raises(ConflictError):
        store.swap("k", b"3", expected=info)


def test_tidy_removes_the_stores_own_folder(store):
    store.put_new("a", b"1")
    store.tidy()
    assert tree(Path(store.url)) == ["a"]
    assert not (Path(store.url) / ".pbg").exists()
    store.put_new("b", b"1", metadata={"v": "1"})
    store.tidy()
    assert store.head("b").metadata == {"v": "1"}


def test_tidy_leaves_locks_that_are_held(store):
    with store._locked("a"):
        store.tidy()
        assert len(tree(Path(store.url) / ".pbg" / "locks")) == 1


def _count(root, times):
    store = LocalStore(root)
    for _ in range(times):
        while True:
            try:
                blob = store.get("count")
                store.swap("count", str(int(blob.data) + 1).encode(), expected=blob.info)
            except ConflictError:
                continue
            break
        store.tidy()


def test_writers_that_tidy_lose_no_update(store):
    store.put_new("count", b"0")
    writers = [FORK.Process(target=_count, args=(store.url, 40)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert store.get("count").data == b"120"


def test_tags_differ_when_the_clock_goes_back(store, monkeypatch):
    first = store.put_new("k", b"1")
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    second = store.swap("k", b"2", expected=first)
    with pytest.raises(ConflictError):
        store.swap("k", b"3", expected=first)
    assert store.swap("k", b"3", expected=second).tag not in {first.tag, second.tag}


def test_swap_trusts_no_cached_status(store, monkeypatch):
    first, path = store.put_new("HEAD.json", b"1"), Path(store.url) / "HEAD.json"
    cached, stat = path.stat(), Path.stat
    second = store.swap("HEAD.json", b"2", expected=first)
    with monkeypatch.context() as patch:  # a client of NFS, seconds after another machine's swap
        patch.setattr(Path, "stat", lambda each, **given: cached if each == path else stat(each, **given))
        with pytest.raises(ConflictError, match="was changed"):
            store.swap("HEAD.json", b"3", expected=first)
    assert store.get("HEAD.json").info == second


def test_damaged_metadata_is_named(store):
    store.put_new("k", b"1", metadata={"v": "1"})
    (record,) = (Path(store.url) / ".pbg" / "metadata").iterdir()
    record.write_text("{")
    with pytest.raises(FormatError, match=record.name):
        store.head("k")


def test_a_file_in_the_way_of_a_folder(store):
    store.put_new("a", b"1")
    with pytest.raises(StorageError, match="a/b"):
        store.put_new("a/b", b"2")
    store.put_new("c/d", b"3")
    with pytest.raises(StorageError, match="c"):
        store.put_new("c", b"4")
    assert [info.key for info in store.list()] == ["a", "c/d"]


def test_a_pipe_keeps_no_reader_waiting(store):
    store.put_new("a/b", b"1")
    os.mkfifo(Path(store.url) / "a" / "pipe")
    with pytest.raises(StorageError, match="a/pipe is no file"):
        store.get("a/pipe")


@pytest.mark.parametrize("below", ["", "runs"])
def test_write_to_file_as_root_is_refused(tmp_path, below):
    file = tmp_path / "graph.yaml"
    file.write_text("graph: g")
    with pytest.raises(ConfigError) as refused:
        LocalStore(file / below).put_new("k", b"1")
    assert str(refused.value) == f"{file}: is a file, not a directory; name a directory or s3://bucket/prefix"


def test_a_forbidden_directory(store):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    Path(store.url).mkdir(mode=0o500)
    with pytest.raises(AccessError, match="not permitted"):
        store.put_new("k", b"1")


def count_up(url: str, rounds: int) -> None:
    store = LocalStore(url)
    for _ in range(rounds):
        while True:
            blob = store.get("counter")
            try:
                store.swap("counter", str(int(blob.data) + 1).encode(), expected=blob.info, metadata={"n": "1"})
            except ConflictError:
                continue
            break


def test_processes_lose_no_update(store):
    store.put_new("counter", b"0")
    processes = [FORK.Process(target=count_up, args=(store.url, 40)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert store.get("counter").data == b"120"
    assert store.head("counter").metadata == {"n": "1"}


def die_before_step(step: int) -> None:
    """Kill this process before its ``step``-th file operation from now."""
    left = step

    def hook(event: str, _: object) -> None:
        nonlocal left
        if event == "open" or event.startswith(("os.", "fcntl.", "shutil.")):
            left -= 1
            if left < 0:
                signal.raise_signal(signal.SIGKILL)

    sys.addaudithook(hook)


def exit_status(work, step: int) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            die_before_step(step)
            work()
            status = 0
        finally:
            os._exit(status)  # whatever happened, a forked test process must not return
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("operation", ["swap", "put_new", "delete"])
def test_kill_at_every_step_shows_whole_versions(tmp_path, operation):
    before, after = (b"1" * 1000, {"v": "1"}), (b"2" * 2000, {"v": "2"})
    states = set()
    for step in range(100):
        store = LocalStore(tmp_path / str(step))
        first = None if operation == "put_new" else store.put_new("d/k", before[0], metadata=before[1])
        if operation == "delete":
            status = exit_status(lambda store=store: store.delete("d/k"), step)
        else:
            status = exit_status(
                lambda store=store, first=first: store.swap("d/k", after[0], expected=first, metadata=after[1]), step
            )
        found = store.head("d/k") and store.get("d/k")
        state = found and (found.data, dict(found.info.metadata))
        untouched = None if first is None else before
        done = None if operation == "delete" else after
        assert state in (untouched, done)
        assert [info.key for info in store.list()] == (["d/k"] if state else [])
        store.swap("d/k", b"3", expected=store.head("d/k"))  # and no lock is left behind
        states.add(str(state))
        if status == 0:
            assert state == done
            break
        assert status == -signal.SIGKILL
    else:
        pytest.fail("the operation never got through")
    assert len(states) == 2
    assert step >= 5


def test_kill_at_every_step_of_copy(tmp_path):
    for step in range(100):
        store = LocalStore(tmp_path / str(step))
        source = store.put_new("a", b"1" * 1000, metadata={"v": "1"})
        status = exit_status(lambda store=store: store.copy("a", "d/k"), step)
        assert store.head("a") == source
        there = store.head("d/k")
        assert there is None or (store.get("d/k").data, dict(there.metadata)) == (b"1" * 1000, {"v": "1"})
        if status == 0:
            assert there is not None
            break
        assert status == -signal.SIGKILL
        assert store.copy("a", "d/k").metadata == {"v": "1"}  # and no lock is left behind
    else:
        pytest.fail("the operation never got through")
    assert step >= 5


def test_a_killed_write_is_swept_away_later(store):
    pipe = Path(store.url).with_name("pipe")
    os.mkfifo(pipe)
    child = FORK.Process(target=store.put_new, args=("k", pipe))
    child.start()
    with pipe.open("wb", buffering=0) as feed:
        feed.write(b"half of it")
        child.kill()
        child.join()
    (leftover,) = (Path(store.url) / ".pbg" / "unfinished").iterdir()
    assert list(store.list()) == []
    LocalStore(store.url).put_new("young", b"1")
    assert leftover.exists()
    os.utime(leftover, (0, 0))
    LocalStore(store.url).put_new("later", b"1")
    assert not leftover.exists()


def test_killed_write_on_nfs_is_swept(store, monkeypatch):
    def flock(descriptor, operation):
        reads_only = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if reads_only and operation & fcntl.LOCK_EX:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        locked(descriptor, operation)

    locked = fcntl.flock
    store.put_new("k", b"1")
    leftover = Path(store.url) / ".pbg" / "unfinished" / "0123456789abcdef"
    leftover.write_bytes(b"half of it")
    os.utime(leftover, (0, 0))
    monkeypatch.setattr(fcntl, "flock", flock)
    LocalStore(store.url).put_new("later", b"1")
    assert not leftover.exists()


def test_unfinished_write_of_living_process_is_kept(store):
    pipe = Path(store.url).with_name("pipe")
    os.mkfifo(pipe)
    child = FORK.Process(target=store.put_new, args=("k", pipe))
    child.start()
    with pipe.open("wb", buffering=0) as feed:
        feed.write(b"half of it")
        (draft,) = (Path(store.url) / ".pbg" / "unfinished").iterdir()
        os.utime(draft, (0, 0))
        LocalStore(store.url).put_new("other", b"1")
        assert draft.exists()
        feed.write(b", and the rest")
    child.join(30)
    assert store.get("k").data == b"half of it, and the rest"


def test_a_quota(store):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(ResourceError, match="full"):
            store.put_new("k", b"x" * (2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(store.list()) == []
    assert list((Path(store.url) / ".pbg" / "unfinished").iterdir()) == []


def test_a_full_disk(small_disk):
    store = LocalStore(small_disk)
    kept = store.put_new("kept", b"1", metadata={"v": "1"})
    with pytest.raises(ResourceError, match=r"kept.*free some space"):
        store.swap("kept", b"x" * (4 << 20), expected=kept)
    assert store.head("kept") == kept
    assert store.put_new("small", b"2").size == 1
