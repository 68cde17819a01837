"""Connections that are made anew before one key has encrypted too much.

TLS 1.3 has messages that renew the keys of a connection, but OpenSSL sends them only when asked, and Python's ``ssl``
has no way to ask. AES-GCM should encrypt at most 2^24.5 records with one key (RFC 8446, 5.5), some 390 GB of full ones,
which a long training sends. A new connection has new keys.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pbg_tasks.training.ranks.transport.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from pbg_tasks.training.ranks.transport.frames import Array, Into, Message

MOST_RECORDS = 1 << 23
"""Records, of both directions, after which a connection is made anew; a third of the limit, for one message to end."""


class RenewedConnection:
    """Connection for requests, made anew when its keys are used up.

    Any thread may make a request; they are made one after another.

    Args:
        connect: makes a connection to the same service.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect, self._connection = connect, connect()
        self._asking = threading.Lock()

    def request(
        self,
        kind: str,
        /,
        *arrays: Array,
        timeout: float | None,
        into: Into | None = None,
        **fields: Any,  # noqa: ANN401 - any JSON value
    ) -> Message:
        """Send a message and wait for the answer; see ``Connection.request``.

        Raises:
            RankLostError: also where the connection could not be made anew.
        """
        with self._asking:
            if self._connection.records > MOST_RECORDS:
                self._connection.close()
                self._connection = self._connect()
            return self._connection.request(kind, *arrays, timeout=timeout, into=into, **fields)


Requester = Connection | RenewedConnection
"""Connection on which requests are made."""
