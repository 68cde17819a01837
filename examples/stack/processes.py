"""Services that outlive the command that starts them.

Any later command can find and stop them.

Every service runs in a session of its own, which is recorded, writes to a log file and carries a mark in its
environment, which everything it starts inherits. A process belongs to a stack by its session or by the mark. So no
process is lost sight of: not a worker whose scheduler was killed, not a task in a session of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MARK = "PBG_STACK"
"""Environment variable that holds the directory of the stack a process belongs to."""
GRACE_SECONDS = 6.0
KILL_SECONDS = 5.0
SESSION_FIELD, BORN_FIELD = 3, 19
"""Indices of session and start time in the fields after the command of ``/proc/{pid}/stat``; index 0 is the state."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, identified by its number and its start time.

    The time, in ticks since boot, distinguishes it from a later process with the same number.
    """

    pid: int
    born: int

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the process that has this number now.

        None if there is none, or if it only waits to be reaped.
        """
        fields = _stat(pid)
        return None if fields is None else cls(pid, int(fields[BORN_FIELD]))

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return Identity.of(self.pid) == self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(frozen=True, slots=True)
class Service:
    """One service of a stack.

    Attributes:
        name: of the service, and of its log and record.
        directory: of the stack.
    """

    name: str
    directory: Path

    @property
    def log(self) -> Path:
        """Output of the service."""
        return self.directory / "logs" / f"{self.name}.log"

    @property
    def _record(self) -> Path:
        return self.directory / "processes" / f"{self.name}.json"

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Identity:
        """Start the service in its own session; it outlives this process."""
        for path in (self.log, self._record):
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                list(command),
                cwd=self.directory,
                env={**environment, MARK: str(self.directory), "SPT_NOENV": "1"},  # setproctitle, spare the mark
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.returncode = 0  # this process never waits for the service, and Python should not complain about that
        identity = Identity.of(process.pid) or Identity(process.pid, 0)
        self._record.write_text(json.dumps({"pid": identity.pid, "born": identity.born}))
        return identity

    def identity(self) -> Identity | None:
        """Return the service's first process while it runs."""
        recorded = self._recorded()
        return recorded if recorded is not None and recorded.alive else None

    @property
    def session(self) -> int | None:
        """Number of the service's session, unless another process has it now.

        The kernel reuses the number of a session only when no process is left in it.
        """
        recorded = self._recorded()
        if recorded is None or Identity.of(recorded.pid) not in {None, recorded}:
            return None
        return recorded.pid

    def _recorded(self) -> Identity | None:
        try:
            record = json.loads(self._record.read_text())
        except FileNotFoundError:
            return None
        return Identity(record["pid"], record["born"])

    def tail(self, lines: int) -> str:
        """Return the last lines of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def services(directory: Path) -> list[Service]:
    """Return every service that was ever started in a stack."""
    return [Service(path.stem, directory) for path in sorted((directory / "processes").glob("*.json"))]


def members(directory: Path) -> Iterator[Identity]:
    """Yield every running process of a stack, also those of other parents."""
    mark = f"{MARK}={directory}".encode()
    sessions = {service.session for service in services(directory)} - {None}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        fields = _stat(pid)
        if fields is None or pid == os.getpid():
            continue
        if int(fields[SESSION_FIELD]) in sessions or mark in _environment(pid):
            yield Identity(pid, int(fields[BORN_FIELD]))


def _stat(pid: int) -> list[str] | None:
    """Return the fields after the command in ``/proc/{pid}/stat``.

    None for a missing process and for a zombie.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it ended meanwhile, or belongs to another user


def stop(directory: Path, *, grace: float = GRACE_SECONDS) -> int:
    """Stop every process of a stack: TERM, then KILL for the rest.

    Returns:
        Number of processes.

    Raises:
        TimeoutError: some cannot be killed (they hang in the kernel).
    """
    stopped = set(members(directory))
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        signalled: set[Identity] = set()
        while remaining := set(members(directory)):
            for identity in remaining - signalled:  # also those that started meanwhile
                identity.signal(number)
            signalled |= remaining
            stopped |= remaining
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
    if remaining:
        raise TimeoutError(f"processes {sorted(each.pid for each in remaining)} do not end")
    for service in services(directory):
        service._record.unlink(missing_ok=True)  # noqa: SLF001 - this module's own
    return len(stopped)
