"""One authenticated connection between two ranks."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from pbg_tasks.errors import BY_EXIT_CODE, EvictedError, PbgError, RankLostError, ResourceError
from pbg_tasks.training.ranks.transport import frames
from pbg_tasks.training.ranks.transport.tls import SecureStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pbg_tasks.training.ranks.transport.frames import Array, Into, Message
    from pbg_tasks.training.ranks.transport.handshake import Peer, Stream

LIMIT = 64 << 30
"""Default limit of the bytes of arrays in one message."""

_PATIENCE = 60.0  # seconds in which a peer has to accept some of the data sent to it
_FOREVER = 1e6  # seconds; a socket without any timeout would make its duplicate, too, wait without one
_LINGER = 5.0  # seconds in which a peer has to accept the error that ends its connection
_SHORT = {errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE}
_SHORTAGES = ("can't allocate memory", "can't start new thread")  # texts of torch and Python


class Connection:
    """Messages to and from a peer.

    Both sides send freely, or one asks and the other answers (``request``).

    Args:
        stream: the socket after its handshake; it belongs to the connection from now on.
        peer: rank at the other end.
        limit: most bytes of arrays in one message.

    Attributes:
        peer: rank at the other end.
        ended: whether nothing more can be received.
    """

    def __init__(self, stream: Stream, peer: Peer, *, limit: int = LIMIT) -> None:
        self.peer = peer
        self.ended = False
        self._limit = limit
        self._incoming, self._outgoing = stream, stream.dup()  # a socket object has one timeout, and two are needed
        self._outgoing.settimeout(_PATIENCE)
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._asking = threading.Lock()

    @property
    def records(self) -> int:
        """Number of records that were encrypted or decrypted; 0 without encryption."""
        return self._incoming.records if isinstance(self._incoming, SecureStream) else 0

    def send(self, kind: str, /, *arrays: Array, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
        """Send a message, from any thread; contiguous arrays are not copied.

        Raises:
            RankLostError: the peer has ended, or has accepted no data for a minute.
            FormatError: the message is invalid; nothing was sent.
        """
        with self._sending, self._watched(_PATIENCE):
            frames.send(self._outgoing, kind, fields, arrays)

    def receive(self, *, timeout: float | None, into: Into | None = None) -> Message:
        """Wait for the next message; for one thread at a time.

        Args:
            timeout: seconds of silence, before the message or within it, after which the peer counts as lost; None: no
                limit.
            into: arrays to fill, or a function that returns one by its index, dtype and shape; None: new arrays.

        Raises:
            RankLostError: the peer has ended or was silent for too long; messages may still be sent to a silent peer.
            FormatError: the data are no message or do not fit ``into``; nothing more can be received.
            ResourceError: there is no memory for the message; nothing more can be received.
        """
        with self._receiving, self._watched(timeout, patient=True):
            if self.ended:
                raise EOFError
            self._incoming.settimeout(_FOREVER if timeout is None else timeout)
            return frames.receive(self._incoming, self._limit, into)

    def request(
        self,
        kind: str,
        /,
        *arrays: Array,
        timeout: float | None,
        into: Into | None = None,
        **fields: Any,  # noqa: ANN401 - any JSON value
    ) -> Message:
        """Send a message and wait for the answer, one thread after another.

        See ``send`` and ``receive``.

        Raises:
            PbgError: the peer answered with an error; class and text are those of the error.
            RankLostError: the peer has ended or was silent for too long; the connection is closed.
        """
        with self._asking:
            try:
                self.send(kind, *arrays, **fields)
                answer = self.receive(timeout=timeout, into=into)
            except BaseException:
                self._end()  # otherwise the next request would get this one's answer
                raise
        if answer.kind == frames.ERROR:
            raise error_of(answer)
        return answer

    def fail(self, error: BaseException) -> None:
        """Send an error as the last message, and wait for its delivery.

        The peer may still be sending.
        """
        with contextlib.suppress(PbgError, OSError):
            self.send(frames.ERROR, **error_fields(error))
            self._outgoing.shutdown(socket.SHUT_WR)
            with self._receiving:
                self._drain(time.monotonic() + _LINGER)

    def close(self) -> None:
        """Close the connection.

        Another thread that sends or waits gets a RankLostError.
        """
        self._end()
        with self._sending:
            self._outgoing.close()
        with self._receiving:
            self._incoming.close()

    def _end(self) -> None:
        self.ended = True
        with contextlib.suppress(OSError):
            self._incoming.shutdown(socket.SHUT_RDWR)

    def _drain(self, deadline: float) -> None:
        scratch = bytearray(1 << 16)
        while (remaining := deadline - time.monotonic()) > 0:
            self._incoming.settimeout(remaining)
            if not self._incoming.recv_into(scratch):
                return

    @contextlib.contextmanager
    def _watched(self, timeout: float | None, *, patient: bool = False) -> Iterator[None]:
        """Convert errors of the socket to the loss of a rank."""
        try:
            yield
        except (OSError, EOFError) as error:
            silent = isinstance(error, TimeoutError)
            if self.ended:
                reason = f"the connection to {self.peer} is closed"
            elif silent:
                reason = f"{self.peer} was silent for {timeout:g} s"
            elif isinstance(error, OSError):
                reason = f"{self.peer} is out of reach ({error.strerror})"
            else:
                reason = f"{self.peer} closed the connection"
            self.ended = True
            if not (silent and patient):
                self._end()
            raise RankLostError(reason) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def known(error: BaseException) -> PbgError:
    """Return an error of this package for any error."""
    if isinstance(error, PbgError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return EvictedError("interrupted from the keyboard")
    text = f"{type(error).__name__}: {error}"
    short = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORT)
    return ResourceError(text) if short or any(sign in text for sign in _SHORTAGES) else PbgError(text)


def error_fields(error: BaseException) -> dict[str, Any]:
    """Return the fields of a message about an error."""
    return {"status": known(error).exit_code, "text": str(known(error))}


def error_of(message: Message) -> PbgError:
    """Return the error of a message with ``error_fields``."""
    status, text = message.fields.get("status"), message.fields.get("text")
    kind = BY_EXIT_CODE.get(status, PbgError) if isinstance(status, int) else PbgError
    return kind(str(text))
