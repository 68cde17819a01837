"""End of a connection to a PostgreSQL that has stopped."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

LOOK_SECONDS = 45.0
"""Pause before each attempt to open another connection."""
ANSWER_SECONDS = 10
"""Longest wait for the answer to an attempt."""
MISSED = 3
"""Attempts in a row without an answer, after which the server counts as stopped."""


@contextmanager
def ended_in_silence(psycopg2: ModuleType, destination: str, connection: Any) -> Iterator[None]:  # noqa: ANN401 - untyped
    """End a connection once its server answers no new one.

    The system keeps the connections of a stopped server open (SIGSTOP, ``docker pause``), and statements would wait for
    ever; those that take long are no sign of it.

    Raises:
        StorageError: the connection was ended.
    """
    over, silent = threading.Event(), threading.Event()

    def watch() -> None:
        missed = 0
        while missed < MISSED:
            if over.wait(LOOK_SECONDS):
                return
            missed = 0 if _answers(psycopg2, destination) else missed + 1
        silent.set()
        with suppress(OSError, psycopg2.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=watch, name="postgres", daemon=True).start()
    try:
        yield
    except psycopg2.Error as error:
        if not silent.is_set():
            raise
        raise StorageError(
            f"{destination}: the server has answered no new connection {MISSED} times, so this one was ended; it is "
            "stopped, or its machine hangs: let it go on, then run the export again, which goes on where it ended"
        ) from error
    finally:
        over.set()


def _answers(psycopg2: ModuleType, destination: str) -> bool:
    """Return whether a server answers, be it by a refusal.

    A refusal begins with the severity, a word of the server's language (``lc_messages``), and the client writes two
    spaces after that alone.
    """
    try:
        psycopg2.connect(destination, connect_timeout=ANSWER_SECONDS, application_name="pbg").close()
    except psycopg2.OperationalError as error:
        return ":  " in str(error)
    return True
