"""A socket whose data is encrypted from some moment on.

TLS 1.3 by Python's ``ssl``: both ends show a certificate and check the other's.
"""

from __future__ import annotations

import ssl
import threading
import time
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import ConfigError, RankLostError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from pbg_tasks.training.ranks.transport.certificates import Certificates

BLOCK = 1 << 18
"""Bytes that one system call sends or receives."""
_RECORD = 1 << 14  # most bytes of a record
_ALERT = "_ALERT_"  # in the reason of an error that the other end reported


class SecureStream:
    """Socket that carries plain data until ``secure``.

    It has the methods of a socket that a ``Connection`` and the handshake use. One thread may send while another
    receives: OpenSSL's object, which allows one at a time, reads and writes memory only, under a lock.

    Args:
        stream: a connected socket, which belongs to the stream from now on.
        certificates: of this process.
        server: whether this is the listening end.
    """

    def __init__(self, stream: socket.socket, certificates: Certificates, *, server: bool) -> None:
        self._stream, self._certificates = stream, certificates
        self._server = server
        self._session: _Session | None = None
        self._block: memoryview | None = None  # what came and is not decrypted yet

    def secure(self, deadline: float) -> bytes:
        """Encrypt all that follows.

        The listening end has to do the same.

        Args:
            deadline: of ``time.monotonic``.

        Returns:
            Digests of the certificates of the listening and of the connecting end, equal at both ends unless a third
            party is between them.

        Raises:
            ConfigError: the other end's certificate is none of this gang, or it speaks no TLS.
            RankLostError: it hung up.
            OSError: the connection failed; a TimeoutError, after the deadline.
        """
        own = self._certificates
        session = _Session(own.listening if self._server else own.connecting, server=self._server)
        try:
            while going := not session.shake_hands():
                self._stream.settimeout(max(deadline - time.monotonic(), 1e-3))
                self._flush(session)
                if not self._fill(session):
                    break
            self._flush(session)
        except ssl.SSLError as error:
            with suppress(OSError):
                self._flush(session)  # the alert, by which the other end learns of it
            raise ConfigError(reason_of(error)) from None
        if going:
            raise RankLostError("it hung up before it was known")
        self._session = session
        digests = [own.digest, session.peer_digest()]
        return b"".join(digests if self._server else reversed(digests))

    @property
    def records(self) -> int:
        """Number of records that were encrypted and decrypted, at most."""
        return 0 if self._session is None else self._session.records

    def recv_into(self, view: memoryview | bytearray) -> int:
        """Receive at most as much as there is place for.

        Returns:
            Number of bytes; 0 at the end.
        """
        if self._session is None:
            return self._stream.recv_into(view)
        place = memoryview(view)
        while not (count := self._session.decrypted(place)) and place:
            if not self._fill(self._session):
                return 0
        return count

    def recv(self, size: int) -> bytes:
        """Receive at most so many bytes; none at the end."""
        data = bytearray(size)
        return bytes(data[: self.recv_into(data)])

    def sendmsg(self, parts: Iterable[memoryview]) -> int:
        """Send the beginning of some parts.

        Returns:
            Its length.
        """
        if self._session is None:
            return self._stream.sendmsg(parts)
        sent = self._session.encrypt(parts)
        self._flush(self._session)
        return sent

    def sendall(self, data: bytes) -> None:
        """Send everything."""
        view = memoryview(data)
        while view:
            view = view[self.sendmsg([view]) :]

    def dup(self) -> SecureStream:
        """Return the same stream with a timeout of its own."""
        other = SecureStream(self._stream.dup(), self._certificates, server=self._server)
        other._session = self._session
        return other

    def settimeout(self, seconds: float) -> None:
        """Limit the seconds of each call."""
        self._stream.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """Shut the socket down.

        What was cut off is known by the messages that are not whole, as without encryption.
        """
        self._stream.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._stream.close()

    def _fill(self, session: _Session) -> int:
        if self._block is None:
            self._block = memoryview(bytearray(BLOCK))
        count = self._stream.recv_into(self._block)
        session.take(self._block[:count])
        return count

    def _flush(self, session: _Session) -> None:
        if data := session.give():
            self._stream.sendall(data)


class _Session:
    """State of an encrypted connection, which several threads may use."""

    def __init__(self, context: ssl.SSLContext, *, server: bool) -> None:
        self._lock = threading.Lock()
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._goes, server_side=server)
        self.records = 0

    def shake_hands(self) -> bool:
        """Continue the handshake; True when it has ended."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def peer_digest(self) -> bytes:
        return sha256(self._tls.getpeercert(binary_form=True) or b"").digest()

    def take(self, data: memoryview) -> None:
        """Take encrypted data that came."""
        with self._lock:
            self._came.write(data)

    def give(self) -> bytes:
        """Return encrypted data to send."""
        with self._lock:
            return self._goes.read()

    def decrypted(self, view: memoryview) -> int:
        """Fill a view with what came, and return how much that is."""
        got = 0
        with self._lock, suppress(ssl.SSLWantReadError):
            place: Any = view
            while place and (count := int(self._tls.read(len(place), place))):
                got, place = got + count, place[count:]
                self.records += 1  # OpenSSL returns data of one record at a time
        return got

    def encrypt(self, parts: Iterable[memoryview]) -> int:
        """Encrypt the beginning of some parts, and return its length."""
        done = 0
        with self._lock:
            for part in parts:
                rest = part[: BLOCK - done]
                while rest:
                    count = self._tls.write(rest)
                    done, rest = done + count, rest[count:]
                    self.records += -(-count // _RECORD)
        return done


def reason_of(error: ssl.SSLError) -> str:
    """Return why a connection cannot be encrypted, and the repair."""
    reason = str(error.reason or error)
    repair = "give every rank of a gang certificates of one authority, as --ranks and the Kubernetes launcher do"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this gang ({error.verify_message}): {repair}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return f"it shows no certificate: {repair}"
    if _ALERT in reason:
        alert = reason.partition(_ALERT)[2].replace("_", " ").lower()
        return f"it refuses this rank's certificate ({alert}): {repair}"
    return f"the connection cannot be encrypted ({reason.replace('_', ' ').lower()}): {repair}"
