"""TLS 1.3 between two processes with certificates of one authority."""

from __future__ import annotations

import datetime as dt
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable
    from pathlib import Path

_BUFFER = 1 << 18  # bytes of one system call
_DAY = dt.timedelta(days=1)


class Files(NamedTuple):
    """Certificate and key that all processes share, in PEM.

    Attributes:
        authority: that both sides trust.
        certificate: signed by it.
        key: of the certificate.
    """

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, directory: Path) -> Files:
        """Write an authority, and a certificate of it, for one day."""
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
        authority = _draft("authority", keys[0]).add_extension(x509.BasicConstraints(True, 0), critical=True)
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        certificate = _draft("rank", keys[1]).add_extension(names, critical=False)
        pem = serialization.Encoding.PEM
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        files = cls(*(directory / f"{name}.pem" for name in cls._fields))
        files.authority.write_bytes(authority.sign(keys[0], hashes.SHA256()).public_bytes(pem))
        files.certificate.write_bytes(certificate.sign(keys[0], hashes.SHA256()).public_bytes(pem))
        files.key.write_bytes(keys[1].private_bytes(pem, *form))
        return files

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Return settings with which each side checks the other's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.authority)
        context.load_cert_chain(self.certificate, self.key)
        if server:
            context.num_tickets = 0
        return context


def _draft(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, "authority"))
    draft = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return draft.serial_number(x509.random_serial_number()).not_valid_before(now - _DAY).not_valid_after(now + _DAY)


class TlsStream:
    """Methods of a socket that ``frames`` needs, over TLS.

    One thread may send while another receives: OpenSSL's object sees memory only, and a lock guards it.
    """

    def __init__(self, stream: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._goes, server_side=server)
        self._buffer = memoryview(bytearray(_BUFFER))
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._fill()
        self._flush()

    def recv_into(self, view: memoryview) -> int:
        """Receive up to the view's length; 0 at the end."""
        while not (count := self._decrypted(view)):
            if not self._fill():
                return 0
        return count

    def sendmsg(self, parts: Iterable[memoryview]) -> int:
        """Send the beginning of some parts; return its length."""
        sent = 0
        with self._lock:
            for part in parts:
                rest = part[: _BUFFER - sent]
                while rest:
                    count = self._tls.write(rest)
                    sent, rest = sent + count, rest[count:]
        self._flush()
        return sent

    def dup(self) -> TlsStream:
        """Return itself."""
        return self

    def settimeout(self, seconds: float | None) -> None:
        """Set the socket's."""
        self._stream.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """Shut down the socket."""
        self._stream.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._stream.close()

    def _decrypted(self, view: memoryview) -> int:
        got = 0
        with self._lock, suppress(ssl.SSLWantReadError):
            while got < len(view):
                got += int(self._tls.read(len(view) - got, view[got:]))
        return got

    def _fill(self) -> int:
        count = self._stream.recv_into(self._buffer)
        with self._lock:
            self._came.write(self._buffer[:count])
        return count

    def _flush(self) -> None:
        self._stream.sendall(self._goes.read())
