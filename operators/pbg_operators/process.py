"""Command in a process group of its own.

Its progress is read while it runs, and no process of it is left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LAST_LINES = 20
"""Number of the latest progress lines that are kept for an error message."""


class CommandProcess:
    """One run of a command.

    stderr is read line by line while it runs, stdout when it has ended. When the command itself ends, the rest of its
    process group is killed: a rank that outlives its launcher would hold memory, and the pipe open for ever.

    Args:
        arguments: the command and its arguments; no shell sees them.
        environment: the whole environment of the command.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `finish`; a second pipe would need a reader
        self._process = subprocess.Popen(
            list(arguments),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._watcher = threading.Thread(target=self._sweep, name=f"sweep-{self._process.pid}", daemon=True)
        self._watcher.start()

    def lines(self) -> Iterator[str]:
        """Yield the command's lines on stderr while it runs.

        They are without line ends.
        """
        if self._process.stderr is None:
            raise ValueError("stderr is not a pipe")
        with self._process.stderr as stream:
            for line in stream:
                text = line.rstrip()
                self.last_lines.append(text)
                yield text

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and stdout.

        A negative status is the number of a signal.
        """
        self._watcher.join()
        status = self._process.wait()
        with self._output as output:
            output.seek(0)
            return status, output.read().decode(errors="replace")

    def stop(self, grace: float) -> None:
        """Signal the whole group to end; after ``grace`` seconds, kill it.

        It is safe in a signal handler, and when all processes have ended.
        """
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self._watcher.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)

    def _sweep(self) -> None:
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # The group's number belongs to this command as long as its leader is not reaped, which only `finish` does.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
