"""Entrance of a listener, which separates ranks from other connections.

Connections wait here until their first bytes show that they come from a rank. One thread accepts and reads, without
waiting for any single connection, so a connection that is silent, slow or from a port scanner costs an entry in a table
and no thread. Wrong first bytes end a connection at once. When the table is full, the oldest connection of the address
with most connections is closed. A rank sends its hello with the connection and leaves the table as soon as the hello
arrives. So a flood would have to fill the whole table before that to remove it, and ``connect`` then tries again. A
flood from another address cannot remove it at all.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbg_tasks.errors import ConfigError, PbgError, RankLostError
from pbg_tasks.training.ranks.transport.handshake import HELLO_BYTES, is_hello, turn_away

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_MOST_STRANGERS, _FEWEST_STRANGERS = 256, 8
_SHARE_OF_FILES = 4  # divisor of the files that the process may have open, for strangers
_ACCEPTED_AT_ONCE = 64  # before those that are present are read
_PAUSE = 0.05  # seconds, where nothing is left to close and no file can be opened
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(eq=False, slots=True)
class _Stranger:
    """Connection whose first bytes have not arrived yet."""

    stream: socket.socket
    host: str
    deadline: float
    begun: bytes = b""


class Door:
    """Entrance for connections that begin with a hello of this run.

    Args:
        listener: a listening socket; it belongs to the caller, and ``run`` returns after it is shut down.
        token: the gang's secret.
        patience: seconds in which a hello must arrive.
        admit: called with each connection that began with a hello, its address and its first bytes.
        refuse: called with the address of every other connection, before it is closed, and the reason.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: bytes,
        *,
        patience: float,
        admit: Callable[[socket.socket, str, bytes], None],
        refuse: Callable[[str, str], None],
    ) -> None:
        self._listener, self._token = listener, token
        self._patience = patience
        self._admit, self._refuse = admit, refuse
        self._strangers: dict[_Stranger, None] = {}  # the oldest first
        self._most = most_strangers()

    def run(self) -> None:
        """Accept connections until the listener is shut down.

        Connections that wait are closed then.
        """
        self._listener.setblocking(False)
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in self._selector.select(self._wait()):
                    if key.data is None:
                        if not self._accept():
                            for stranger in list(self._strangers):
                                self._forget(stranger).close()
                            return
                    elif key.data in self._strangers:  # otherwise it was closed since
                        self._read(key.data)
                self._expire()

    def _wait(self) -> float | None:
        oldest = next(iter(self._strangers), None)
        return None if oldest is None else max(oldest.deadline - time.monotonic(), 0.0)

    def _accept(self) -> bool:
        """Accept waiting connections; False when the listener is shut down."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                stream, (host, *_) = self._listener.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return False
                if error.errno in _NO_FILES and not self._push_out():
                    time.sleep(_PAUSE)
                return True  # or this connection has already ended
            stream.setblocking(False)
            stranger = _Stranger(stream, host, time.monotonic() + self._patience)
            self._strangers[stranger] = None
            self._selector.register(stream, selectors.EVENT_READ, stranger)
            self._read(stranger)
            if len(self._strangers) > self._most:
                self._push_out()
        return True

    def _read(self, stranger: _Stranger) -> None:
        """Read a connection's data, and admit or refuse it where they suffice."""
        try:
            came = stranger.stream.recv(HELLO_BYTES - len(stranger.begun))
            if not came:
                raise RankLostError("it hung up before it was known")
            stranger.begun += came
            known = is_hello(stranger.begun, self._token)
        except BlockingIOError:
            return
        except ConfigError as error:
            turn_away(stranger.stream, stranger.begun)
            self._close(stranger, str(error))
        except (PbgError, OSError) as error:
            self._close(stranger, str(error))
        else:
            if known:
                self._admit(self._forget(stranger), stranger.host, stranger.begun)

    def _push_out(self) -> bool:
        """Close the oldest connection of the address that has most.

        Returns:
            False where there is no connection.
        """
        if not self._strangers:
            return False
        busiest, _ = Counter(stranger.host for stranger in self._strangers).most_common(1)[0]
        oldest = next(stranger for stranger in self._strangers if stranger.host == busiest)
        self._read(oldest)  # its hello may have arrived since it was read last
        if oldest in self._strangers:
            self._close(oldest, "too many silent connections, and it was the oldest")
        return True

    def _expire(self) -> None:
        now = time.monotonic()
        while (oldest := next(iter(self._strangers), None)) is not None and oldest.deadline <= now:
            self._close(oldest, f"it was not known after {self._patience:g} s")

    def _close(self, stranger: _Stranger, why: str) -> None:
        with self._forget(stranger):
            self._refuse(stranger.host, why)

    def _forget(self, stranger: _Stranger) -> socket.socket:
        del self._strangers[stranger]
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stranger.stream)
        return stranger.stream


def most_strangers() -> int:
    """Return the limit of connections that wait for their hello.

    It is a share of the files that this process may open.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MOST_STRANGERS
    return min(max(files // _SHARE_OF_FILES, _FEWEST_STRANGERS), _MOST_STRANGERS)
