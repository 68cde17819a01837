from __future__ import annotations

import dataclasses
import datetime as dt
import re
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import BasicConstraints

from pbg_tasks.errors import ConfigError, RankLostError, StorageError
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.ranks.partitions.client import PartitionClient
from pbg_tasks.training.ranks.partitions.server import PartitionServer
from pbg_tasks.training.ranks.transport import renewal
from pbg_tasks.training.ranks.transport.certificates import Certificates, _draft, make_certificates
from pbg_tasks.training.ranks.transport.handshake import HELLO_BYTES
from pbg_tasks.training.ranks.transport.renewal import RenewedConnection
from pbg_tasks.training.ranks.transport.tls import BLOCK, SecureStream
from pbg_tasks.training.ranks.transport.wire import Credentials, Listener, connect
from tests.training.ranks.links import echo
from tests.training.ranks.tap import Tap, windows_heard
from tests.waiting import wait_until

DAY, HOUR = dt.timedelta(days=1), dt.timedelta(hours=1)
TOKEN = b"the secret of this gang"
OURS = make_certificates(DAY)


class Authority:
    """Authority of a user, which signs any number of certificates."""

    def __init__(self):
        self._key = ec.generate_private_key(ec.SECP256R1())
        draft = _draft("authority", self._key, DAY).add_extension(BasicConstraints(True, 0), critical=True)
        self.pem = self._text(draft)

    def sign(self, lifetime=DAY):
        own = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key = own.private_bytes(serialization.Encoding.PEM, *form).decode()
        return Certificates(self.pem, self._text(_draft("rank", own, lifetime)), key)

    def _text(self, draft):
        return draft.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


class WithoutOwn(Certificates):
    """Certificates of a rank that shows none of its own."""

    def _load_own(self, context):
        pass


THEIRS = Authority()
TRUSTING = dataclasses.replace(make_certificates(DAY), authority=OURS.authority)


def rank(number, certificates=OURS):
    return Credentials(TOKEN, "spec", number, "trainer", certificates)


@contextmanager
def listening(certificates=OURS, service=echo):
    with Listener(rank(0, certificates), {"test": service}, host="127.0.0.1") as listener:
        yield listener.address


@contextmanager
def linked(certificates=OURS, service=echo):
    with listening(certificates, service) as address, call(address, certificates) as connection:
        yield connection


def call(address, certificates=OURS, timeout=10.0):
    return connect(address, rank(1, certificates), "test", timeout=timeout)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 5])
def test_array_arrives_whole_in_its_memory(size):
    sent, place = np.random.default_rng(0).integers(0, 256, size, np.uint8), np.zeros(size, np.uint8)
    with linked() as connection:
        answer = connection.request("a", sent, np.arange(3), timeout=10, into=[place, np.zeros(3, np.int64)], lease=7)
    assert (answer.arrays[0] is place, answer.fields) == (True, {"lease": 7})
    np.testing.assert_array_equal(place, sent)
    np.testing.assert_array_equal(answer.arrays[1], [0, 1, 2])


def test_both_ends_send_and_receive_at_once():
    """Each end has a thread for each direction, on one connection."""
    arrays = [np.full(1 << 20, number, np.uint8) for number in range(20)]

    def both(connection):
        with ThreadPoolExecutor(1) as pool:
            got = pool.submit(lambda: [connection.receive(timeout=20).arrays[0][0] for _ in arrays])
            for array in arrays:
                connection.send("a", array)
            return got.result()

    ended = []
    with linked(service=lambda connection: ended.append(both(connection))) as connection:
        assert both(connection) == list(range(20))
        wait_until(lambda: ended, seconds=30)
    assert ended == [list(range(20))]


def test_error_of_service_is_raised_at_request():
    def fail(connection):
        connection.receive(timeout=5)
        raise StorageError("the disk is full")

    with linked(service=fail) as connection, pytest.raises(StorageError, match=r"^the disk is full$"):
        connection.request("a", np.zeros(8 << 20, np.uint8), timeout=5)


def test_silent_and_ended_peers_are_lost():
    with linked(service=lambda connection: connection.receive(timeout=None)) as connection:
        with pytest.raises(RankLostError, match=r"rank 0 was silent for 0\.2 s"):
            connection.receive(timeout=0.2)
        connection.send("a")
        with pytest.raises(RankLostError):
            connection.receive(timeout=5)


def test_connection_with_used_keys_is_made_anew(monkeypatch):
    monkeypatch.setattr(renewal, "MOST_RECORDS", 200)
    made, array = [], np.arange(1 << 17)  # 64 records there, and as many back
    with listening() as address:

        def again():
            made.append(call(address))
            return made[-1]

        connection = RenewedConnection(again)
        assert [int(connection.request("a", array, timeout=10).arrays[0][-1]) for _ in range(5)] == [array[-1]] * 5
        made[-1].close()
    assert len(made) == 3  # two requests use a connection's keys up
    assert all(200 < each.records < 400 for each in made[:2])


def test_connection_without_encryption_stays(monkeypatch):
    monkeypatch.setattr(renewal, "MOST_RECORDS", 0)
    with linked(None) as connection:
        connection.request("a", np.arange(9), timeout=10)
        assert connection.records == 0


def test_close_interrupts_a_waiting_thread():
    with linked() as connection, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connection.receive, timeout=None)
        time.sleep(0.1)
        connection.close()
        with pytest.raises(RankLostError, match="is closed"):
            waiting.result(5)


@pytest.mark.parametrize(
    ("listens", "calls", "told", "logged"),
    [
        (OURS, make_certificates(DAY), "not of this gang", "not of this gang|refuses this rank's certificate"),
        (THEIRS.sign(), THEIRS.sign(-HOUR / 2), "refuses this rank's .*expired", "not of this gang .*expired"),
        (THEIRS.sign(-HOUR / 2), THEIRS.sign(), "not of this gang .*has expired", "refuses this rank's .*expired"),
        (OURS, WithoutOwn(*dataclasses.astuple(OURS)), "refuses this rank's certificate", "shows no certificate"),
        (OURS, TRUSTING, "refuses this rank's certificate", "not of this gang"),
        (OURS, None, "only one of the two ranks has certificates", "only one of the two"),
        (None, OURS, "only one of the two ranks has certificates", "only one of the two"),
    ],
    ids=["another gang's", "expired", "listener's expired", "none", "another gang's only", "plain", "plain listener"],
)
def test_rank_without_right_certificate_is_refused(listens, calls, told, logged, capsys):
    reached = []
    with listening(listens, reached.append) as address:
        began = time.monotonic()
        with pytest.raises(ConfigError, match=told) as raised:
            call(address, calls)
        assert time.monotonic() - began < 4, "found out by a time limit"
        said = []
        wait_until(lambda: said.append(capsys.readouterr().err) or "refused a connection" in "".join(said))
    assert not reached
    assert "\n" not in str(raised.value)
    assert re.search(f"refused a connection from 127.0.0.1: .*({logged})", "".join(said)), said


def test_certificate_alone_opens_nothing():
    reached, stranger = [], Credentials(b"another gang's token", "spec", 1, "trainer", OURS)
    with listening(OURS, reached.append) as address, pytest.raises(ConfigError, match="PBG_RUN_TOKEN"):
        connect(address, stranger, "test", timeout=5)
    assert not reached


def test_party_between_ranks_with_valid_certificate_is_noticed(capsys):
    """Decrypt and relay both ways, with a trusted certificate."""
    reached = []
    with listening(THEIRS.sign(), reached.append) as address, socket.create_server(("127.0.0.1", 0)) as between:
        thread = threading.Thread(target=relay_decrypted, args=(between, address, THEIRS.sign()), daemon=True)
        thread.start()
        with pytest.raises(RankLostError):
            call(between.getsockname(), THEIRS.sign(), timeout=1.0)
        thread.join(5)
    assert not reached
    assert "does not hold this run's token" in capsys.readouterr().err


def relay_decrypted(between, address, certificates):
    here, there = between.accept()[0], socket.create_connection(address)
    there.sendall(here.recv(HELLO_BYTES, socket.MSG_WAITALL))
    here.sendall(there.recv(5))  # that encryption begins
    ends = [SecureStream(here, certificates, server=True), SecureStream(there, certificates, server=False)]
    for end in reversed(ends):
        end.secure(time.monotonic() + 5)
    ends[0].sendall(ends[1].recv(1000))  # the greeting
    ends[1].sendall(ends[0].recv(1000))  # the proof
    assert ends[1].recv(1000) == b""
    for stream in (here, there):
        stream.close()


@pytest.mark.parametrize("certificates", [None, OURS], ids=["plain", "encrypted"])
def test_eavesdropper_of_partitions_reads_nothing_if_encrypted(certificates):
    rows = np.random.default_rng(1).standard_normal((500, 24), np.float32)
    key = PartitionKey("diagnosis", 0)
    with (
        PartitionServer(lambda *_: None, interval=1e6, on_error=print) as server,
        listening(certificates, server.serve) as address,
    ):
        tap = Tap(address)
        with call(tap.address, certificates) as connection:
            client = PartitionClient([connection])
            client.put(key, Table(torch.from_numpy(rows.copy()), torch.zeros(500)), 1)
            np.testing.assert_array_equal(client.get(key).table.embeddings.numpy(), rows)
        tap.close()
    assert len(tap.heard) > 2 * rows.nbytes
    assert TOKEN not in tap.heard
    assert (b"diagnosis" in tap.heard) == (certificates is None)
    assert windows_heard(tap.heard, rows) == (500 * 17 if certificates is None else 0)


def test_certificates_are_read_from_environment(tmp_path):
    assert Certificates.from_environment({}) is None
    environment = OURS.environment()
    assert Certificates.from_environment(environment) == OURS
    paths = {name: str(tmp_path / name) for name in environment}
    for name, text in environment.items():
        (tmp_path / name).write_text(text)
    assert Certificates.from_environment(paths) == OURS
    assert OURS.key not in repr(OURS)
    assert OURS.key not in repr(rank(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"PBG_TLS_KEY": ""}, "PBG_TLS_KEY: not set"),
        ({"PBG_TLS_CA": "/nowhere/ca.pem"}, "PBG_TLS_CA: is neither PEM nor a file that can be read: No such file"),
        ({"PBG_TLS_CA": "-----BEGIN CERTIFICATE-----\nxx"}, "PBG_TLS_CA: holds no certificate in PEM"),
        ({"PBG_TLS_KEY": make_certificates(DAY).key}, "PBG_TLS_CERTIFICATE and PBG_TLS_KEY: .*KEY_VALUES_MISMATCH"),
        ({"PBG_TLS_CERTIFICATE": "-----BEGIN CERTIFICATE-----\nxx"}, "PBG_TLS_CERTIFICATE and PBG_TLS_KEY: "),
    ],
)
def test_unusable_certificates_name_their_variable(change, message):
    with pytest.raises(ConfigError, match=message):
        Certificates.from_environment({**OURS.environment(), **change})


def test_certificates_of_a_gang_end_with_it():
    made = make_certificates(HOUR)
    with linked(made) as connection:
        assert connection.request("a", timeout=5).kind == "a"
    assert made.certificate != OURS.certificate
    assert made.authority.count("BEGIN CERTIFICATE") == made.certificate.count("BEGIN CERTIFICATE") == 1
    (found,) = made.connecting.get_ca_certs()
    left = ssl.cert_time_to_seconds(found["notAfter"]) - time.time()
    assert 3500 < left <= 3601
