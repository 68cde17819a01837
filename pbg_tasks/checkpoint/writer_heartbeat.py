"""Heartbeat of the process that trains a run.

It decides *when to try* a takeover, never which writer is right: safety comes from the writer epoch in HEAD.json alone.
The lease only keeps a second writer from shutting out a live one. No clocks are compared: an observer watches whether
the heartbeat object changes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pbg_tasks.errors import ConflictError, NotFoundError, ResourceError, StorageError
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.storage import ObjectInfo, Store

BEAT_SECONDS = 5.0
SILENCE_SECONDS = 16.0
"""A heartbeat that missed three beats counts as dead."""
PATIENCE_SECONDS = 40.0
"""Longest wait of a new writer for a living one. A scheduler may start the next attempt before it has ended the one
before.
"""


def process_identity() -> dict[str, str | int]:
    """Return the identity of this process, by which its death shows.

    That works on the same machine, even when its pid is used again.
    """
    pid = os.getpid()
    return {
        "machine": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "namespace": str(Path("/proc/self/ns/pid").readlink()),
        "pid": pid,
        "started": _start_time(pid),
    }


def _start_time(pid: int) -> str:
    """Return the kernel's start time of a process.

    It is field 22 of the process's stat, and empty when the process does not run.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def is_dead(identity: dict[str, str | int]) -> bool:
    """Return whether a process is known to have ended.

    It is False when that cannot be known from here.
    """
    mine = process_identity()
    if (identity.get("machine"), identity.get("namespace")) != (mine["machine"], mine["namespace"]):
        return False
    return _start_time(int(identity.get("pid", 0))) != identity.get("started")


class WriterHeartbeat:
    """Heartbeat at ``key``, sent by a thread while the context lasts.

    A clean end removes it, unless another writer has taken over: it is that one's then.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._identity, self._shared = process_identity(), False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._write(0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._look() == self._identity and not self._shared:
            self._store.delete(self._key)

    def _look(self) -> dict[str, str | int]:
        """Return the last beat's writer, and note whether it is another one.

        That one has made its claim. If it sees a late beat of this one, it goes on, too: none of them decides.
        """
        found = _holder(self._store, self._key)
        self._shared |= found not in ({}, self._identity)
        return found

    def _write(self, count: int) -> None:
        self._store.put(self._key, json.dumps({"holder": self._identity, "beat": count}).encode())

    def _keep(self) -> None:
        count = 0
        while not self._stop.wait(BEAT_SECONDS):
            count += 1
            self._look()
            try:
                self._write(count)
            except (StorageError, ResourceError) as error:
                say(f"heartbeat: {error}")  # the next beat tries again, and only commits decide which writer counts


def may_be_held(store: Store, key: str) -> bool:
    """Return whether a writer holds the lease that may be alive."""
    return store.head(key) is not None and not is_dead(_holder(store, key))


def _holder(store: Store, key: str) -> dict[str, str | int]:
    """Return the identity of the holder; empty where it cannot be read."""
    try:
        found: dict[str, str | int] = json.loads(store.get(key).data)["holder"]
    except (StorageError, ResourceError, ValueError, KeyError, TypeError):
        return {}
    return found


def _seen(store: Store, key: str) -> ObjectInfo | None:
    """Return the facts of a lease; None without it.

    It is read, because NFS may answer a look from a cache for longer than a heartbeat may be silent.
    """
    try:
        return store.get(key).info
    except NotFoundError:
        return None


def wait_until_free(
    store: Store, key: str, *, patience: float = PATIENCE_SECONDS, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until no live writer holds the lease.

    That is so when the lease is gone, its holder is dead, or it stayed silent.

    Raises:
        ConflictError: its heartbeat still goes on after ``patience`` seconds.
    """
    seen = _seen(store, key)
    if seen is None:
        return
    holder = _holder(store, key)
    if is_dead(holder):
        return
    say(f"{store.url}/{key}: another writer was here; watching its heartbeat for {patience:.0f} s")
    waited = last_beat = 0.0
    while waited < patience and waited - last_beat < SILENCE_SECONDS:
        sleep(1.0)
        waited += 1.0
        now = _seen(store, key)
        if now is None or is_dead(holder):
            return
        if now.tag != seen.tag:
            seen, last_beat = now, waited
    if last_beat and waited - last_beat < SILENCE_SECONDS:
        raise ConflictError(
            f"{store.url}/{key}: another writer (pid {holder.get('pid', '?')}) is alive and owns this run; "
            "wait for it to end, or stop it"
        )
