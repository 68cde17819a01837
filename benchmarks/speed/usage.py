"""Resources used by a process and its descendants, counted by Linux."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

WATCH_SECONDS = 0.05
"""Seconds from one look of a ``MemoryWatch`` to the next."""

_PROC = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is only asked how much it holds
_WAITED_FOR = slice(13, 15)
"""Fields of ``/proc/{pid}/stat`` behind the command: user and system time of children that were waited for."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants.

    Those of ended ones are in steps of a clock tick.
    """
    family = list(tree(pid))
    ticks = sum(sum(map(int, _stat(each)[_WAITED_FOR])) for each in family)
    return sum(map(_own_seconds, family)) + ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds(pid: int) -> float:
    """Return the CPU seconds of a process's threads, in nanosecond steps.

    Ended threads are included; 0.0 where the process is gone.
    """
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the clock's number, by clock_getcpuclockid(3)
    except OSError:
        return 0.0


def ended_cpu_seconds() -> float:
    """Return the CPU seconds of children that were waited for."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def peak_bytes(pid: int) -> int:
    """Return the most memory a process has had resident (``VmHWM``).

    Not ``ru_maxrss``: that begins with the peak of the process which started it.
    """
    return _fields(pid, "status")["VmHWM"]


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its living descendants."""
    yield pid
    try:
        lists = [path.read_text(encoding="ascii") for path in (_PROC / str(pid) / "task").glob("*/children")]
    except OSError:
        return
    for child in " ".join(lists).split():
        yield from tree(int(child))


class MemoryWatch:
    """Watches the memory of a process and its descendants.

    It looks again and again while a ``with`` block runs. Shared memory counts once. Of memory of their own, and shared
    memory, the figure is the sum of their proportional shares (PSS); where more is in ``/dev/shm`` than they have
    mapped, that counts. Of mapped files, such as libraries, the share of a process depends on the other processes of
    the machine: the process that has most of them counts.

    Args:
        pid: of the process.

    Attributes:
        peak: most bytes at any look so far.
    """

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid, self._others = pid, _in_shared_memory()
        self._ended = Event()
        self._thread = Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Self:
        self._look()  # an unreadable file raises here, not in the thread
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            self._look()

    def _look(self) -> None:
        held = [_held(each) for each in tree(self._pid)]
        anonymous = sum(each.anonymous for each in held)
        shared = max(sum(each.shared for each in held), _in_shared_memory() - self._others)
        files = max(sum(each.file_share for each in held), *(each.files for each in held))
        self.peak = max(self.peak, anonymous + shared + files)


class _Held(NamedTuple):
    """Bytes that a process has resident.

    Attributes:
        anonymous: its share of memory without a file.
        shared: its share of shared memory.
        file_share: its share of files.
        files: all of those files that it has.
    """

    anonymous: int = 0
    shared: int = 0
    file_share: int = 0
    files: int = 0


def _held(pid: int) -> _Held:
    """Return the memory of one process.

    One that has ended, waited for or not, has none.
    """
    try:
        rollup, status = _fields(pid, "smaps_rollup"), _fields(pid, "status")
    except (FileNotFoundError, ProcessLookupError):
        return _Held()
    if not rollup:
        return _Held()
    return _Held(rollup["Pss_Anon"], rollup["Pss_Shmem"], rollup["Pss_File"], status.get("RssFile", 0))


def _fields(pid: int, file: str) -> dict[str, int]:
    """Return the lines ``name: number kB`` of a process's file, in bytes."""
    lines = (_PROC / str(pid) / file).read_text(encoding="utf-8", errors="replace").splitlines()
    split = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(number) << 10 for name, number, _ in split}


def _in_shared_memory() -> int:
    """Return the bytes of all files in ``/dev/shm``.

    Those without a name are included.
    """
    try:
        found = os.statvfs(_SHARED_MEMORY)
    except FileNotFoundError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _stat(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["0"] * _WAITED_FOR.stop
