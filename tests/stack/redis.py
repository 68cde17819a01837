"""Redis server of Debian's package, as a service of a stack."""

from __future__ import annotations

import shutil
import socket
import time
from typing import TYPE_CHECKING

from examples.stack.processes import Service

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 30.0


def missing() -> str | None:
    """Name the package missing to run one; None if there is none."""
    return None if shutil.which("redis-server") else "Redis is not installed; apt-get install redis-server"


def start(directory: Path) -> str:
    """Start a server without files on loopback; return its URL.

    The stack of the directory stops it.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {"--port": str(port), "--bind": "127.0.0.1", "--save": "", "--appendonly": "no"}
    command = ["redis-server", *(word for option in options.items() for word in option)]
    Service("redis", directory).start(command, {})
    deadline = time.monotonic() + SECONDS
    while not _answers(port):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Redis does not answer:\n{Service('redis', directory).tail(15)}")
        time.sleep(0.1)
    return f"redis://127.0.0.1:{port}/0"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
