"""A PostgreSQL server of Debian's package, for the time of tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLE = "airflow"
OWNER = "postgres"
"""The server refuses to run as root; its package creates this user."""
DRIVERS = ("psycopg2", "asyncpg")


def programs() -> Path | None:
    """Return the folder of the server's newest programs; None if not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return found[-1] if found else None


def missing() -> str | None:
    """Name the packages missing to run one; None if there are none."""
    if programs() is None:
        return "PostgreSQL is not installed; apt-get install postgresql"
    absent = [name for name in DRIVERS if find_spec(name) is None]
    return f"Airflow's driver {absent[0]} is not installed" if absent else None


@contextmanager
def server() -> Iterator[str]:
    """Run a server with an empty database; yield its SQLAlchemy URL."""
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))
    owner = OWNER if os.geteuid() == 0 else None
    if owner:
        shutil.chown(directory, owner, owner)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def run(program: str, *arguments: str) -> None:
        command = [str((programs() or Path()) / program), *arguments]
        subprocess.run(command, user=owner, cwd=directory, check=True, stdout=subprocess.DEVNULL, timeout=60)

    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={directory} -c fsync=off"
    data = f"--pgdata={directory / 'data'}"
    run("initdb", data, "--auth=trust", f"--username={ROLE}", "--no-sync")
    run("pg_ctl", data, "-w", f"--log={directory / 'log'}", "-o", options, "start")
    try:
        run("createdb", "--host=127.0.0.1", f"--port={port}", f"--username={ROLE}", ROLE)
        yield f"postgresql+psycopg2://{ROLE}@127.0.0.1:{port}/{ROLE}"
    finally:
        run("pg_ctl", data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(directory, ignore_errors=True)
