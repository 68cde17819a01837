"""The limit of a process's address space (``ulimit -v``), beyond which native libraries end it without a word.

DuckDB, OpenBLAS and torch reserve far more addresses than they use memory, and a reservation that fails in one of their
threads is a segmentation fault. By far the most are glibc's: 64 MB for each of the threads that DuckDB starts, about 20
whatever its setting. Under a limit the threads share two such arenas instead.
"""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress

from pbg_tasks.errors import ResourceError
from pbg_tasks.memory.machine import PROC, read_field
from pbg_tasks.progress import human_count

_M_ARENA_MAX = -8  # mallopt(3)
_ARENAS = 2
_DATABASE = 192_000_000  # DuckDB with its libraries and one small query
_LEAST = 64_000_000  # of memory, for a database
_THREAD = 24_000_000  # of DuckDB or OpenBLAS: stack and buffers


def address_limit() -> int | None:
    """Return how many bytes of addresses this process may have; None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def free_addresses() -> int | None:
    """Return how many bytes of addresses are left below the limit; None without one."""
    limit = address_limit()
    return None if limit is None else limit - (read_field(PROC / "self/status", "VmSize") or 0)


def require_addresses(what: str, size: int) -> None:
    """Refuse to begin what a limit of the address space would end, and spend less under one that is wide enough.

    Args:
        what: needs them.
        size: bytes of addresses, beside those that are taken.

    Raises:
        ResourceError: fewer are left.
    """
    limit, free = address_limit(), free_addresses()
    if limit is None or free is None:
        return
    with suppress(AttributeError, OSError):  # a C library other than glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # its own reserves 1 GiB at once
    if free < size:
        needed = limit - free + size
        raise ResourceError(
            f"{what} needs {human_count(needed)}B of address space and the limit of this process is "
            f"{human_count(limit)}B (RLIMIT_AS, `ulimit -v`); raise it to `ulimit -v {-(-needed // 1024)}` or more, or "
            "to unlimited: memory itself is limited by resources.memory_gb and the cgroup"
        )


def limit_hint() -> str:
    """Return what to add to an error of memory under a limit of the address space; empty without one."""
    limit = address_limit()
    return "" if limit is None else f"; address space is limited to {human_count(limit)}B, raise `ulimit -v`"


def database_memory(wanted: int, threads: int | None) -> int:
    """Return how many bytes a database may use: what is wanted, or what a limit of the address space leaves of it.

    Args:
        wanted: bytes.
        threads: of the database; None means one for each CPU.

    Raises:
        ResourceError: a limit leaves too little to open a database at all.
    """
    overhead = _DATABASE + _THREAD * (threads or len(os.sched_getaffinity(0)))
    require_addresses("preparation", overhead + _LEAST)
    free = free_addresses()
    return wanted if free is None else min(wanted, free - overhead)
