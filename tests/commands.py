"""The ``pbg`` command in a process of its own, started in milliseconds."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_REPOSITORY = Path(__file__).resolve().parents[1]
_STARTING = threading.Lock()


def pbg(
    *arguments: object, environment: Mapping[str, str] | None = None, folder: Path | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return its status and output.

    It has the given environment, or that of this process. A command that must not find a library, or finds modules of
    its test, is to be started anew: ``[sys.executable, "-m", "pbg_tasks", ...]``.
    """
    words = [str(each) for each in arguments]
    request = {
        "arguments": words,
        "environment": dict(os.environ if environment is None else environment),
        "folder": str(folder or Path.cwd()),
    }
    with contextlib.ExitStack() as stack:
        out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        nothing = stack.enter_context(Path(os.devnull).open("rb"))
        connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.settimeout(timeout)
        with _STARTING:  # the first of several threads starts it
            address = _server()
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], [each.fileno() for each in (nothing, out, err)])
        pid = json.loads(connection.recv(64))
        try:
            status = json.loads(connection.recv(64))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        for each in (out, err):
            each.seek(0)
        return subprocess.CompletedProcess(words, status, out.read().decode(), err.read().decode())


@functools.cache
def _server() -> str:
    """Start the server of this process and return its address."""
    address = f"\0pbg-tests-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        command = [sys.executable, "-m", "tests.command_server", str(listener.fileno())]
        server = subprocess.Popen(command, cwd=_REPOSITORY, pass_fds=[listener.fileno()], stdin=subprocess.PIPE)

    def end() -> None:
        server.terminate()
        server.wait()

    atexit.register(end)
    return address
