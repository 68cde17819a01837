"""Who is training this run right now: a heartbeat that decides *when to try* a takeover, never who is right.

Safety comes from the writer epoch in HEAD.json alone. The lease only spares a second writer from pushing a live one
aside. No clocks are compared: an observer looks whether the heartbeat object changes while it watches.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pbg_tasks.errors import ConflictError, StorageError
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.storage import Store

BEAT_SECONDS = 5.0
SILENCE_SECONDS = 16.0
"""A heartbeat that missed three beats is taken for dead."""
PATIENCE_SECONDS = 40.0
"""How long a living writer is waited for: a scheduler may start the next try before it has ended the one before."""


def process_identity(pid: int | None = None) -> dict[str, str | int]:
    """Name a process so that its death can be told on the same machine, even when its pid is used again."""
    pid = pid or os.getpid()
    return {
        "machine": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "namespace": str(Path("/proc/self/ns/pid").readlink()),
        "pid": pid,
        "started": _start_time(pid),
    }


def _start_time(pid: int) -> str:
    """Return the kernel's start time of a process (field 22 of its stat), empty when it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def is_dead(identity: dict[str, str | int]) -> bool:
    """Tell whether the process is known to be gone; False when it cannot be known from here."""
    mine = process_identity()
    if (identity.get("machine"), identity.get("namespace")) != (mine["machine"], mine["namespace"]):
        return False
    return _start_time(int(identity.get("pid", 0))) != identity.get("started")


class WriterHeartbeat:
    """A heartbeat at ``key``, kept up by a thread while the context lasts, removed at a clean end."""

    def __init__(self, store: Store, key: str, *, beat: float = BEAT_SECONDS) -> None:
        self._store, self._key, self._beat = store, key, beat
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._write(0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._store.delete(self._key)

    def _write(self, count: int) -> None:
        self._store.put(self._key, json.dumps({"holder": process_identity(), "beat": count}).encode())

    def _keep(self) -> None:
        count = 0
        while not self._stop.wait(self._beat):
            count += 1
            try:
                self._write(count)
            except StorageError as error:
                say(f"heartbeat: {error}")  # the next beat tries again; the commit decides anyway


def wait_until_free(
    store: Store,
    key: str,
    *,
    patience: float = PATIENCE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when nobody alive holds the lease: it is gone, its holder is, or it stayed silent.

    Raises:
        ConflictError: its heartbeat still goes on after ``patience`` seconds.
    """
    seen = store.head(key)
    if seen is None:
        return
    try:
        holder = json.loads(store.get(key).data)["holder"]
    except (StorageError, ValueError, KeyError, TypeError):
        holder = {}
    if is_dead(holder):
        return
    say(f"{store.url}/{key}: another writer was here; watching its heartbeat for {patience:.0f} s")
    waited = last_beat = 0.0
    while waited < patience and waited - last_beat < SILENCE_SECONDS:
        sleep(1.0)
        waited += 1.0
        now = store.head(key)
        if now is None or is_dead(holder):
            return
        if now.tag != seen.tag:
            seen, last_beat = now, waited
    if last_beat and waited - last_beat < SILENCE_SECONDS:
        raise ConflictError(
            f"{store.url}/{key}: another writer (pid {holder.get('pid', '?')}) is alive and owns this run; "
            "wait for it to end, or stop it"
        )
