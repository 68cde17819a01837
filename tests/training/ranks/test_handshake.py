from __future__ import annotations

import hashlib
import hmac
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.errors import ConfigError, PbgError, RankLostError
from pbg_tasks.training.ranks.transport.handshake import Credentials, Greeting, Peer, admit, introduce

TOKEN = b"a token of a run"
HERE = Credentials(TOKEN, "spec", 0, "trainer")
THERE = Credentials(TOKEN, "spec", 3, "partition-server")


class Tap:
    """Socket that records its data, and may change sent bytes."""

    def __init__(self, stream, change=lambda data: data):
        self.said, self.heard = [], []
        self._stream, self._change = stream, change

    def settimeout(self, seconds):
        self._stream.settimeout(seconds)

    def sendall(self, data):
        self.said.append(data)
        self._stream.sendall(self._change(data))

    def recv(self, size):
        data = self._stream.recv(size)
        self.heard.append(data)
        return data


def shake(connecting=THERE, service="leases", change=lambda data: data):
    """Run both ends of a handshake.

    Returns the result of each and the tap of the connecting one.
    """
    one, other = socket.socketpair()
    tap = Tap(one, change)

    def outcome(work, *args):
        try:
            return work(*args, timeout=2)
        except PbgError as error:
            return error

    with one, other, ThreadPoolExecutor(1) as pool:
        admitted = pool.submit(outcome, admit, other, HERE, ("leases",))
        introduced = outcome(introduce, tap, connecting, service)
        one.shutdown(socket.SHUT_RDWR)
        return introduced, admitted.result(), tap


def test_each_end_learns_the_others_identity():
    introduced, admitted, _ = shake()
    assert introduced == Peer(0, "trainer")
    assert admitted == (Peer(3, "partition-server"), "leases")
    assert (str(introduced), str(admitted[0])) == ("rank 0", "rank 3 (partition server)")


def test_other_token_is_refused():
    introduced, admitted, tap = shake(Credentials(b"another token of 20", "spec", 3, "trainer"))
    assert isinstance(introduced, ConfigError)
    assert "PBG_RUN_TOKEN" in str(introduced)
    assert str(admitted) == "it does not hold this run's token"
    assert tap.heard == [b"PBGr\x03"]  # a stranger gets no proof, and no greeting to make one from


def test_other_spec_is_refused():
    introduced, admitted, _ = shake(Credentials(TOKEN, "other", 3, "trainer"))
    assert isinstance(introduced, ConfigError)
    assert "rank 0 trains another run spec" in str(introduced)
    assert str(admitted) == "it is rank 3 of another run spec"


def test_other_service_is_refused():
    introduced, admitted, _ = shake(service="partitions")
    assert isinstance(introduced, ConfigError)
    assert "rank 0 does not offer 'partitions'" in str(introduced)
    assert "asks for 'partitions'" in str(admitted)


def test_token_is_never_sent():
    _, _, tap = shake()
    crossed = b"".join(tap.said + tap.heard)
    assert TOKEN not in crossed
    assert hashlib.sha256(TOKEN).digest() not in crossed


def test_recorded_handshake_cannot_be_replayed():
    _, _, tap = shake()
    one, other = socket.socketpair()
    with one, other, ThreadPoolExecutor(1) as pool:
        admitted = pool.submit(admit, other, HERE, ["leases"], timeout=2)
        for said in tap.said:
            one.sendall(said)
        with pytest.raises(ConfigError, match="does not hold this run's token"):
            admitted.result()


def test_reflected_proof_is_refused():
    """Let a stranger without the token return the connecting side's own bytes."""
    one, other = socket.socketpair()

    def mirror():
        greeting = other.recv(1000)
        other.sendall(greeting)
        other.sendall(b"\0" + other.recv(1000))

    with one, other:
        thread = threading.Thread(target=mirror)
        thread.start()
        with pytest.raises(ConfigError, match="another run token"):
            introduce(one, THERE, "leases", timeout=2)
        thread.join()


def test_proof_is_valid_for_one_rank_only():
    """Changing a greeting on its way changes the required proof."""

    def change(data):
        return data.replace(b"\0\0\0\x03", b"\0\0\0\x02") if len(data) > 32 else data

    introduced, admitted, _ = shake(change=change)
    assert isinstance(introduced, ConfigError)
    assert str(admitted) == "it does not hold this run's token"


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", ConfigError, "does not speak this protocol"),
        (b"PBGh\x01", ConfigError, "another version"),
        (b"PBGh\x03" + b"\xff" * 102, ConfigError, "does not speak this protocol"),
        (b"PBGh\x03" + b"short", RankLostError, "hung up"),
        (b"", RankLostError, "hung up"),
    ],
)
def test_other_protocol_is_refused(data, error, text):
    one, other = socket.socketpair()
    with one, other:
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)
        with pytest.raises(error, match=text):
            admit(other, HERE, ["leases"], timeout=2)


def test_timeout_covers_the_whole_handshake():
    one, other = socket.socketpair()
    done = threading.Event()

    def dribble():
        for byte in Greeting.of(THERE, "leases").pack():
            one.sendall(bytes([byte]))
            if done.wait(0.1):
                return

    with one, other:
        thread = threading.Thread(target=dribble)
        thread.start()
        try:
            with pytest.raises(RankLostError, match=r"not known after 0.4 s"):
                admit(other, HERE, ["leases"], timeout=0.4)
        finally:
            done.set()
            thread.join()


@settings(deadline=None)
@given(st.binary(min_size=300, max_size=300), st.booleans())
def test_only_own_errors_are_raised(data, begun):
    one, other = socket.socketpair()
    with one, other:
        one.sendall((b"PBGh\x03" if begun else b"") + data)
        with pytest.raises(PbgError):
            admit(other, HERE, ["leases"], timeout=2)


def test_guessable_token_is_refused():
    with pytest.raises(ConfigError, match=r"PBG_RUN_TOKEN: a run token of 6 bytes"):
        Credentials(b"secret", "spec", 0, "trainer")


def test_token_is_not_printed():
    assert "token of a run" not in repr(HERE)


def test_proof_is_the_documented_one():
    """It covers both greetings, the connecting side's first, keyed with the token."""
    _, _, tap = shake()
    hello, proof = tap.said
    greeting, early = hello[:-32], hello[-32:]
    answered = b"".join(tap.heard)[: len(greeting)]
    assert early == hmac.digest(TOKEN, b"hello" + greeting, "sha256")
    assert proof == hmac.digest(TOKEN, b"connecting" + greeting + answered, "sha256")
