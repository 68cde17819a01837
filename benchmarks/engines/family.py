"""CPU time and memory of a command and its descendants."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.speed.usage import ended_cpu_seconds, peak_bytes, tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOOK_SECONDS = 0.5
"""Seconds from one look at the memory to the next: a look walks all threads, of which Java has many."""

_SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` of prctl(2)."""
_KINDS = {
    "org.apache.spark.executor.CoarseGrainedExecutorBackend": "executor's Java",
    "org.apache.spark.deploy.SparkSubmit": "driver's Java",
    "pyspark.daemon": "executor's Python",
}
"""Kinds of Spark's processes, by a word of their command line."""


class Usage(NamedTuple):
    """Resources of one command.

    Attributes:
        wall: seconds.
        cpu: seconds of all processes.
        peaks: most bytes resident of one process of each kind.
    """

    wall: float
    cpu: float
    peaks: dict[str, int]


def adopt() -> None:
    """Become the parent of every orphan among the descendants.

    The time of an orphan, such as the driver's Java, is then counted, too.

    Raises:
        OSError: the system is not Linux.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def run(command: Sequence[str], environment: Mapping[str, str], output: Path) -> Usage:
    """Run a command to the end of all its processes.

    This process has no other children: it waits for all.

    Args:
        command: program and arguments.
        environment: of the command.
        output: file that gets what it prints.

    Raises:
        RuntimeError: it failed; the message has the end of what it printed.
    """
    peaks: dict[str, int] = {}
    began, before = time.perf_counter(), ended_cpu_seconds()
    with output.open("wb") as file:
        child = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        while child.returncode is None:
            look(peaks)
            with suppress(subprocess.TimeoutExpired):
                child.wait(LOOK_SECONDS)
    if child.returncode:
        said = output.read_text(errors="replace")[-4000:]
        raise RuntimeError(f"{shlex.join(command)}: exit status {child.returncode}\n{said}")
    while _left():
        look(peaks)
        time.sleep(LOOK_SECONDS / 10)
    return Usage(time.perf_counter() - began, ended_cpu_seconds() - before, peaks)


def look(peaks: dict[str, int]) -> None:
    """Raise the peak of each kind of process below this one."""
    for pid in tree(os.getpid()):
        if pid == os.getpid():
            continue
        try:
            words = (Path("/proc") / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
            peak = peak_bytes(pid)
        except (OSError, KeyError):  # it has ended
            continue
        kind = next((kind for word, kind in _KINDS.items() if word in words), "the command")
        peaks[kind] = max(peaks.get(kind, 0), peak)


def _left() -> bool:
    """Wait for children that have ended; return whether one is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
