"""The project's own command, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.speed.usage import ended_cpu_seconds
from pbg_tasks.errors import BY_EXIT_CODE, PbgError

if TYPE_CHECKING:
    from pathlib import Path

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall and CPU seconds by the name of the work."""

    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, what: str, wall: float, cpu: float) -> None:
        """Add to the seconds of earlier work under the same name."""
        total = self.seconds.setdefault(what, {"wall": 0.0, "cpu": 0.0})
        total["wall"] = round(total["wall"] + wall, 1)
        total["cpu"] = round(total["cpu"] + cpu, 1)


@dataclass(frozen=True, slots=True)
class Pbg:
    """Runs ``pbg`` in one directory.

    The relative paths of a config refer to it.

    Attributes:
        directory: working directory of the commands.
        clock: takes the seconds.
    """

    directory: Path
    clock: Clock

    def __call__(self, what: str, *arguments: str) -> Result:
        """Run one command with ``--json`` and return its result.

        Its progress goes to stderr.

        Args:
            what: name under which its seconds are counted.
            *arguments: of the command.

        Raises:
            PbgError: the command failed; its kind is that of the exit status.
        """
        command = [sys.executable, "-m", "pbg_tasks", *arguments, "--json"]
        started, used = time.monotonic(), ended_cpu_seconds()
        done = subprocess.run(command, cwd=self.directory, stdout=subprocess.PIPE, text=True, check=False)
        self.clock.add(what, time.monotonic() - started, ended_cpu_seconds() - used)
        if done.returncode:
            kind = BY_EXIT_CODE.get(done.returncode, PbgError)
            raise kind(f"pbg {' '.join(arguments)}: ended with status {done.returncode}; its message stands above")
        result: Result = json.loads(done.stdout)
        return result
