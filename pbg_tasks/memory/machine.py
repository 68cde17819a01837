"""Memory of this process and its limit, and its CPUs.

The figures are Linux's own, in bytes.
"""

from __future__ import annotations

import math
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pbg_tasks.errors import ResourceError
from pbg_tasks.progress import human_count, say

if TYPE_CHECKING:
    from pbg_tasks.memory.forecast import Forecast

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_RESET_PEAK = "5"  # proc(5), clear_refs
_UNLIMITED = {"max", "-1"}


def resident_bytes() -> int | None:
    """Return the memory of this process now.

    None where the system does not report it.
    """
    return read_field(PROC / "self/status", "VmRSS")


def peak_bytes() -> int:
    """Return the peak memory of this process.

    It counts since the process began, or since ``forget_peak``.
    """
    # ru_maxrss comes second, because a process that was forked from a larger one inherits that one's value.
    return read_field(PROC / "self/status", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peak() -> None:
    """Restart the count of ``peak_bytes``, where the system allows it."""
    with suppress(OSError):
        (PROC / "self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use.

    It follows from its affinity, and from the shares of its cgroups.
    """
    shares = [limit.split() for limit in _cgroup_limits("cpu.max")]
    older = zip(_cgroup_limits("cpu.cfs_quota_us", "cpu"), _cgroup_limits("cpu.cfs_period_us", "cpu"), strict=False)
    given = [math.ceil(int(quota) / int(period)) for quota, period in (*shares, *older) if quota not in _UNLIMITED]
    return max(1, min([len(os.sched_getaffinity(0)), *given]))


def usable_bytes(processes: int = 1) -> int | None:
    """Return the total memory that this process may have.

    It is the free memory and its own, within its limits. They are its cgroup's, and that of its address space (``ulimit
    -v``).

    Args:
        processes: number of processes that begin at this time on this machine, in this cgroup, and get equal parts.

    Returns:
        Bytes; None where the system does not report them.
    """
    free = read_field(PROC / "meminfo", "MemAvailable")
    given = (*_cgroup_limits("memory.max"), *_cgroup_limits("memory.limit_in_bytes", "memory"))
    limits = [int(limit) // processes for limit in given if limit not in _UNLIMITED]
    limits += [] if free is None else [free // processes + (resident_bytes() or 0)]
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:  # each process has its own limit
        unused = (read_field(PROC / "self/status", "VmSize") or 0) - (resident_bytes() or 0)
        limits.append(addresses - unused)
    return min(limits, default=None)


def check_fits(forecast: Forecast, *, ignore: bool = False, processes: int = 1) -> None:
    """Report a task's memory, and refuse a task that does not fit.

    The system would end such a task.

    Args:
        forecast: of the task.
        ignore: begin it all the same.
        processes: number of processes that begin with it on this machine, each of which may have an equal part.

    Raises:
        ResourceError: it needs more than this process may have.
    """
    usable, each = usable_bytes(processes), f" by each of {processes} processes" if processes > 1 else ""
    available = "" if usable is None else f" of {human_count(usable)}B that may be used here{each}"
    process = sum(line.size for line in forecast.lines if line.what == "process")
    itself = f" ({human_count(process)}B of them the process itself)" if process else ""
    say(f"{forecast.task}: needs up to {human_count(forecast.peak)}B of memory{itself}{available}")
    if usable is None or forecast.peak <= usable:
        return
    largest = max(forecast.lines, key=lambda line: line.size)
    text = (
        f"{forecast.task} would take {human_count(forecast.peak)}B of memory at its peak, {human_count(largest.size)}B "
        f"of them for {largest.what}, where {human_count(usable)}B may be used{each}"
    )
    if not ignore:
        raise ResourceError(
            f"{text}; change {', '.join(forecast.keys)}, or begin all the same: `pbg train --ignore-memory`"
        )
    say(f"warning: {text}")


def _cgroup_limits(file: str, controller: str = "") -> list[str]:
    """Return a file's values in this process's cgroup and its parents.

    There are none where the system has no such cgroups.

    Args:
        file: name of the file.
        controller: of cgroups v1, which have a tree each; empty: v2.
    """
    try:
        entries = (PROC / "self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    listed = (entry.split(":", 2) for entry in entries)
    own = next((path for _, names, path in listed if controller in names.split(",")), None)
    if own is None:
        return []
    root = CGROUPS / controller
    place = root / own.removeprefix("/")
    limits = []
    for directory in (place, *place.parents):
        with suppress(OSError):  # no such file, as in the outermost cgroup
            limits.append((directory / file).read_text(encoding="ascii").strip())
        if directory == root:
            break
    return limits


def read_field(path: Path, name: str) -> int | None:
    """Return a field of a ``Name:  12 kB`` file, in bytes."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = next((line.split() for line in lines if line.startswith(f"{name}:")), None)
    return int(found[1]) * 1024 if found else None
