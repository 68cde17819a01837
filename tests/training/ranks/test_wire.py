from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pbg_tasks.errors import ConfigError, FormatError, PbgError, RankLostError, StorageError
from pbg_tasks.training.ranks.transport import connection as connections
from pbg_tasks.training.ranks.transport import wire
from pbg_tasks.training.ranks.transport.wire import Credentials, Listener, Peer, connect
from tests.training.ranks.links import echo

TOKEN = b"a token of a run"
ZERO = Credentials(TOKEN, "spec", 0, "trainer")
ONE = Credentials(TOKEN, "spec", 1, "trainer")


@pytest.fixture
def listen():
    listeners = []

    def start(limit=1 << 24, **services):
        listeners.append(Listener(ZERO, services or {"echo": echo}, host="127.0.0.1", limit=limit))
        return listeners[-1].address

    yield start
    for listener in listeners:
        listener.close()


def call(address, service="echo", credentials=ONE, timeout=5.0):
    return connect(address, credentials, service, timeout=timeout)


def stranger(address):
    return socket.create_connection(address, timeout=5)


class Counted:
    """Counts the largest number of simultaneous calls."""

    def __init__(self, work):
        self._work, self._lock = work, threading.Lock()
        self._now = self.most = 0

    def __call__(self, *args, **kwargs):
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            return self._work(*args, **kwargs)
        finally:
            with self._lock:
                self._now -= 1


class TestConnection:
    def test_request_is_answered(self, listen):
        with call(listen()) as connection:
            assert connection.peer == Peer(0, "trainer")
            answer = connection.request("push", np.arange(3), timeout=5, lease=7, kind="a field may be called so")
            assert (answer.kind, answer.fields) == ("push", {"lease": 7, "kind": "a field may be called so"})
            np.testing.assert_array_equal(answer.arrays[0], [0, 1, 2])

    def test_threads_get_their_own_answers(self, listen):
        with call(listen()) as connection, ThreadPoolExecutor(8) as pool:
            numbers = pool.map(lambda number: connection.request("a", timeout=5, number=number), range(200))
            assert [answer.fields["number"] for answer in numbers] == list(range(200))

    def test_answer_is_received_into_an_array(self, listen):
        place = np.zeros(1 << 20, np.float32)
        with call(listen()) as connection:
            answer = connection.request("a", np.ones(1 << 20, np.float32), timeout=5, into=[place])
        assert answer.arrays[0] is place
        assert place.all()

    def test_error_of_service_is_raised_at_request(self, listen, capsys):
        def fail(connection):
            connection.receive(timeout=5)
            raise StorageError("the disk is full")

        with call(listen(fail=fail), "fail") as connection:
            with pytest.raises(StorageError, match=r"^the disk is full$"):
                connection.request("a", timeout=5, into=[np.zeros(1)])
            with pytest.raises(RankLostError, match="rank 0 closed the connection"):
                connection.receive(timeout=5)
        assert "fail for rank 1: the disk is full" in capsys.readouterr().err

    def test_defect_of_service_is_raised_too(self, listen, capsys):
        def fail(connection):
            raise ZeroDivisionError("division by zero")

        with call(listen(fail=fail), "fail") as connection, pytest.raises(PbgError, match="ZeroDivisionError: div"):
            connection.request("a", timeout=5)
        assert "Traceback" in capsys.readouterr().err

    def test_error_arrives_before_message_is_fully_read(self, listen):
        def fail(connection):
            connection.receive(timeout=5)
            raise StorageError("enough")

        with call(listen(fail=fail), "fail") as connection:
            connection.send("a")
            with pytest.raises(StorageError, match="enough"):
                connection.request("b", np.zeros(8 << 20, np.uint8), timeout=5)

    def test_too_large_message_is_refused(self, listen):
        with call(listen(limit=1000)) as connection, pytest.raises(FormatError, match="1000 are allowed"):
            connection.request("a", np.zeros(1001, np.uint8), timeout=5)

    def test_silent_peer_is_lost(self, listen):
        with call(listen(wait=lambda connection: connection.receive(timeout=None)), "wait") as connection:
            began = time.monotonic()
            with pytest.raises(RankLostError, match=r"rank 0 was silent for 0.2 s"):
                connection.receive(timeout=0.2)
            assert time.monotonic() - began < 2
            assert connection.ended

    def test_late_answer_is_not_used_for_next_request(self, listen):
        given_up = threading.Event()

        def late(connection):
            connection.receive(timeout=5)
            given_up.wait(5)
            connection.send("answer")

        with call(listen(late=late), "late") as connection:
            for text in ("silent", "closed"):
                with pytest.raises(RankLostError, match=text):
                    connection.request("a", timeout=0.1)
            given_up.set()

    def test_silence_within_a_message_loses_the_peer(self, listen):
        def half(connection):
            connection._outgoing.sendall(b"PBG\x01\0\0\0\x7f{")
            time.sleep(1)

        with call(listen(half=half), "half") as connection, pytest.raises(RankLostError, match=r"silent for 0.2 s"):
            connection.receive(timeout=0.2)

    def test_peer_that_reads_nothing_is_lost(self, listen, monkeypatch):
        monkeypatch.setattr(connections, "_PATIENCE", 0.2)
        done = threading.Event()
        with call(listen(wait=lambda _: done.wait(10)), "wait") as connection:
            with pytest.raises(RankLostError, match=r"rank 0 was silent for 0.2 s"):
                connection.send("a", np.zeros(64 << 20, np.uint8))
            done.set()

    def test_closing_wakes_waiting_threads(self, listen):
        connection = call(listen(wait=lambda connection: connection.receive(timeout=None)), "wait")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(connection.receive, timeout=None)
            time.sleep(0.1)
            connection.close()
            with pytest.raises(RankLostError, match="the connection to rank 0 is closed"):
                waiting.result(5)
        with pytest.raises(RankLostError, match="closed"):
            connection.send("a")

    def test_sending_times_out_while_receiving_waits_forever(self, listen, monkeypatch):
        monkeypatch.setattr(connections, "_PATIENCE", 0.2)
        done = threading.Event()
        connection = call(listen(wait=lambda _: done.wait(10)), "wait")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(connection.receive, timeout=None)
            time.sleep(0.1)
            with pytest.raises(RankLostError):
                connection.send("a", np.zeros(64 << 20, np.uint8))
            with pytest.raises(RankLostError):
                waiting.result(5)
        done.set()
        connection.close()


class TestListener:
    def test_several_services_are_offered(self, listen):
        address = listen(a=lambda connection: connection.send("A"), b=lambda connection: connection.send("B"))
        for name in ("a", "b"):
            with call(address, name) as connection:
                assert connection.receive(timeout=5).kind == name.upper()

    @pytest.mark.parametrize(
        ("credentials", "service", "text"),
        [
            (Credentials(b"some other token", "spec", 1, "trainer"), "echo", "PBG_RUN_TOKEN"),
            (Credentials(TOKEN, "another", 1, "trainer"), "echo", "another run spec"),
            (ONE, "nothing", "does not offer 'nothing'"),
        ],
    )
    def test_bad_hellos_are_refused(self, listen, credentials, service, text):
        address = listen()
        with pytest.raises(ConfigError, match=text) as refusal:
            call(address, service, credentials)
        assert str(refusal.value).startswith(f"{service!r} at 127.0.0.1:{address[1]}: ")

    def test_refused_peer_is_reported_once(self, listen, capsys):
        address = listen()
        for data in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\0\x01", bytes(10_000)):
            with stranger(address) as stream:
                stream.sendall(data)
                with pytest.raises((EOFError, ConnectionError)):
                    hear_the_end(stream)
        with call(address) as connection:
            assert connection.request("a", timeout=5).kind == "a"
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "refused a connection from 127.0.0.1: it does not speak this protocol" in said

    def test_refused_peers_are_remembered_in_bounded_number(self, capsys):
        with Listener(ZERO, {}, host="127.0.0.1") as listener:
            for number in range(1000):
                listener._refuse(f"10.0.{number // 256}.{number % 256}", "so")
            assert len(listener._refused) == wire._REFUSALS_LOGGED
        assert capsys.readouterr().err.count("\n") == wire._REFUSALS_LOGGED

    def test_silent_strangers_do_not_keep_ranks_out(self, listen, monkeypatch):
        monkeypatch.setattr(wire, "_HANDSHAKE_SECONDS", 1.0)
        monkeypatch.setattr(wire, "admit", counted := Counted(wire.admit))
        address = listen()
        strangers = [stranger(address) for _ in range(3 * wire._HANDSHAKES)]
        began = time.monotonic()
        with call(address) as connection:
            assert connection.request("a", timeout=5).kind == "a"
        assert time.monotonic() - began < 1.0  # before a stranger's time is over
        assert counted.most == 1  # no stranger takes a place, or a thread, from a rank
        for stream in strangers:
            with stream, pytest.raises((EOFError, ConnectionError)):
                hear_the_end(stream)

    def test_closing_ends_connections_and_services(self):
        begun, ended = threading.Event(), threading.Event()

        def wait(connection):
            begun.set()
            try:
                connection.receive(timeout=None)
            finally:
                ended.set()

        with Listener(ZERO, {"wait": wait}, host="127.0.0.1") as listener:
            connection = call(listener.address, "wait")
            assert begun.wait(30)
        assert ended.is_set()
        with connection, pytest.raises(RankLostError, match="rank 0 closed"):
            connection.receive(timeout=5)
        with pytest.raises(RankLostError, match="no answer"):
            call(listener.address)

    def test_address_of_other_machine_is_refused(self):
        with pytest.raises(ConfigError, match=r"cannot listen at 192.0.2.77"):
            Listener(ZERO, {}, host="192.0.2.77")

    def test_listener_uses_its_address_only(self, listen):
        _, port = listen()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)


def hear_the_end(stream):
    if not stream.recv(1000):
        raise EOFError


class TestConnect:
    def test_port_without_listener_raises(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with pytest.raises(RankLostError, match=f"'echo' at 127.0.0.1:{port}: no answer"):
            call(("127.0.0.1", port))

    def test_silent_peer_raises_after_timeout(self):
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            pytest.raises(RankLostError, match=r"not known after 0\.\d+ s"),
        ):
            call(server.getsockname(), timeout=0.3)

    def test_peer_of_other_protocol_raises(self):
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

            def answer():
                stream, _ = server.accept()
                with stream:
                    stream.recv(10)
                    stream.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

            done = pool.submit(answer)
            with pytest.raises(ConfigError, match="does not speak this protocol"):
                call(server.getsockname())
            done.result()
