"""What a process and all it started have used, as Linux counts it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")
_WAITED_FOR = slice(13, 15)
"""Fields of ``/proc/{pid}/stat`` behind the command: user and system time of children that were waited for."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants: those of ended ones in steps of a clock tick."""
    family = list(tree(pid))
    ticks = sum(sum(map(int, _stat(each)[_WAITED_FOR])) for each in family)
    return sum(map(_own_seconds, family)) + ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds(pid: int) -> float:
    """Return the CPU seconds of a process's threads, ended ones included, to the nanosecond; 0.0 where it is gone."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) would name its clock
    except OSError:
        return 0.0


def peak_bytes(pid: int) -> int:
    """Return the most memory a process has had resident (``VmHWM``).

    Not ``ru_maxrss``: that begins with the peak of the process which started it.
    """
    status = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its living descendants."""
    yield pid
    try:
        lists = [path.read_text(encoding="ascii") for path in (_PROC / str(pid) / "task").glob("*/children")]
    except OSError:
        return
    for child in " ".join(lists).split():
        yield from tree(int(child))


def _stat(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["0"] * _WAITED_FOR.stop
