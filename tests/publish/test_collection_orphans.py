"""Collection of metadata without an object in a local store.

Writers are at work beside it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from pbg_tasks.publish.collection import collect
from pbg_tasks.publish.retention import Retention
from pbg_tasks.storage import LocalStore
from tests.clocks import HOUR, clock_wrong_by

WRITER = """
import os, signal, sys
from pathlib import Path
from pbg_tasks.storage import LocalStore, local
name, left, real = sys.argv[2], int(sys.argv[3]), getattr(local, sys.argv[2])

def die(*arguments):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

setattr(local, name, die)
LocalStore(sys.argv[1]).put_new("runs/r1/spec.json", b"{}", metadata={"replays": "r0"})
"""


def records(root):
    return sorted(path.name for path in (root / ".pbg" / "metadata").glob("*"))


def killed_writer(root, at, call):
    command = [sys.executable, "-c", WRITER, str(root), at, str(call)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def collected(store, after=200 * HOUR, **options):
    with clock_wrong_by(after):
        return collect(store, Retention(), grace=72 * HOUR, trust_clock=True, **options).orphans


def test_metadata_of_killed_writer_goes(tmp_path):
    store = LocalStore(tmp_path)
    store.put("channels/c/pins/1.json", b"{}", metadata={"kept": "yes"})
    killed_writer(tmp_path, "_link", 1)
    killed_writer(tmp_path, "write_all", 2)  # the first writes the object
    assert store.head("runs/r1/spec.json") is None
    assert len(records(tmp_path)) == 3  # one of the metadata belongs to the pin, one is whole, one half written
    assert collected(store, after=0.0) == 0  # they are young
    assert collected(store, dry_run=True) == 2
    assert len(records(tmp_path)) == 3
    assert collected(store) == 2
    assert len(records(tmp_path)) == 1
    assert store.head("channels/c/pins/1.json").metadata == {"kept": "yes"}


def test_metadata_of_file_removed_by_hand_goes(tmp_path):
    store = LocalStore(tmp_path)
    store.put("channels/c/pins/1.json", b"{}", metadata={"kept": "yes"})
    (tmp_path / "channels/c/pins/1.json").unlink()
    assert collected(store) == 1
    assert records(tmp_path) == []


def test_folders_without_object_go_once_old(tmp_path):
    store = LocalStore(tmp_path)
    store.put("runs/r1/spec.json", b"{}")
    store.put("runs/r1/held.json", b"{}")
    (tmp_path / "runs/r0/release").mkdir(parents=True)
    (tmp_path / "exports/npy/r0").mkdir(parents=True)
    collected(store, after=0.0)
    assert (tmp_path / "runs/r0/release").is_dir()
    collected(store, dry_run=True)
    assert (tmp_path / "runs/r0/release").is_dir()
    collected(store)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == []
    assert [path.name for path in (tmp_path / "exports").iterdir()] == []


def test_folder_removed_beside_writer_is_made_anew(tmp_path, monkeypatch):
    store, real, removed = LocalStore(tmp_path), Path.hardlink_to, []

    def link(path, draft):
        if not removed:
            removed.append(path.parent.rmdir())
        real(path, draft)

    monkeypatch.setattr(Path, "hardlink_to", link)
    store.put("runs/r1/spec.json", b"{}")
    assert store.get("runs/r1/spec.json").data == b"{}"


def test_unknown_file_beside_metadata_stays(tmp_path):
    store = LocalStore(tmp_path)
    store.put("a", b"", metadata={"kept": "yes"})
    for name in ("notes.txt", "f" * 64 + ".1-0.json"):
        path = tmp_path / ".pbg" / "metadata" / name
        path.write_text("not ours")
        os.utime(path, (0, 0))
    assert collected(store) == 0
    assert len(records(tmp_path)) == 3


def test_metadata_of_writers_at_work_stays(tmp_path):
    """Look for orphans without a pause while two writers replace one object.

    The age of an orphan is disregarded.
    """
    store, over, lost = LocalStore(tmp_path), threading.Event(), []
    key = "channels/c/CURRENT.json"
    store.put(key, b"0", metadata={"n": "0"})

    def write():
        mine = LocalStore(tmp_path)
        for number in range(150):
            mine.put(key, str(number).encode(), metadata={"n": str(number)})

    def read():
        mine = LocalStore(tmp_path)
        while not over.is_set():
            blob = mine.get(key)
            if blob.info.metadata != {"n": blob.data.decode()}:
                lost.append(blob)

    writers = [threading.Thread(target=write) for _ in range(2)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    looked = 0
    try:
        while any(thread.is_alive() for thread in writers):
            store.remove_orphans(old=lambda _: True)
            looked += 1
    finally:
        over.set()
        reader.join()
    assert looked > 1
    assert lost == []
    assert len(records(tmp_path)) == 1
