from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from pbg_tasks.errors import ConfigError
from pbg_tasks.training.ranks.transport import door, wire
from pbg_tasks.training.ranks.transport.handshake import HELLO_BYTES, Greeting, _early_proof, is_hello
from pbg_tasks.training.ranks.transport.wire import Credentials, Listener, connect
from tests.training.ranks.links import credentials
from tests.waiting import wait_until

TOKEN = credentials(1).token
FLOOD = 200


def hello():
    greeting = Greeting.of(credentials(1), "echo")
    return greeting.pack() + _early_proof(TOKEN, greeting)


@contextlib.contextmanager
def started(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        with process.stdin, process.stdout:
            yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def flooded(port, *kinds):
    with started("tests.training.ranks.flood", str(FLOOD), str(port), *kinds) as process:
        assert process.stdout.readline()
        time.sleep(1)
        yield


@pytest.mark.parametrize("kinds", [["silent"], ["slow"], ["silent", "slow", "garbage"]], ids="-".join)
@pytest.mark.parametrize("files", [64, 1024])
def test_rank_in_flood_of_own_address_connects(files, kinds):
    """The listening process may open fewer files than there are strangers."""
    with started("tests.training.ranks.listening_process", str(files)) as process:
        port = int(process.stdout.readline())
        with flooded(port, *kinds):
            took = []
            for _ in range(10):
                began = time.monotonic()
                with connect(("127.0.0.1", port), credentials(1), "echo", timeout=10) as connection:
                    assert connection.request("a", timeout=5).kind == "a"
                took.append(time.monotonic() - began)
    assert max(took) < 10, took


@pytest.fixture
def entrance():
    """A door, its port, its accepted connections and its refusals."""
    doors = []

    def build(most=8, patience=30.0):
        server = socket.create_server(("", 0), backlog=1024)
        admitted, refused = [], []
        built = door.Door(
            server,
            TOKEN,
            patience=patience,
            admit=lambda stream, host, begun: admitted.append((stream, host, begun)),
            refuse=lambda host, why: refused.append((host, why)),
        )
        built._most = most
        thread = threading.Thread(target=built.run)
        thread.start()
        doors.append((server, thread, admitted))
        return server.getsockname()[1], admitted, refused

    yield build
    for server, thread, admitted in doors:
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        assert not thread.is_alive()
        server.close()
        for stream, *_ in admitted:
            stream.close()


def call(port, host="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(host, 0))


def is_open(stream):
    stream.setblocking(False)
    try:
        return bool(stream.recv(1))
    except BlockingIOError:
        return True


def test_hello_in_parts_is_accepted(entrance):
    port, admitted, refused = entrance()
    said = hello()
    with call(port) as stream:
        for part in (said[:3], said[3:50], said[50:]):
            stream.sendall(part)
            time.sleep(0.05)
        wait_until(lambda: admitted, seconds=5)
    assert admitted[0][1:] == ("127.0.0.1", said)
    assert not refused


def test_full_door_drops_the_oldest_stranger(entrance):
    port, admitted, refused = entrance(most=8)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(call(port)) for _ in range(20)]
        wait_until(lambda: len(refused) == 12, seconds=5)
        assert [is_open(stream) for stream in strangers] == [False] * 12 + [True] * 8
        strangers[12].setblocking(True)
        strangers[12].sendall(hello())  # the oldest that is left: it becomes known before it is dropped
        wait_until(lambda: admitted, seconds=5)


def test_flood_of_one_address_spares_others(entrance):
    port, admitted, _ = entrance(most=8)
    with contextlib.ExitStack() as stack:
        late = stack.enter_context(call(port, "127.0.0.2"))
        for _ in range(100):
            stack.enter_context(call(port))
        late.sendall(hello())
        wait_until(lambda: admitted, seconds=5)


@pytest.mark.parametrize("said", [b"G", b"PBGx", b"PBGh\x01", bytes(5)])
def test_wrong_first_bytes_end_a_connection_at_once(entrance, said):
    port, _, refused = entrance(patience=30)
    with call(port) as stream:
        stream.sendall(said)
        with contextlib.suppress(ConnectionError):
            assert stream.recv(1) == b""
    assert refused


def test_hello_with_another_token_is_answered(entrance):
    port, admitted, refused = entrance()
    other = Credentials(b"the token of another", "the spec's hash", 1, "trainer")
    with pytest.raises(ConfigError, match="PBG_RUN_TOKEN"):
        connect(("127.0.0.1", port), other, "echo", timeout=5)
    wait_until(lambda: refused == [("127.0.0.1", "it does not hold this run's token")], seconds=5)
    assert not admitted


def test_silence_ends_after_its_time(entrance):
    port, _, refused = entrance(patience=0.3)
    with call(port) as stream:
        assert stream.recv(1) == b""
    assert refused == [("127.0.0.1", "it was not known after 0.3 s")]


def test_conversations_after_the_hello_are_bounded(monkeypatch):
    """Listen to few connections that repeat an overheard hello.

    None of them is listened to for long.
    """
    monkeypatch.setattr(wire, "_HANDSHAKE_SECONDS", 1.0)
    monkeypatch.setattr(wire, "_HANDSHAKES", 4)
    under_way, most, lock = [], [], threading.Lock()

    def counted(*args, **kwargs):
        with lock:
            under_way.append(None)
            most.append(len(under_way))
        try:
            return admit(*args, **kwargs)
        finally:
            with lock:
                under_way.pop()

    admit = wire.admit
    monkeypatch.setattr(wire, "admit", counted)
    with (
        Listener(credentials(0), {"echo": lambda _: None}, host="127.0.0.1") as listener,
        contextlib.ExitStack() as all_,
    ):
        for _ in range(20):
            all_.enter_context(call(listener.address[1])).sendall(hello())
        with connect(listener.address, credentials(1), "echo", timeout=10):
            pass
    assert max(most) == 4


def test_hello_is_known_only_when_complete():
    said = hello()
    assert [length for length in range(len(said) + 1) if is_hello(said[:length], TOKEN)] == [HELLO_BYTES]
    for place in range(5, HELLO_BYTES):
        changed = bytearray(said)
        changed[place] ^= 1
        with pytest.raises(ConfigError):
            is_hello(bytes(changed), TOKEN)


@pytest.mark.parametrize(("files", "most"), [(64, 16), (8, 8), (1024, 256), (1 << 20, 256), (-1, 256)])
def test_places_for_strangers_follow_the_limit_of_files(monkeypatch, files, most):
    monkeypatch.setattr(door.resource, "getrlimit", lambda _: (files, files))
    assert door.most_strangers() == most
