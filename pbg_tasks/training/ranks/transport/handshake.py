"""Handshake of two ranks: an early proof, then mutual challenge and response.

The connecting side begins with a hello: a greeting with a fresh nonce, and an HMAC-SHA256 of it with the run's token.
These first bytes grant nothing, because they could be replayed, but a listener separates ranks from strangers by them
at no cost (``door``). It answers with a greeting of its own. Then the connecting side proves with an HMAC-SHA256 over
both greetings that it has the token, and only then does the listening side prove the same. The token is never
transferred, and a proof is worthless in any other conversation, because its nonces differ. A stranger learns nothing
from a rank that listens, not even a proof against which to test guesses.

Ranks with certificates (``certificates``) encrypt everything after the hello, which announces it. The proofs then also
cover the certificates of both ends, so that a third party with a certificate of its own cannot relay them. Without
certificates the handshake authenticates a connection when it opens, and nothing that follows is encrypted or signed:
the network between ranks has to be private to the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from pbg_tasks.errors import ConfigError, RankLostError
from pbg_tasks.training.ranks.transport.tls import SecureStream, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pbg_tasks.training.ranks.transport.certificates import Certificates

    Stream = socket.socket | SecureStream

Given = TypeVar("Given")
Made = TypeVar("Made")
Role = Literal["trainer", "partition-server"]

_ROLES: tuple[Role, ...] = ("trainer", "partition-server")
_MAGIC = b"PBGh\x03"  # the last byte is the version
_REFUSAL = b"PBGr\x03"  # replaces a greeting, in answer to a hello without the token
_UNLIKE = b"PBGu\x03"  # the same, where only one end has certificates
_SECURE = b"PBGs\x03"  # answers a hello that announces encryption: it begins now
_GREETING = struct.Struct("!5s32s32sIBB32s")  # magic, nonce, sha256 of the spec hash, rank, role, encrypted, service
_PROOF_BYTES = hashlib.sha256().digest_size
HELLO_BYTES = _GREETING.size + _PROOF_BYTES
"""Length of the first message of a connection."""
_ANSWER = struct.Struct("!B32s")  # verdict, proof
_WELCOME, _OTHER_SPEC, _NO_SERVICE = range(3)
_SHORTEST_TOKEN = 16
_NO_TOKEN = "it does not hold this run's token"  # noqa: S105 - a message
_NOT_BOTH = "only one of the two ranks has certificates: set PBG_TLS_CA, PBG_TLS_CERTIFICATE and PBG_TLS_KEY for all"
_OTHER_TOKEN = "it holds another run token: give every rank of a gang the same PBG_RUN_TOKEN"  # noqa: S105 - same


class Peer(NamedTuple):
    """Rank at the other end of a connection."""

    rank: int
    role: Role

    def __str__(self) -> str:
        return f"rank {self.rank}" + (" (partition server)" if self.role == "partition-server" else "")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Proof of a rank's membership.

    Attributes:
        token: the gang's secret, 16 bytes or more.
        spec: hash of the run spec.
        rank: rank of this process, from 0.
        role: role of this process.
        certificates: with which connections are encrypted; None: they are not.

    Raises:
        ConfigError: the token is too short to be a secret.
    """

    token: bytes = field(repr=False)
    spec: str
    rank: int
    role: Role
    certificates: Certificates | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.token) < _SHORTEST_TOKEN:
            raise ConfigError(
                f"PBG_RUN_TOKEN: a run token of {len(self.token)} bytes can be guessed; make one with `openssl rand "
                "-hex 32`, the same for every rank"
            )


class Greeting(NamedTuple):
    """First message of each side, in a form of fixed length.

    Attributes:
        nonce: 32 random bytes.
        spec: sha256 of the hash of the run spec.
        peer: rank that sends it.
        encrypted: whether everything after the hello is to be encrypted.
        service: requested service, from the connecting side; empty from the other.
    """

    nonce: bytes
    spec: bytes
    peer: Peer
    encrypted: bool
    service: str

    @classmethod
    def of(cls, credentials: Credentials, service: str) -> Greeting:
        """Make a greeting with a fresh nonce."""
        spec = hashlib.sha256(credentials.spec.encode()).digest()
        peer = Peer(credentials.rank, credentials.role)
        return cls(secrets.token_bytes(32), spec, peer, credentials.certificates is not None, service)

    def pack(self) -> bytes:
        """Return the bytes of the greeting."""
        role = _ROLES.index(self.peer.role)
        service = self.service.encode("ascii")
        return _GREETING.pack(_MAGIC, self.nonce, self.spec, self.peer.rank, role, self.encrypted, service)

    @classmethod
    def unpack(cls, data: bytes) -> Greeting:
        """Parse a greeting from bytes of the right length.

        Their origin is unknown.

        Raises:
            ConfigError: the bytes are no greeting.
        """
        _, nonce, spec, rank, role, encrypted, service = _GREETING.unpack(data)
        if role >= len(_ROLES) or encrypted > 1 or not service.isascii():
            raise ConfigError("it does not speak this protocol")
        return cls(nonce, spec, Peer(rank, _ROLES[role]), bool(encrypted), service.rstrip(b"\0").decode("ascii"))


def introduce(connection: Stream, credentials: Credentials, service: str, *, timeout: float) -> Peer:
    """Request a service at the connecting end, and return the peer.

    With certificates, the connection has to be a ``SecureStream``.

    Raises:
        ConfigError: the other end has another token or no certificate of this gang, trains another spec, lacks the
            service or is no rank at all.
        RankLostError: the other end was silent, took more than ``timeout`` seconds, or closed the connection.
    """
    conversation = _Conversation(connection, timeout)
    own = Greeting.of(credentials, service)
    conversation.send(own.pack() + _early_proof(credentials.token, own))
    if own.encrypted:
        conversation.check_start(conversation.receive(len(_SECURE)), _SECURE)
    channel = conversation.secure()
    other = conversation.receive_greeting()
    proofs = _Proofs(credentials.token, own.pack() + other.pack() + channel)
    conversation.send(proofs.connecting())
    verdict, proof = _ANSWER.unpack(conversation.receive(_ANSWER.size))
    if not hmac.compare_digest(proof, proofs.listening(verdict)):
        raise ConfigError(_OTHER_TOKEN)
    if verdict == _OTHER_SPEC or other.spec != own.spec:
        raise ConfigError(f"{other.peer} trains another run spec: start every rank of a gang with the same run")
    if verdict != _WELCOME:
        raise ConfigError(f"{other.peer} does not offer {service!r}: the ranks disagree on their services")
    return other.peer


def is_hello(begun: bytes, token: bytes) -> bool:
    """Return whether first bytes are a whole hello with the right token.

    Args:
        begun: received bytes, of which only the first ``HELLO_BYTES`` count.
        token: the gang's secret.

    Returns:
        False while they may still become one.

    Raises:
        ConfigError: they are no hello and cannot become one.
    """
    _check_magic(begun[: len(_MAGIC)])
    if len(begun) < HELLO_BYTES:
        return False
    greeting = Greeting.unpack(begun[: _GREETING.size])
    if not hmac.compare_digest(begun[_GREETING.size : HELLO_BYTES], _early_proof(token, greeting)):
        raise ConfigError(_NO_TOKEN)
    return True


def turn_away(connection: socket.socket, begun: bytes) -> None:
    """Answer a hello without the token, if that takes no waiting.

    Other bytes get no answer.
    """
    if len(begun) >= HELLO_BYTES and begun.startswith(_MAGIC):
        with contextlib.suppress(OSError):
            connection.send(_REFUSAL, socket.MSG_DONTWAIT)


def admit(
    connection: Stream, credentials: Credentials, services: Collection[str], *, timeout: float, begun: bytes = b""
) -> tuple[Peer, str]:
    """Authenticate a connecting rank at the listening end.

    Args:
        connection: a socket, whose timeout changes; with certificates, a ``SecureStream``.
        credentials: credentials of this process.
        services: names of the offered services.
        timeout: seconds for the whole handshake.
        begun: bytes that were already read from the connection.

    Returns:
        The rank, and the service that it requests.

    Raises:
        ConfigError: the other end is no rank of this run, has no certificate of this gang, or requests none of
            ``services``.
        RankLostError: the other end was silent, took more than ``timeout`` seconds, or closed the connection.
    """
    conversation = _Conversation(connection, timeout, begun)
    other = conversation.receive_greeting()
    early = conversation.receive(_PROOF_BYTES)
    if not hmac.compare_digest(early, _early_proof(credentials.token, other)):
        conversation.send(_REFUSAL)
        raise ConfigError(_NO_TOKEN)
    own = Greeting.of(credentials, "")
    if other.encrypted != own.encrypted:
        conversation.send(_UNLIKE)
        raise ConfigError(f"it is {other.peer}, and {_NOT_BOTH}")
    if own.encrypted:
        conversation.send(_SECURE)
    channel = conversation.secure()
    conversation.send(own.pack())
    proofs = _Proofs(credentials.token, other.pack() + own.pack() + channel)
    if not hmac.compare_digest(conversation.receive(_PROOF_BYTES), proofs.connecting()):
        raise ConfigError(_NO_TOKEN)  # a hello that was replayed
    verdict = _OTHER_SPEC if other.spec != own.spec else _WELCOME if other.service in services else _NO_SERVICE
    conversation.send(_ANSWER.pack(verdict, proofs.listening(verdict)))
    if verdict == _OTHER_SPEC:
        raise ConfigError(f"it is {other.peer} of another run spec")
    if verdict == _NO_SERVICE:
        raise ConfigError(f"it is {other.peer} and asks for {other.service!r}, which is not offered here")
    return other.peer, other.service


def _early_proof(token: bytes, greeting: Greeting) -> bytes:
    return hmac.digest(token, b"hello" + greeting.pack(), "sha256")


def _check_magic(start: bytes, magic: bytes = _MAGIC) -> None:
    """Refuse bytes with which no greeting begins."""
    if not magic.startswith(start):
        known = len(start) == len(magic) and start[:-1] == magic[:-1]
        raise ConfigError("it is of another version of pbg_tasks" if known else "it does not speak this protocol")


class _Proofs(NamedTuple):
    """Proofs that take the token and the greetings of this conversation.

    Where it is encrypted, the digests of both certificates follow the greetings.
    """

    token: bytes
    greetings: bytes

    def connecting(self) -> bytes:
        return self._of(b"connecting")

    def listening(self, verdict: int) -> bytes:
        return self._of(b"listening" + bytes([verdict]))

    def _of(self, label: bytes) -> bytes:
        return hmac.digest(self.token, label + self.greetings, "sha256")


class _Conversation:
    """Exchange of bytes of known length, within one time limit."""

    def __init__(self, connection: Stream, timeout: float, begun: bytes = b"") -> None:
        self._connection = connection
        self._begun = begun
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout

    def receive_greeting(self) -> Greeting:
        """Read the other side's greeting.

        Wrong bytes are refused before the whole greeting has arrived.
        """
        start = self.receive(len(_MAGIC))
        self.check_start(start, _MAGIC)
        return Greeting.unpack(start + self.receive(_GREETING.size - len(start)))

    @staticmethod
    def check_start(start: bytes, expected: bytes) -> None:
        """Refuse first bytes of an answer other than those expected."""
        if start == _REFUSAL:
            raise ConfigError(_OTHER_TOKEN)
        if start == _UNLIKE:
            raise ConfigError(_NOT_BOTH)
        _check_magic(start, expected)

    def secure(self) -> bytes:
        """Encrypt what follows, and return the digests of both certificates.

        Without certificates the digests are empty.
        """
        if not isinstance(self._connection, SecureStream):
            return b""
        return self._within_time(self._connection.secure, self._deadline)

    def receive(self, size: int) -> bytes:
        data, self._begun = self._begun[:size], self._begun[size:]
        while len(data) < size:
            part = self._within_time(self._connection.recv, size - len(data))
            if not part:
                raise RankLostError("it hung up before it was known")
            data += part
        return data

    def send(self, data: bytes) -> None:
        self._within_time(self._connection.sendall, data)

    def _within_time(self, work: Callable[[Given], Made], given: Given) -> Made:
        try:
            self._connection.settimeout(max(self._deadline - time.monotonic(), 1e-3))
            return work(given)
        except TimeoutError:
            raise RankLostError(f"it was not known after {self._timeout:g} s") from None
        except ssl.SSLError as error:
            raise ConfigError(reason_of(error)) from None
        except OSError as error:
            raise RankLostError(f"it hung up before it was known ({error.strerror})") from None
