"""Partitions that come and go behind the training."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest

from pbg_tasks.checkpoint import claim
from pbg_tasks.errors import ConflictError, EvictedError, RankLostError, StorageError
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.training.data.edge_files import EdgesAhead, FiledEdges
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.iteration_plan import IterationPlan
from pbg_tasks.training.ranks import partitions_ahead as module
from pbg_tasks.training.ranks.messages import Source
from pbg_tasks.training.ranks.partitions.partition_store import PartitionStore
from pbg_tasks.training.ranks.partitions_ahead import GenerationError, PartitionsAhead
from tests.training.buckets import PARTITIONS, SPEC, make_config
from tests.training.ranks.coordinators import coordinated, stored
from tests.training.ranks.crashes import ledger, ledger_of_whole
from tests.training.ranks.gangs import Watched, train

KEYS = [PartitionKey("n", part) for part in range(2)]


@pytest.fixture
def begun(tmp_path):
    """A coordinator within its first iteration, and its writer."""
    with coordinated(tmp_path, lambda _: {}) as found:
        yield found


def lease(coordinator, rank, report=None):
    kind, grant = coordinator.answer(rank, "next", {"iteration": 1, "report": report})
    return grant if kind == "lease" else None


def reserve(coordinator, rank):
    kind, reservation = coordinator.answer(rank, "reserve", {"iteration": 1})
    return reservation if kind == "reserved" else None


def report(grant, rank=0, **fields):
    place = {name: grant[name] for name in ("lhs", "rhs", "lease")}
    return {"edge_chunk": {"rank": rank, "edges": 54, **place}, **fields}


def files(bucket):
    return {f"embeddings_n_{bucket[side]}.v1.h5" for side in ("lhs", "rhs")}


def objects_of(grant):
    found = [stored(grant[side], lease=grant["lease"]) for side in ("lhs", "rhs")]
    return {each["name"]: each["object"] for each in found}


def test_reservation_names_partitions_that_rank_lacks(begun):
    coordinator, writer = begun
    grant = lease(coordinator, 0)
    reserved = reserve(coordinator, 0)
    assert set(reserved["sources"]) == files(reserved) - files(grant)
    assert [(each.lhs, each.rhs) for each in writer.progress.active] == [(grant["lhs"], grant["rhs"])]
    following = lease(coordinator, 0, report(grant))
    assert (following["lhs"], following["rhs"]) == (reserved["lhs"], reserved["rhs"])
    assert {name: following["sources"][name] for name in reserved["sources"]} == reserved["sources"]


def test_rank_without_bucket_reserves_none(begun):
    coordinator, _ = begun
    with pytest.raises(ConflictError, match="rank 0 reserves a bucket, but trains none"):
        reserve(coordinator, 0)
    lease(coordinator, 0)
    coordinator.answer(1, "leave", {})
    assert reserve(coordinator, 0) is None  # the gang ends


def test_bucket_counts_once_partitions_are_put_away(begun):
    coordinator, writer = begun
    grant = lease(coordinator, 0)
    reserve(coordinator, 0)
    following = lease(coordinator, 0, report(grant, underway=True))
    assert [each.lease for each in writer.progress.done] == []
    assert {each.lease for each in writer.progress.active} == {grant["lease"], following["lease"]}
    coordinator.answer(0, "put away", {"lease": grant["lease"], "objects": objects_of(grant)})
    assert [each.lease for each in writer.progress.done] == [grant["lease"]]
    assert {each.lease for each in writer.progress.active} == {following["lease"]}
    assert set(writer.progress.partitions) == files(grant)


def test_partitions_stay_locked_until_put_away(begun):
    coordinator, _ = begun
    grant, following = None, lease(coordinator, 0)
    while grant is None or not files(grant) - files(following):  # until a bucket leaves a partition to others
        if grant is not None:
            coordinator.answer(0, "put away", {"lease": grant["lease"], "objects": {}})
        grant = following
        reserve(coordinator, 0)
        following = lease(coordinator, 0, report(grant, underway=True))
    own = files(grant) | files(following)
    others = []
    while (other := lease(coordinator, 1, (others and report(others[-1], 1)) or None)) is not None:
        assert not files(other) & own
        others.append(other)
    coordinator.answer(0, "put away", {"lease": grant["lease"], "objects": {}})
    other = lease(coordinator, 1)
    assert files(other) & (files(grant) - files(following))


def test_partitions_put_away_before_report_wait_for_it(begun):
    coordinator, writer = begun
    grant = lease(coordinator, 0)
    reserve(coordinator, 0)
    coordinator.answer(0, "put away", {"lease": grant["lease"], "objects": objects_of(grant)})
    assert writer.progress.partitions == {}
    lease(coordinator, 0, report(grant, underway=True))
    assert [each.lease for each in writer.progress.done] == [grant["lease"]]
    assert set(writer.progress.partitions) == files(grant)


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_puts_away_its_own_leases_only(begun, rank):
    coordinator, _ = begun
    grant = lease(coordinator, 0)
    number = grant["lease"] + (rank == 0)
    with pytest.raises(ConflictError, match=f"rank {rank} puts away lease {number}, which it does not have"):
        coordinator.answer(rank, "put away", {"lease": number, "objects": {}})


def test_iteration_ends_after_last_partition_is_put_away(begun):
    coordinator, _ = begun
    state, grants = coordinator.state, []
    while not grants or grants[-1] is not None:
        before = grants[-1] if grants else None
        grants.append(lease(coordinator, 0, report(before, underway=True) if before else None))
        if before is not None and grants[-1] is not None:
            coordinator.answer(0, "put away", {"lease": before["lease"], "objects": {}})
        if grants[-1] is not None:
            reserve(coordinator, 0)
        elif not state.trained:
            coordinator.answer(0, "put away", {"lease": before["lease"], "objects": {}})
            grants[-1] = lease(coordinator, 0)
    assert state.trained
    assert len(state.done) == PARTITIONS**2


def table(value):
    return Table.from_arrays(np.full((3, 4), value, np.float32), np.full(3, value, np.float32))


def test_kept_partition_is_put_away_as_it_was():
    put, go = {}, threading.Event()

    def put_away(tables, lease):
        assert go.wait(10)
        put[lease] = {key: each.embeddings[0, 0].item() for key, each in tables.items()}

    tables = {key: table(1.0) for key in KEYS}
    with PartitionsAhead(None, put_away, pytest.fail) as ahead:
        ahead.put(tables, 7, KEYS[:1])
        tables[KEYS[0]].embeddings.fill_(2.0)  # as training does
        go.set()
        ahead.finish()
    assert put == {7: dict.fromkeys(KEYS, 1.0)}


def wanted(generation):
    return dict.fromkeys(KEYS, generation)


def unchecked():
    pass


def read(ahead, *generations):
    ahead.read({key: Source(generation=each) for key, each in zip(KEYS, generations, strict=True)})


def test_partition_not_read_in_advance_is_read_later():
    def fetch(key, source):
        if source.generation == 3:
            raise (GenerationError if key.partition else StorageError)("its server has generation 4")
        return table(float(key.partition))

    with PartitionsAhead(fetch, None, pytest.fail) as ahead:
        assert ahead.take(wanted(5), unchecked) == {}
        for generations, there in (((5, 5), KEYS), ((5, 3), KEYS[:1]), ((3, 5), KEYS[1:]), ((5, 6), KEYS[:1])):
            read(ahead, *generations)
            found = ahead.take(wanted(5), unchecked)
            assert {key: generation for key, (generation, _) in found.items()} == dict.fromkeys(there, 5)
            assert ahead.take(wanted(5), unchecked) == {}
        ahead.check()


@pytest.mark.parametrize("error", [RankLostError("silent"), TypeError("a bug")])
def test_failed_hint_is_reported_and_raised(error):
    told = []
    with PartitionsAhead(lambda *_: fail(error), None, told.append) as ahead:
        read(ahead, 5, 5)
        for check in (lambda: ahead.take(wanted(5), unchecked), ahead.check, lambda: ahead.clear(unchecked)):
            with pytest.raises(type(error), match=str(error)):
                check()
    assert told[0] is error


def test_read_not_needed_is_not_waited_for():
    begun, go, reads = threading.Barrier(3), threading.Event(), []

    def fetch(key, source):
        reads.append(key)
        begun.wait(10)
        assert go.wait(10)
        return table(float(source.generation))

    with PartitionsAhead(fetch, None, pytest.fail) as ahead:
        read(ahead, 5, 5)
        begun.wait(10)
        assert ahead.take(wanted(6), unchecked) == {}
        read(ahead, 5, 5)  # they are still read
        with pytest.raises(EvictedError):
            ahead.take(wanted(5), lambda: fail(EvictedError("told to end")))
        with pytest.raises(EvictedError):
            ahead.clear(lambda: fail(EvictedError("told to end")))
        threading.Timer(0.1, go.set).start()
        assert set(ahead.take(wanted(5), unchecked)) == set(KEYS)
        ahead.clear(unchecked)
        gc.collect()
        assert ahead.take(wanted(5), unchecked) == {}
    assert sorted(reads) == KEYS


def test_hanging_read_does_not_hold_up_end(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.01)
    begun, go = threading.Event(), threading.Event()

    def fetch(*_):
        begun.set()
        go.wait(60)

    before = set(threading.enumerate())
    with PartitionsAhead(fetch, None, pytest.fail) as ahead:
        read(ahead, 5, 5)
        assert begun.wait(10)
    left = set(threading.enumerate()) - before
    assert left
    assert all(each.daemon for each in left)
    assert not any("ThreadPool" in each.name for each in left)  # those are waited for when the process ends
    go.set()
    for each in left:
        each.join(10)


def test_failed_put_is_reported_and_raised():
    told = []
    with PartitionsAhead(None, lambda *_: fail(StorageError("away")), told.append) as ahead:
        ahead.put({KEYS[0]: table(1.0)}, 1, [])
        ahead.settle(10.0)
        assert [str(error) for error in told] == ["away"]
        for check in (ahead.check, ahead.finish):
            with pytest.raises(StorageError, match="away"):
                check()


def fail(error):
    raise error


def ranks_config(**changes):
    changes = {"num_epochs": 1, "eval_fraction": 0.0, "num_partition_servers": 0} | changes
    return make_config(entities={"n": {"num_partitions": PARTITIONS}}, partitions_ahead=True, **changes)


def test_edges_of_reservation_lost_leave_memory(buckets):
    edges = FiledEdges(buckets)
    chunks = IterationPlan(ranks_config(), edges, seed=0)
    first, second = chunks.edge_chunks(chunks.plan[0])[:2]
    ahead = EdgesAhead(edges)
    with ahead.io:
        ahead.ask(first)
        ahead.ask(second)
        ahead.forget(second)
        ahead.forget(second)
        assert len(ahead.take(first, ())) == first.edges
        assert not ahead._coming


@pytest.mark.parametrize("world", [1, 2])
def test_store_that_fails_behind_training_ends_gang(buckets, tmp_path, monkeypatch, world):
    puts, put_all = itertools.count(), PartitionStore.put_all

    def failing(store, tables, *, lease):
        return fail(StorageError("away")) if next(puts) >= 3 else put_all(store, tables, lease=lease)

    config, store = ranks_config(), LocalStore(tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(PartitionStore, "put_all", failing)
        with pytest.raises(StorageError, match="away"):
            train(config, buckets, store, tmp_path / "a", world=world)
    with claim(store, "", SPEC, patience=0.1) as writer:
        assert len(writer.progress.done) == 3
    train(config, buckets, store, tmp_path / "b", world=world)
    assert ledger(store)[0] == ledger_of_whole(config, buckets, tmp_path)


@pytest.mark.parametrize("servers", [0, -1])
def test_rank_stopped_with_partitions_underway_loses_nothing(buckets, tmp_path, monkeypatch, servers):
    """SIGTERM comes while partitions are on their way, slowly."""
    config = ranks_config(num_partition_servers=servers, store_interval=1000)
    store, engines, trained = LocalStore(tmp_path / "store"), [], itertools.count(1)
    put = PartitionsAhead._put

    def slow(ahead, tables, number):
        threading.Event().wait(0.2)
        put(ahead, tables, number)

    def stop():
        if next(trained) == 6:
            for engine in engines:
                engine.member.evicted.set()

    monkeypatch.setattr(PartitionsAhead, "_put", slow)
    engines += [Watched(config, stop) for _ in range(2)]
    with pytest.raises(EvictedError):
        train(config, buckets, store, tmp_path / "a", world=2, engines=engines)
    with claim(store, "", SPEC, patience=0.1) as writer:
        assert writer.progress.active == ()
        assert len(writer.progress.done) + len(writer.progress.begun) >= 4
    train(config, buckets, store, tmp_path / "b")
    assert sum(ledger(store)[1]) == 0
