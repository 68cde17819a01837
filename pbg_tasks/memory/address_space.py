"""Limit of a process's address space (``ulimit -v``).

Beyond it, native libraries end the process without a message. DuckDB, OpenBLAS and torch reserve far more addresses
than they use memory, and a reservation that fails in one of their threads is a segmentation fault. Most of the
addresses are glibc's: 64 MB for each of the threads that DuckDB starts, about 20 whatever its setting. Under a limit
the threads share two such arenas instead.
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
_LEAST = 64_000_000  # least memory of a database
_THREAD = 24_000_000  # stack and buffers of a thread of DuckDB or OpenBLAS


def address_limit() -> int | None:
    """Return the limit of this process's addresses in bytes.

    None where there is no limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def free_addresses() -> int | None:
    """Return the number of bytes of addresses below the limit.

    None where there is no limit.
    """
    limit = address_limit()
    return None if limit is None else limit - (read_field(PROC / "self/status", "VmSize") or 0)


def require_addresses(what: str, size: int) -> None:
    """Refuse work that a limit of the address space would end.

    Under a limit that is large enough, make libraries reserve fewer addresses.

    Args:
        what: name of the work.
        size: bytes of addresses that it needs, beside those that are taken.

    Raises:
        ResourceError: fewer are left.
    """
    limit, free = address_limit(), free_addresses()
    if limit is None or free is None:
        return
    with suppress(AttributeError, OSError):  # a C library other than glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's default pool reserves 1 GiB at once
    if free < size:
        needed = limit - free + size
        raise ResourceError(
            f"{what} needs {human_count(needed)}B of address space and the limit of this process is "
            f"{human_count(limit)}B (RLIMIT_AS, `ulimit -v`); raise it to `ulimit -v {-(-needed // 1024)}` or more, or "
            "to unlimited: memory itself is limited by resources.memory_gb and the cgroup"
        )


def limit_hint() -> str:
    """Return a hint for errors of memory under such a limit.

    It is empty without a limit.
    """
    limit = address_limit()
    return "" if limit is None else f"; address space is limited to {human_count(limit)}B, raise `ulimit -v`"


def database_memory(wanted: int, threads: int | None) -> int:
    """Return the number of bytes that a database may use.

    It is the wanted number, or less where a limit of the address space leaves less.

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
