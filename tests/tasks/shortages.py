"""Limits for a command of ``pbg`` in a process of its own."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pbg_tasks.cli as command_line
from tests.clocks import HOUR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEADLINE_SECONDS = 60
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Ended:
    """A command that has ended.

    Attributes:
        status: of its process; negative for a signal.
        text: of its standard error.
    """

    status: int
    text: str


def descriptors(spare: int) -> None:
    """Let the process open so many files more."""
    taken = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = (number for number in itertools.count() if number not in taken)
    limit = next(itertools.islice(free, spare, None))  # the listing itself has one more open
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def addresses(megabytes: int) -> None:
    """Let the process map so much memory more."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + megabytes * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def file_size(kilobytes: int) -> None:
    """Let no file grow beyond a size, as a quota does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * KIB, kilobytes * KIB))


def clock_jump(hours: float) -> None:
    """Let the clock jump after some readings of it."""
    true, looks = time.time, iter(range(10**9))
    time.time = lambda: true() + (hours * HOUR if next(looks) > 3 else 0.0)
    time.time_ns = lambda: int(time.time() * 1e9)


def fill(disk: Path, kilobytes: int) -> Path:
    """Fill a disk except for some space; return the file that does."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(disk).free - kilobytes * KIB))
    return filler


def pbg(
    arguments: Sequence[str | Path], limit: Callable[[], None] = lambda: None, scratch: Path | None = None
) -> Ended:
    """Run a command in a fork, which need not import anything heavy."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 99
        try:
            os.dup2(writing, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stderr, sys.stdout = os.fdopen(2, "w", closefd=False), os.fdopen(1, "w", closefd=False)
            sys.argv = ["pbg", *map(str, arguments)]
            if scratch is not None:
                os.environ["PBG_SCRATCH"] = str(scratch)
            signal.alarm(DEADLINE_SECONDS)  # a command that hangs is ended by it
            limit()
            command_line.main()
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
        finally:
            try:
                sys.stderr.flush()
            finally:
                os._exit(status)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as pipe:
        text = pipe.read()
    return Ended(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text)
