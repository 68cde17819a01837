"""Listener of a rank, which offers services by name, and ``connect``."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
import traceback
from typing import TYPE_CHECKING, Self

from pbg_tasks.errors import ConfigError, PbgError, RankLostError
from pbg_tasks.progress import say
from pbg_tasks.training.ranks.transport.connection import LIMIT, Connection
from pbg_tasks.training.ranks.transport.door import Door
from pbg_tasks.training.ranks.transport.frames import Message
from pbg_tasks.training.ranks.transport.handshake import Credentials, Peer, admit, introduce
from pbg_tasks.training.ranks.transport.tls import SecureStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pbg_tasks.training.ranks.transport.handshake import Stream

    Service = Callable[[Connection], None]

__all__ = ["Address", "Connection", "Credentials", "Listener", "Message", "Peer", "connect"]

Address = tuple[str, int]

_BACKLOG = 1024  # connections that wait in the system's queue
_HANDSHAKES = 64  # at once, of connections that began with a hello of this run
_HANDSHAKE_SECONDS = 5.0  # for the hello, and again for the rest
_CALL_SECONDS = 3.0  # for one attempt, as the system waits longer before each of its own
_PAUSES = (0.05, 0.1, 0.2, 0.5)  # seconds before further attempts; the last one is repeated
_REFUSALS_LOGGED = 256  # addresses
_END_SECONDS = 5.0  # for the services to notice that a listener was closed


def connect(
    address: Address, credentials: Credentials, service: str, *, timeout: float, limit: int = LIMIT
) -> Connection:
    """Connect to a service of another rank.

    An attempt that is cut off before the other end has answered is repeated, because a listener with many strange
    connections may drop one whose first bytes are late.

    Args:
        address: address of its ``Listener``.
        credentials: credentials of this process.
        service: name of the service.
        timeout: seconds in total.
        limit: most bytes of arrays in one message.

    Raises:
        ConfigError: the other end has another token, trains another spec, lacks the service or is no rank at all.
        RankLostError: there is no answer, or none in time.
    """
    where = f"{service!r} at {address[0]}:{address[1]}"
    deadline = time.monotonic() + timeout
    for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
        try:
            return _connect(address, credentials, service, deadline - time.monotonic(), limit)
        except TimeoutError:
            lost = RankLostError(f"{where}: no answer for {timeout:g} s")
        except OSError as error:
            raise RankLostError(f"{where}: no answer ({error.strerror})") from None
        except RankLostError as error:
            lost = RankLostError(f"{where}: {error}")
        except PbgError as error:
            raise type(error)(f"{where}: {error}") from None
        if time.monotonic() + pause > deadline:
            raise lost
        time.sleep(pause)
    raise RuntimeError("attempts came to an end: a bug")


def _connect(address: Address, credentials: Credentials, service: str, seconds: float, limit: int) -> Connection:
    """Make one attempt to connect.

    Raises:
        OSError: the other end cannot be reached; a TimeoutError, within the time.
    """
    deadline = time.monotonic() + seconds
    stream = socket.create_connection(address, min(seconds, _CALL_SECONDS))
    try:
        used = _prepared(stream, credentials, server=False)
        peer = introduce(used, credentials, service, timeout=deadline - time.monotonic())
        return Connection(used, peer, limit=limit)
    except BaseException:
        stream.close()
        raise


class Listener:
    """Access of this run's ranks to the services of a process.

    Other connections are refused, and the refusal is logged once per address.

    It listens from its construction to ``close``, or the end of its ``with`` block.

    Args:
        credentials: credentials of this process.
        services: services by name. Each is called in a thread of its own with every connection that requests it, and
            returns when the connection has ended (or raises a RankLostError). Any other error is sent to the peer, and
            logged.
        host: the one address under which others reach this process.
        limit: most bytes of arrays in one message.

    Attributes:
        address: host and port of the listener.

    Raises:
        ConfigError: the host is no address of this machine.
    """

    def __init__(
        self, credentials: Credentials, services: Mapping[str, Service], *, host: str, limit: int = LIMIT
    ) -> None:
        self._credentials, self._services = credentials, dict(services)
        self._limit = limit
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(f"cannot listen at {host}: {error.strerror}; is GLOO_SOCKET_IFNAME right?") from None
        self.address: Address = (host, self._socket.getsockname()[1])
        self._closed = threading.Event()
        self._handshakes = threading.Semaphore(_HANDSHAKES)
        self._lock = threading.Lock()
        self._serving: dict[Connection, threading.Thread] = {}
        self._refused: set[str] = set()
        door = Door(
            self._socket, credentials.token, patience=_HANDSHAKE_SECONDS, admit=self._let_in, refuse=self._refuse
        )
        self._thread = threading.Thread(target=door.run, name="listener", daemon=True)
        self._thread.start()

    def offer(self, services: Mapping[str, Service]) -> None:
        """Offer more services."""
        self._services.update(services)

    def close(self) -> None:
        """Stop listening, end all connections, and wait briefly for their services."""
        with self._lock:
            self._closed.set()
            serving = dict(self._serving)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which wakes up the thread
        self._thread.join()
        self._socket.close()
        for connection in serving:
            connection.close()
        deadline = time.monotonic() + _END_SECONDS
        for thread in serving.values():
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0))

    def _let_in(self, stream: socket.socket, host: str, begun: bytes) -> None:
        """Examine a connection that began with a hello in a new thread."""
        if not self._handshakes.acquire(blocking=False):
            stream.close()  # its rank tries again
            return
        try:
            threading.Thread(
                target=self._examine, args=(stream, host, begun), name=f"rank at {host}", daemon=True
            ).start()
        except RuntimeError:  # too many threads exist at the moment
            self._handshakes.release()
            stream.close()

    def _examine(self, stream: socket.socket, host: str, begun: bytes) -> None:
        try:
            used = _prepared(stream, self._credentials, server=True)
            peer, service = admit(used, self._credentials, self._services, timeout=_HANDSHAKE_SECONDS, begun=begun)
            connection = Connection(used, peer, limit=self._limit)
        except (PbgError, OSError) as error:
            stream.close()
            self._refuse(host, str(error))
            return
        finally:
            self._handshakes.release()
        with connection:
            self._serve(connection, service)

    def _refuse(self, host: str, why: str) -> None:
        with self._lock:
            known = host in self._refused or len(self._refused) == _REFUSALS_LOGGED
            if not known:
                self._refused.add(host)
        if not known:
            say(f"refused a connection from {host}: {why}")

    def _serve(self, connection: Connection, service: str) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            self._serving[connection] = threading.current_thread()
        try:
            self._services[service](connection)
        except Exception as error:  # noqa: BLE001 - the peer waits for an answer, whatever the error is
            if connection.ended and isinstance(error, RankLostError):
                return  # the end of a connection is no event here, because membership decides whether a rank may leave
            expected = isinstance(error, PbgError)
            say(f"{service} for {connection.peer}: {error if expected else traceback.format_exc()}")
            connection.fail(error)
        finally:
            with self._lock:
                del self._serving[connection]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _prepared(stream: socket.socket, credentials: Credentials, *, server: bool) -> Stream:
    """Send small messages at once, and detect a vanished machine in silence.

    Returns:
        The socket, which with certificates can be encrypted.
    """
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):  # Linux has them
            stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    certificates = credentials.certificates
    return stream if certificates is None else SecureStream(stream, certificates, server=server)
