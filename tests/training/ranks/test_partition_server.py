from __future__ import annotations

import threading
import time

import pytest
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.errors import ConfigError, ConflictError, FormatError, RankLostError, StorageError
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.ranks.partitions.client import PartitionClient, check_sendable
from pbg_tasks.training.ranks.partitions.server import PartitionServer, owner
from tests.training.ranks.links import linked
from tests.waiting import wait_until

USER = PartitionKey("user", 0)
PATIENCE = 20  # seconds; only a defect takes so long
NEVER = 1e6


class Store:
    """Store as slow as a test sets it."""

    def __init__(self):
        self.stored, self.begun, self.go_on = [], threading.Semaphore(0), threading.Event()
        self.go_on.set()
        self.error = None

    def __call__(self, key, table, lease):
        self.begun.release()
        assert self.go_on.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self.stored.append((key, table.embeddings.clone(), lease))


@pytest.fixture
def store():
    return Store()


def unexpected(error):
    raise AssertionError from error


def serving(store, *, interval=NEVER, on_error=unexpected):
    return PartitionServer(store, interval=interval, on_error=on_error)


def table(value, count=5, dimension=3):
    return Table(torch.full((count, dimension), float(value)), torch.full((count,), float(value) + 0.5))


def values(held):
    return held.table.embeddings[0, 0].item(), held.table.row_sums[0].item(), held.lease


def test_partitions_are_distributed_as_by_pbg():
    assert [owner(PartitionKey(name, number), 3) for name in "ab" for number in range(4)] == [0, 1, 2, 0] * 2


@pytest.fixture
def server(store):
    with serving(store) as running:
        yield running


@pytest.fixture(params=["own", "remote"])
def client(request, server):
    """Client of a server in this process, or over the network."""
    if request.param == "own":
        yield PartitionClient([server])
    else:
        with linked(server.serve, 0) as connections:
            yield PartitionClient(connections)


def test_stored_partition_is_returned_to_others(client):
    assert client.get(USER) is None
    client.put(USER, table(1), 7)
    client.put(PartitionKey("item", 0), table(2, 0), 8)
    assert values(client.get(USER)) == (1.0, 1.5, 7)
    item = client.get(PartitionKey("item", 0))
    assert (item.table.embeddings.shape, item.lease) == ((0, 3), 8)
    client.put(USER, table(3), 9)
    assert values(client.get(USER)) == (3.0, 3.5, 9)


def test_training_on_changes_nothing_on_the_server(client):
    mine = table(1, 1000, 10)
    client.put(USER, mine, 1)
    got = client.get(USER).table
    assert got.embeddings.data_ptr() % 64 == 0
    for trained in (mine, got):
        trained.embeddings.add_(5)
        trained.row_sums.add_(5)
    assert values(client.get(USER)) == (1.0, 1.5, 1)


def test_rank_that_lost_its_lease_is_refused(client):
    client.put(USER, table(1), 7)
    client.put(USER, table(2), 7)  # the same again, as at an eviction
    with pytest.raises(ConflictError, match=r"partition 0 of user: lease 6 brings it, but lease 7 has brought it"):
        client.put(USER, table(3), 6)


def test_flush_stores_the_newest_partitions(client, server, store):
    client.put(USER, table(1), 1)
    client.put(PartitionKey("user", 1), table(2), 2)
    client.put(USER, table(3), 3)
    server.flush(PATIENCE)
    newest = {key: (rows[0, 0].item(), lease) for key, rows, lease in store.stored}
    assert newest == {USER: (3.0, 3), PartitionKey("user", 1): (2.0, 2)}
    count = len(store.stored)
    server.flush(PATIENCE)
    assert len(store.stored) == count


def test_slow_store_ends_flush_with_an_error(client, server, store):
    store.go_on.clear()
    client.put(USER, table(1), 1)
    with pytest.raises(StorageError, match=r"1 partitions are not stored after 0\.05 s"):
        server.flush(0.05)
    store.go_on.set()


def test_time_of_flush_counts_for_each_partition(store):
    """All of a large model may take longer than each alone."""

    def slow(*stored):
        time.sleep(0.15)
        store(*stored)

    with serving(slow) as server:
        for number in range(8):
            server.put(PartitionKey("user", number), table(1), 1)
        server.flush(1.0, each=True)
        assert len(store.stored) == 8
        store.go_on.clear()
        server.put(USER, table(2), 2)
        with pytest.raises(StorageError, match="1 partitions are not stored"):
            server.flush(0.05, each=True)
        store.go_on.set()


def test_partition_is_stored_once_after_the_interval(store):
    with serving(store, interval=0.05) as server:
        server.put(USER, table(1), 1)
        wait_until(lambda: store.stored, PATIENCE)
        time.sleep(0.1)
        server.flush(PATIENCE)  # finds nothing to store
    assert [(key, lease) for key, _, lease in store.stored] == [(USER, 1)]


def test_partition_being_stored_stays_beside_its_successor(store):
    with serving(store) as server:
        store.go_on.clear()
        server.put(USER, table(1, 1000), 1)
        with pytest.raises(StorageError):
            server.flush(0.01)
        assert store.begun.acquire(timeout=PATIENCE)
        server.put(USER, table(2, 1000), 2)
        with pytest.raises(StorageError, match="2 partitions are not stored"):
            server.flush(0.01)
        store.go_on.set()
        server.flush(PATIENCE)
    assert [lease for _, _, lease in store.stored] == [1, 2]
    for _, rows, lease in store.stored:
        assert torch.equal(rows, torch.full((1000, 3), float(lease)))


def test_oldest_change_is_stored_first(store):
    keys = [PartitionKey("user", number) for number in (3, 1, 2)]
    with serving(store) as server:
        store.go_on.clear()
        for lease, key in enumerate(keys, start=1):
            server.put(key, table(lease), lease)
        server.put(keys[0], table(9), 9)
        store.go_on.set()
        server.flush(PATIENCE)
    assert [key for key, *_ in store.stored][:3] == keys


def test_failing_store_is_reported_and_closes_server(store):
    errors, told = [], threading.Event()

    def on_error(error):
        errors.append(error)
        told.set()

    store.error = StorageError("the store is on fire")
    with serving(store, interval=0.0, on_error=on_error) as server, linked(server.serve, 0) as connections:
        server.put(USER, table(1), 1)
        assert told.wait(PATIENCE)
        with pytest.raises(StorageError, match="on fire"):
            PartitionClient(connections).put(USER, table(2), 2)
        with pytest.raises(StorageError, match="on fire"):
            server.flush(PATIENCE)
    assert errors == [store.error]


def test_slow_store_is_reported_once(store, capsys):
    with serving(store, interval=0.0) as server:
        store.go_on.clear()
        for lease in (1, 2, 3):
            server.put(USER, table(lease), lease)
            server.put(PartitionKey("item", 0), table(lease), lease)
            assert store.begun.acquire(timeout=PATIENCE)
            if lease == 1:
                time.sleep(1.1)
                store.go_on.set()
        server.flush(PATIENCE)
    assert capsys.readouterr().err.count("would be trained again if this rank were lost") == 1


def test_several_servers_act_as_one(store):
    with serving(store) as own, serving(store) as other, linked(other.serve, 0) as (connection,):
        client = PartitionClient([own, connection])
        for number in range(4):
            client.put(PartitionKey("user", number), table(number), number)
        assert sorted(own._held) == [("user", 0), ("user", 2)]
        assert sorted(other._held) == [("user", 1), ("user", 3)]
        got = [values(client.get(PartitionKey("user", number))) for number in range(4)]
        assert got == [(number, number + 0.5, number) for number in range(4)]
        # 5 rows of 3 numbers and a sum, there and back, of the two partitions that another process has
        assert (client.traffic.requests, client.traffic.bytes) == (4, 4 * 5 * (3 + 1) * 4)
        assert client.traffic.seconds > 0
        for server in (own, other):
            server.flush(PATIENCE)
        assert {key.partition for key, *_ in store.stored} == {0, 1, 2, 3}


def test_lost_server_counts_as_lost_rank(store):
    with linked(lambda connection: connection.receive(timeout=PATIENCE), 0) as connections:
        client = PartitionClient(connections)
        with pytest.raises(RankLostError, match="rank 9 closed the connection"):
            client.put(USER, table(1), 1)


def test_invalid_request_is_refused(store):
    with serving(store) as server, linked(server.serve, 0, 1) as (first, second):
        with pytest.raises(FormatError, match="no request 'steal'"):
            first.request("steal", timeout=PATIENCE)
        embeddings, _ = table(1).to_arrays()
        with pytest.raises(FormatError, match=r"shapes \(5, 3\) and \(5, 3\)"):
            second.request("put", embeddings, embeddings, timeout=PATIENCE, entity="user", partition=0, lease=1)


@pytest.mark.parametrize(("partitions", "servers", "refused"), [(2, -1, True), (2, 0, False), (1, -1, False)])
def test_partition_beyond_one_message_is_refused(partitions, servers, refused):
    """Of dimension 4, a row takes 20 bytes."""
    model = ModelConfig.model_validate(
        {
            "entities": {"user": {"num_partitions": partitions}},
            "relations": [{"name": "r", "lhs": "user", "rhs": "user"}],
            "dimension": 4,
            "num_partition_servers": servers,
        }
    )
    if refused:
        with pytest.raises(ConfigError, match=r"user\.num_partitions: partition 0 takes 80 GB, .* at most 68\.7 GB"):
            check_sendable(model, {USER: 4_000_000_000})
    check_sendable(model, {USER: 4_000_000_000 if not refused else 3_000_000_000})
