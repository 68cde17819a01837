"""Ranks that train together, are stopped or crash, and continue.

The network between them is left out.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from functools import partial
from itertools import product
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from pbg_tasks.checkpoint import CheckpointWriter, claim, open_committed
from pbg_tasks.errors import ConfigError, ConflictError, EvictedError, StorageError, TrainingDivergedError
from pbg_tasks.formats.model import read_model, write_model
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.training.commits import Commits
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.engine.anchor import Anchor
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.ranks.parameters.exchange import ParameterExchange
from pbg_tasks.training.ranks.rank import RankWork, withdraw
from pbg_tasks.training.ranks.shared import SharedState
from tests.training.buckets import SPEC, Buckets, objects
from tests.training.buckets import make_config as make_single_config
from tests.training.ranks.crashes import Crash, ledger, ledger_of_whole
from tests.training.ranks.gangs import Rank, Watched, train
from tests.training.releases import release


class Hurt(TorchEngine):
    """Engine that acts before its n-th bucket, or n-th batch of all."""

    def __init__(self, config, *, bucket=None, batch=None, act=None):
        super().__init__(config, 1)
        self._bucket, self._batch, self.act = bucket, batch, act

    def train_bucket(self, *args, **kwargs):
        self._bucket = self._due(self._bucket)
        return super().train_bucket(*args, **kwargs)

    def step(self, *args, **kwargs):
        self._batch = self._due(self._batch)
        return super().step(*args, **kwargs)

    def stop(self):
        self.member.evicted.set()

    def _due(self, left):
        if left == 0:
            self.act()
        return None if left is None else left - 1


PARTITIONS = 3
EDGES = 60 * (PARTITIONS**2 - 1)


def make_config(**changes):
    return make_single_config(entities={"n": {"num_partitions": PARTITIONS}}, **changes)


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    return Buckets(tmp_path_factory.mktemp("data") / "edges", PARTITIONS)


def fail(error):
    raise error


def names(store):
    return sorted(info.key for info in store.list())


@pytest.mark.parametrize(
    ("world", "servers", "ahead"), [*product([1, 2], [0, -1], [False]), *product([2], [0, -1], [True])]
)
def test_every_edge_is_trained_once_by_any_rank(buckets, tmp_path, world, servers, ahead):
    store = LocalStore(tmp_path / "s")
    config = make_config(num_partition_servers=servers, partitions_ahead=ahead, eval_fraction=0.0, num_epochs=2)
    gang = train(config, buckets, store, tmp_path / "scratch", world=world)
    assert ledger(store) == ((EDGES, EDGES), ())
    assert sum(figures.edges for figures in gang) == 2 * EDGES
    assert sum(figures.buckets for figures in gang) == 2 * PARTITIONS**2
    expected = [f"embeddings_n_{p}.v2.h5" for p in range(PARTITIONS)] + ["manifest.v2.json", "model.v2.h5"]
    statistics = ["training_io.json", "training_stats.json"]
    assert names(store) == ["HEAD.json", "checkpoint_version.txt", *expected, *statistics]


@pytest.mark.parametrize(("ahead", "most"), [(False, 1), (True, 5)])
def test_partitions_of_bucket_before_leave_memory_first(buckets, tmp_path, monkeypatch, ahead, most):
    """Count tables: the one taken over, ahead also those on their way."""
    fetch, brought, before = RankWork._fetch, [], []

    def watched(work, key, source):
        before.append(sum(each() is not None for each in brought))
        table = fetch(work, key, source)
        brought.append(weakref.ref(table.embeddings))
        return table

    monkeypatch.setattr(RankWork, "_fetch", watched)
    config = make_single_config(
        entities={name: {"num_partitions": PARTITIONS} for name in ("left", "right")},
        relations=[{"name": "r", "lhs": "left", "rhs": "right", "operator": "none"}],
        num_epochs=1,
        partitions_ahead=ahead,
    )
    train(config, buckets, LocalStore(tmp_path / "store"), tmp_path / "scratch")
    assert len(brought) > 2 * PARTITIONS
    assert max(before) == most if not ahead else 1 < max(before) <= most


@pytest.mark.rotated(3)
@pytest.mark.parametrize("ahead", [False, True])
def test_gang_crashed_at_any_bucket_gives_equal_bits(buckets, tmp_path, ahead):
    """With one rank and one worker nothing depends on time.

    So the lost bucket alone is repeated.
    """
    config, whole = make_config(num_epochs=2, partitions_ahead=ahead), LocalStore(tmp_path / "whole")
    train(config, buckets, whole, tmp_path / "scratch")
    expected = objects(whole)
    for bucket in (4, 9) if ahead else (0, 4, 8, 9, 13):
        store = LocalStore(tmp_path / f"store-{bucket}")
        engine = Hurt(config, bucket=bucket, act=lambda: fail(Crash))
        with pytest.raises(Crash):
            train(config, buckets, store, tmp_path / f"a-{bucket}", engines=[engine], crash=True)
        train(config, buckets, store, tmp_path / f"b-{bucket}")
        assert objects(store) == expected
        edges, retrained = ledger(store)
        assert edges == ledger(whole)[0]
        assert sum(retrained) <= 54 * (1 + ahead)  # a bucket without held-out edges, whether or not any was trained
        assert not [name for name in names(store) if name.startswith(("partial/", "progress"))]


@pytest.mark.parametrize("share_every", [0.0, 1000.0])
def test_gang_failing_to_load_shared_state_changes_nothing(buckets, tmp_path, monkeypatch, share_every):
    config, whole, store = make_config(num_epochs=1), LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "store")
    train(config, buckets, whole, tmp_path / "scratch")
    engine = Hurt(config, bucket=4, act=lambda: fail(Crash))
    with pytest.raises(Crash):
        train(config, buckets, store, tmp_path / "a", engines=[engine], crash=True)
    with monkeypatch.context() as patch:
        patch.setattr(SharedState, "load", lambda *_: fail(StorageError("away")))
        with pytest.raises(StorageError, match="away"):
            train(config, buckets, store, tmp_path / "b", share_every=share_every)
    train(config, buckets, store, tmp_path / "c")
    assert objects(store) == objects(whole)


def test_gang_stopped_after_last_bucket_gives_equal_bits(buckets, tmp_path, monkeypatch):
    config, whole, store = make_config(num_epochs=1), LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "store")
    train(config, buckets, whole, tmp_path / "scratch")
    engine, flush = TorchEngine(config, 1), ParameterExchange.flush

    def told(exchange):
        flush(exchange)
        engine.member.evicted.set()

    with monkeypatch.context() as patch:
        patch.setattr(ParameterExchange, "flush", told)
        with pytest.raises(EvictedError):
            train(config, buckets, store, tmp_path / "a", engines=[engine], share_every=1000.0)
    (figures,) = train(config, buckets, store, tmp_path / "b")
    assert figures.buckets == 0
    assert objects(store) == objects(whole)


def test_shared_rows_are_drawn_once_despite_crash(buckets, tmp_path, monkeypatch):
    config = make_single_config(entities={"n": {"num_partitions": 1}}, num_epochs=1)
    whole, store, before = LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "store"), tmp_path / "release"
    anchor = partial(Anchor, release(before, config), 0.5)
    train(config, buckets, whole, tmp_path / "scratch", anchor=anchor)
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointWriter, "commit", lambda *_, **__: fail(Crash))
        with pytest.raises(Crash):
            train(config, buckets, store, tmp_path / "a", crash=True, anchor=anchor)
    train(config, buckets, store, tmp_path / "b", anchor=anchor)
    assert objects(store) == objects(whole)
    free = LocalStore(tmp_path / "free")
    train(config, buckets, free, tmp_path / "c")
    assert objects(store) != objects(free)


def test_stopped_gang_continues_with_the_next_batch(buckets, tmp_path):
    config, store = make_config(num_epochs=1, eval_fraction=0.0), LocalStore(tmp_path / "store")
    engine = Hurt(config, batch=10)
    engine.act = engine.stop
    with pytest.raises(EvictedError):
        train(config, buckets, store, tmp_path / "a", engines=[engine])
    with claim(store, "", SPEC, patience=0.1) as writer:
        (begun,) = writer.progress.begun
        assert (begun.batches, begun.edges) == (
            2,
            40,
        )  # a bucket has three batches; the eleventh batch was being trained
        assert [edge_chunk.edges for edge_chunk in writer.progress.done if edge_chunk.edges] == [60] * 3
    engine = TorchEngine(config, 1)
    gang = train(config, buckets, store, tmp_path / "b", engines=[engine])
    assert gang[0].edges == EDGES - 3 * 60 - 40
    assert ledger(store) == ((EDGES,), ())


@pytest.mark.rotated(3)
@pytest.mark.parametrize("servers", [0, -1])
def test_crashed_rank_loses_unstored_edges_by_ledger(buckets, tmp_path, monkeypatch, servers):
    config = make_config(num_partition_servers=servers, eval_fraction=0.0, num_epochs=1, store_interval=0.05)
    store, rated = LocalStore(tmp_path / "store"), []
    monkeypatch.setattr(Commits, "_line", lambda commits, _iteration, **_: str(rated.extend(commits.figures)))
    begun = itertools.count(1)
    engines = [Watched(config, lambda: next(begun) == 5 and fail(Crash)) for _ in range(2)]  # whichever it is
    with pytest.raises(Crash):
        train(config, buckets, store, tmp_path / "a", world=2, engines=engines, crash=True)
    with claim(store, "", SPEC, patience=0.1) as writer:
        stored = sum(edge_chunk.edges for edge_chunk in (*writer.progress.done, *writer.progress.begun))
    assert stored >= 2 * 60 if servers == 0 else stored >= 0
    gang = train(config, buckets, store, tmp_path / "b", world=3)  # another number of ranks may continue
    (edges,), retrained = ledger(store)
    assert edges == EDGES
    assert sum(figures.edges for figures in gang) == EDGES - stored
    assert [figures.edges for figures in rated] == [EDGES - stored]
    assert 0 < sum(retrained) <= EDGES - stored


def test_unpartitioned_types_are_shared_unused_ones_kept(buckets, tmp_path):
    entities = {"n": {"num_partitions": PARTITIONS}, "one": {"num_partitions": 1}, "idle": {"num_partitions": 2}}
    relations = [
        {"name": "r", "lhs": "n", "rhs": "n", "operator": "translation"},
        {"name": "s", "lhs": "n", "rhs": "one", "operator": "none"},
    ]
    config = make_single_config(entities=entities, relations=relations, num_epochs=2, eval_fraction=0.0)
    store = LocalStore(tmp_path / "store")
    train(config, buckets, store, tmp_path / "scratch", world=2)
    manifest, _ = open_committed(store, "")
    assert {f"embeddings_{name}.v2.h5" for name in ("n_2", "one_0", "idle_0", "idle_1")} < set(manifest.objects)
    with h5py.File(f"{store.url}/embeddings_one_0.v2.h5") as file:
        assert np.isfinite(file["embeddings"][()]).all()


@pytest.mark.parametrize("servers", [0, -1])
def test_empty_partition_is_trained(buckets, tmp_path, servers):
    entities = {"n": {"num_partitions": PARTITIONS}, "few": {"num_partitions": PARTITIONS}}
    relations = [{"name": name, "lhs": "n", "rhs": rhs, "operator": "none"} for name, rhs in (("r", "n"), ("s", "few"))]
    config = make_single_config(
        entities=entities, relations=relations, num_epochs=2, num_partition_servers=servers, eval_fraction=0.0
    )
    store, counts = LocalStore(tmp_path / "store"), {PartitionKey("few", 1): 0}
    train(config, buckets, store, tmp_path / "scratch", world=2, counts=counts)
    assert ledger(store) == ((EDGES, EDGES), ())
    with h5py.File(f"{store.url}/embeddings_few_1.v2.h5") as file:
        assert file["embeddings"].shape == (0, config.dimension)


def test_partitions_are_stored_when_leaving_fails():
    done = []
    client = SimpleNamespace(
        leave=lambda _: fail(StorageError("away")), meet=lambda place, *, seconds: done.append((place, seconds > 0))
    )
    server = SimpleNamespace(flush=lambda seconds: done.append(("flushed", seconds > 0)))
    with pytest.raises(StorageError, match="away"):
        withdraw(client, server, None)
    assert done == [("left", True), ("flushed", True), ("stored", True)]


def test_diverged_training_commits_nothing(buckets, tmp_path):
    config, store = make_config(lr=1e30, num_epochs=1), LocalStore(tmp_path / "store")
    with pytest.raises(TrainingDivergedError):
        train(config, buckets, store, tmp_path / "scratch", world=2)
    assert not [name for name in names(store) if ".v1.h5" in name and not name.startswith("partial/")]


def test_fenced_gang_changes_nothing(buckets, tmp_path):
    """Let another gang claim the directory while this one trains.

    Its next record, and so its bucket, does not count.
    """
    config, store = make_config(num_epochs=1), LocalStore(tmp_path / "store")

    def take_over():
        with claim(store, "", SPEC, patience=0.0):
            pass

    with pytest.raises(ConflictError, match="another writer claimed this run"):
        train(config, buckets, store, tmp_path / "a", engines=[Hurt(config, bucket=5, act=take_over)])
    train(config, buckets, store, tmp_path / "b")
    assert ledger(store)[0] == ledger_of_whole(config, buckets, tmp_path)


@pytest.mark.parametrize("servers", [0, -1])
def test_rank_stopped_while_waiting_keeps_its_work(buckets, tmp_path, servers):
    """It has sent its last report and has partitions to store.

    Only this rank can store them.
    """
    config = make_config(num_partition_servers=servers, eval_fraction=0.0, num_epochs=1, store_interval=1000)
    store, engines, trained = LocalStore(tmp_path / "store"), [], itertools.count(1)

    def stop_later():
        if next(trained) == 5:
            time.sleep(0.2)  # with three partitions the other rank waits while this one trains
            for engine in engines:
                engine.member.evicted.set()

    engines += [Watched(config, stop_later) for _ in range(2)]
    with pytest.raises(EvictedError):
        train(config, buckets, store, tmp_path / "a", world=2, engines=engines)
    with claim(store, "", SPEC, patience=0.1) as writer:
        assert (
            len([edge_chunk for edge_chunk in (*writer.progress.done, *writer.progress.begun) if edge_chunk.edges]) >= 3
        )
        assert writer.progress.active == ()
    train(config, buckets, store, tmp_path / "b")
    assert ledger(store) == ((EDGES,), ())


def evict_in_first_bucket(config, buckets, store, scratch):
    engine = Hurt(config, batch=1)
    engine.act = engine.stop
    with pytest.raises(EvictedError):
        train(config, buckets, store, scratch, engines=[engine])


def test_bucket_with_changed_order_is_trained_again(buckets, tmp_path):
    config, store = make_config(num_epochs=1, eval_fraction=0.0), LocalStore(tmp_path / "store")
    evict_in_first_bucket(config, buckets, store, tmp_path / "a")
    train(config.model_copy(update={"batch_size": 15}), buckets, store, tmp_path / "b")
    assert ledger(store) == ((EDGES,), (40,))


def test_iteration_is_not_continued_on_other_edges(buckets, tmp_path):
    config, store = make_config(num_epochs=1, eval_fraction=0.0), LocalStore(tmp_path / "store")
    engine = Hurt(config, bucket=3, act=lambda: fail(Crash))
    with pytest.raises(Crash):
        train(config, buckets, store, tmp_path / "a", engines=[engine], crash=True)
    other = config.model_copy(update={"num_edge_chunks": 2})
    with pytest.raises(ConfigError, match="iteration 1 is partly trained and stored, on other edges"):
        train(other, buckets, store, tmp_path / "b")


def test_iteration_is_continued_towards_more_epochs(buckets, tmp_path):
    """It was refused as one on other edges."""
    config, store = make_config(num_epochs=1, eval_fraction=0.0), LocalStore(tmp_path / "store")
    evict_in_first_bucket(config, buckets, store, tmp_path / "a")
    train(config.model_copy(update={"num_epochs": 2}), buckets, store, tmp_path / "b")
    assert ledger(store) == ((EDGES, EDGES), ())


def test_infinite_shared_parameters_are_not_stored(buckets, tmp_path):
    config, store = make_config(), LocalStore(tmp_path / "store")
    with claim(store, "", SPEC, patience=0.1) as writer:
        rank = Rank(0, config, buckets, writer, tmp_path)
        next(iter(rank.shared.tensors().values())).fill_(float("inf"))
        with pytest.raises(TrainingDivergedError, match="not finite"):
            rank.shared.store(1, rank.partition_store, rank.step_lock)
        assert not list(store.list("partial/"))


def test_training_continues_while_shared_state_is_written(buckets, tmp_path, monkeypatch):
    """The written state is that of the closed step lock.

    The lock is closed for the time of a copy.
    """
    config, store, stored = make_config(), LocalStore(tmp_path / "store"), {}
    writing, trained = threading.Event(), threading.Event()

    def write(*args, **named):
        writing.set()
        assert trained.wait(10)
        write_model(*args, **named)

    monkeypatch.setattr("pbg_tasks.training.ranks.shared.write_model", write)
    with claim(store, "", SPEC, patience=0.1) as writer:
        rank = Rank(0, config, buckets, writer, tmp_path)
        path, value = next(iter(rank.engine.shared.values.items()))
        before = value.numpy().copy()

        def train_a_step():
            with rank.step_lock.step():
                value.add_(1.0)
            trained.set()

        storing = threading.Thread(
            target=lambda: stored.update(rank.shared.store(1, rank.partition_store, rank.step_lock))
        )
        storing.start()
        assert writing.wait(10)
        threading.Thread(target=train_a_step, daemon=True).start()
        storing.join(20)
        (found,) = (each for name, each in stored.items() if name.startswith("model"))
        state = read_model(rank.partition_store.partial.fetch(found, tmp_path / "taken"))
    np.testing.assert_array_equal(state.params[path], before)
    np.testing.assert_array_equal(value.numpy(), before + 1.0)
