"""Sockets of ranks under attack.

By strangers, by a recorded conversation of a rank, and by a rank that sends nonsense.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest
import torch

from pbg_tasks.errors import ConfigError, PbgError
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.ranks.partitions.client import PartitionClient
from pbg_tasks.training.ranks.partitions.server import PartitionServer
from pbg_tasks.training.ranks.transport.wire import Credentials, Listener, connect
from tests.training.ranks.frames import mutated, sent
from tests.training.ranks.links import credentials

USER = PartitionKey("user", 0)
FRAMES = 1000


def table(value):
    return Table(torch.full((5, 3), float(value)), torch.full((5,), float(value)))


@pytest.fixture
def served():
    """Return a partition server's address and the ranks it accepted."""
    ranks = []
    with PartitionServer(lambda *_: None, interval=1e6, on_error=lambda _: None) as server:

        def serve(connection):
            ranks.append(connection.peer.rank)
            server.serve(connection)

        with Listener(credentials(9), {"partitions": serve}, host="127.0.0.1") as listener:
            yield listener.address, ranks


@contextmanager
def rank(address, number=1):
    with connect(address, credentials(number), "partitions", timeout=10) as connection:
        yield PartitionClient([connection])


@contextmanager
def recorded(address):
    """Record a connection to an address.

    Yields the address to use and the recorded bytes.
    """
    said = []
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:

        def carry(source, target, keep):
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    keep(data)
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        def accept():
            here = stack.enter_context(server.accept()[0])
            there = stack.enter_context(socket.create_connection(address))
            back = threading.Thread(target=carry, args=(there, here, lambda _: None))
            back.start()
            carry(here, there, said.append)
            back.join()

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname(), said
        thread.join()


def answer(address, data):
    """Send bytes as a stranger and return everything answered."""
    with socket.create_connection(address, timeout=10) as stream:
        with suppress(OSError):
            stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            return b"".join(iter(lambda: stream.recv(1 << 16), b""))
    return b""


def test_recorded_conversation_of_rank_changes_nothing_again(served):
    address, ranks = served
    with recorded(address) as (way, said), rank(way) as client:
        client.put(USER, table(1), 1)
    assert b"put" in b"".join(said)
    with rank(address, 2) as client:
        client.put(USER, table(2), 1)  # a lease as old as the recorded one: it would be accepted again
        for _ in range(20):
            replied = answer(address, b"".join(said))
            assert b"ok" not in replied
            assert b"table" not in replied
        assert client.get(USER).table.embeddings[0, 0].item() == 2.0
    assert ranks == [1, 2]


@pytest.mark.parametrize(
    ("stranger", "text"),
    [
        (Credentials(b"a token of another run", "the spec's hash", 1, "trainer"), "PBG_RUN_TOKEN"),
        (Credentials(credentials(1).token, "another spec", 1, "trainer"), "another run spec"),
    ],
    ids=["token", "spec"],
)
def test_unknown_peer_reaches_no_service(served, stranger, text):
    address, ranks = served
    for _ in range(5):
        with pytest.raises(ConfigError, match=text):
            connect(address, stranger, "partitions", timeout=5)
    assert ranks == []
    with rank(address) as client:
        assert client.get(USER) is None


def test_server_survives_mutated_frames_of_rank(served):
    """Send them as a rank of the run itself.

    Each of its connections gets an answer and an end, and another rank is still served.
    """
    address, ranks = served
    generator, outcomes = random.Random(11), Counter()
    arrays = [np.ones((5, 3), np.float32), np.ones(5, np.float32)]
    frames = [
        sent("put", {"entity": "item", "partition": 0, "lease": 3}, arrays),
        sent("get", {"entity": "item", "partition": 0}, []),
        sent("get", {"entity": "user", "partition": 0}, []),
    ]
    with rank(address, 2) as client:
        client.put(USER, table(2), 5)
        for _ in range(FRAMES):
            with connect(address, credentials(1), "partitions", timeout=10) as connection:
                connection._outgoing.sendall(mutated(generator.choice(frames), generator))
                connection._outgoing.shutdown(socket.SHUT_WR)
                try:
                    outcomes[connection.receive(timeout=10).kind] += 1
                except PbgError as error:
                    outcomes[type(error).__name__] += 1
        held = client.get(USER)
    assert (held.lease, held.table.embeddings[0, 0].item()) == (5, 2.0)
    assert ranks == [2] + [1] * FRAMES
    assert {"ok", "error", "RankLostError"} <= set(outcomes), outcomes
