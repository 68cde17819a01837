"""The loop with its reading, writing and storing in other threads."""

from __future__ import annotations

import json
import threading
import time
import weakref
from itertools import accumulate

import numpy as np
import pytest

from pbg_tasks.checkpoint import claim, open_committed
from pbg_tasks.checkpoint.live import FILE_NAME as LIVE
from pbg_tasks.errors import ConflictError, EvictedError, FormatError, NotFoundError, StorageError
from pbg_tasks.progress import Progress
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.storage.staging import sha256_file
from pbg_tasks.training import local_work
from pbg_tasks.training.data.edge_files import FiledEdges
from pbg_tasks.training.engine.held_out import split_off
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.iteration_plan import IterationPlan
from tests.training.buckets import PARTITIONS, SPEC, Buckets, make_config, objects, train
from tests.waiting import wait_until

THREADS = {"partitions", "edges", "uploads"}


@pytest.mark.rotated(3)
def test_buffer_decides_about_time_and_memory_only(buckets, tmp_path):
    """With two partitions none is read ahead; with four none swapped."""
    found = {}
    for buffer in (None, 2, 3, 4):
        config, store = make_config(partition_buffer=buffer), LocalStore(tmp_path / f"store-{buffer}")
        train(config, buckets, store, tmp_path / f"scratch-{buffer}")
        found[buffer] = objects(store)
    assert found[2][0] == 3
    assert len(found[2][1]) == PARTITIONS + 1
    assert all(each == found[2] for each in found.values())


@pytest.mark.rotated(3)
def test_interrupted_training_ends_the_same(buckets, tmp_path):
    config = make_config(bucket_order="min_swaps", partition_buffer=3)
    whole, parts = LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "parts")
    train(config, buckets, whole, tmp_path / "scratch")
    for epochs in (1, 2, 3):
        train(
            make_config(num_epochs=epochs, bucket_order="min_swaps", partition_buffer=3),
            buckets,
            parts,
            tmp_path / f"scratch-{epochs}",
        )
    assert objects(parts) == objects(whole)


class Told:
    """Requests an end after a number of checks for it."""

    def __init__(self, looks):
        self._left = looks

    def __call__(self):
        self._left -= 1
        return self._left < 0


class Drawn:
    """Changes a final partition once an iteration.

    Doing it twice would show in the numbers.
    """

    def draw(self, _key, table, iteration):
        table.embeddings.mul_(0.9).add_(0.01 * (iteration.epoch_idx + 1))


TWO_TYPES = {
    "entities": {"n": {"num_partitions": PARTITIONS}, "one": {"num_partitions": 1}, "idle": {"num_partitions": 2}},
    "relations": [
        {"name": "r", "lhs": "n", "rhs": "n", "operator": "translation"},
        {"name": "s", "lhs": "n", "rhs": "one", "operator": "diagonal"},
    ],
}


@pytest.mark.rotated(3)
@pytest.mark.parametrize("looks", [7, 40])
@pytest.mark.parametrize(
    "changes",
    [
        {"bucket_order": "min_swaps", "partition_buffer": 3},
        {"bucket_order": "random", "partition_buffer": 2, "eval_fraction": 0.0, "num_edge_chunks": 2},
        TWO_TYPES,
    ],
    ids=["min_swaps", "chunks", "two types"],
)
def test_training_stopped_at_any_batch_ends_equally(buckets, tmp_path, changes, looks):
    """Stop again and again, a batch or so later each time.

    Final partitions are changed, too.
    """
    config = make_config(num_epochs=2, lr=0.3, **changes)
    whole, parts = LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "parts")
    train(config, buckets, whole, tmp_path / "scratch", anchor=Drawn())
    ended, tries = False, 0
    while not ended:
        tries += 1
        try:
            # a little more each time: a start checks several times before its first batch
            told = Told(looks + tries // 4)
            train(config, buckets, parts, tmp_path / f"scratch-{tries}", anchor=Drawn(), stopping=told)
            ended = True
        except EvictedError:
            pass
        assert tries < 300
    assert tries > 1
    assert objects(parts) == objects(whole)
    manifest, _ = open_committed(parts, "")
    assert manifest.edges == open_committed(whole, "")[0].edges
    assert not manifest.retrained
    assert not [info.key for info in parts.list() if info.key.startswith(("partial/", "progress."))]


def test_rate_leaves_out_edges_stored_before(buckets, tmp_path):
    """The seconds are those of the last process alone."""
    config, store = make_config(num_epochs=1), LocalStore(tmp_path / "store")
    with pytest.raises(EvictedError):
        train(config, buckets, store, tmp_path / "a", stopping=Told(20))
    with claim(store, "", SPEC) as writer:
        stored = sum(edge_chunk.edges for edge_chunk in (*writer.progress.done, *writer.progress.begun))
    (figures,) = train(config, buckets, store, tmp_path / "b")
    (edges,) = open_committed(store, "")[0].edges
    assert 0 < stored < edges
    assert figures.edges == edges - stored


def test_progress_counts_part_of_bucket_stored_before(buckets, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(
        local_work, "Progress", lambda *args, **kwargs: shown.append(Progress(*args, **kwargs)) or shown[-1]
    )
    config, store = make_config(num_epochs=1), LocalStore(tmp_path / "store")
    with pytest.raises(EvictedError):
        train(config, buckets, store, tmp_path / "a", stopping=Told(20))
    with claim(store, "", SPEC) as writer:
        assert writer.progress.begun
    shown.clear()
    train(config, buckets, store, tmp_path / "b")
    assert [(each.what, each.done) for each in shown] == [(each.what, each.total) for each in shown]
    assert [each.what for each in shown] == ["train", "epoch 1/1"]


class Watched(TorchEngine):
    """Calls a function while it trains.

    Args:
        during: called with the number of the bucket, from 0, before it is trained.
    """

    def __init__(self, config, during):
        super().__init__(config, 1)
        self._during, self._buckets = during, 0

    def train_bucket(self, *args, **kwargs):
        self._during(self._buckets)
        self._buckets += 1
        return super().train_bucket(*args, **kwargs)


def test_partitions_are_stored_before_last_bucket_trains(buckets, tmp_path):
    store = LocalStore(tmp_path / "store")

    def during(number):
        if number == PARTITIONS**2 - 1:  # the last bucket of the first epoch
            wait_until(lambda: store.head("embeddings_n_3.v1.h5") or store.head("embeddings_n_2.v1.h5"))
            assert store.head("model.v1.h5") is None
            with pytest.raises(NotFoundError, match="no version has been committed"):
                open_committed(store, "")

    config = make_config()
    train(config, buckets, store, tmp_path / "scratch", engine=Watched(config, during))
    assert objects(store)[0] == 3


def test_stored_files_stay_unchanged_while_training_continues(buckets, tmp_path):
    """On one file system the store keeps the files from scratch."""
    store, checked = LocalStore(tmp_path / "store"), []

    def during(number):
        if (
            number == 2 * PARTITIONS**2 - 1
        ):  # the last bucket of the second epoch: most partitions have left memory again
            manifest, _ = open_committed(store, "")
            checked.extend(manifest.objects)
            for name, record in manifest.objects.items():
                assert sha256_file(tmp_path / "store" / name) == record.sha256

    config = make_config(partition_buffer=2)
    train(config, buckets, store, tmp_path / "scratch", engine=Watched(config, during))
    assert len(checked) == PARTITIONS + 1


def test_writer_shut_out_leaves_successors_statistics(buckets, tmp_path):
    store = LocalStore(tmp_path / "store")

    def during(number):
        if number == PARTITIONS**2:  # the first bucket of the second epoch
            with claim(store, "", SPEC, patience=0):
                store.put("training_stats.json", b"of the successor\n")

    config = make_config()
    with pytest.raises(ConflictError, match="another writer claimed this run"):
        train(config, buckets, store, tmp_path / "scratch", engine=Watched(config, during))
    assert store.get("training_stats.json").data == b"of the successor\n"


class Failing(LocalStore):
    """Store that refuses every partition of version 2."""

    def put_new(self, key, source, *, metadata=None):
        if key.endswith(".v2.h5"):
            raise StorageError(f"{key}: the network is gone")
        return super().put_new(key, source, metadata=metadata)


def running():
    return {thread.name for thread in threading.enumerate()} & THREADS


@pytest.mark.rotated(3)
def test_background_failure_ends_training_within_iteration(buckets, tmp_path):
    store, begun = Failing(tmp_path / "store"), []

    def during(number):
        begun.append(number)
        time.sleep(0.02)

    config = make_config()
    with pytest.raises(StorageError, match=r"v2\.h5: the network is gone"):
        train(config, buckets, store, tmp_path / "scratch", engine=Watched(config, during))
    assert len(begun) < 2 * PARTITIONS**2
    assert not running()
    assert objects(store)[0] == 1
    assert not any(tmp_path.glob("scratch/*.tmp.h5"))
    sound = LocalStore(store.url)
    train(config, buckets, sound, tmp_path / "again")
    other = LocalStore(tmp_path / "other")
    train(config, buckets, other, tmp_path / "other-scratch")
    assert objects(sound) == objects(other)


@pytest.mark.parametrize("changes", [{}, {"mask_known_negatives": True, "eval_fraction": 0}])
def test_edges_of_single_bucket_are_read_once(tmp_path, changes):
    class Once(FiledEdges):
        def read(self, edge_path_idx, bucket, start, stop):
            edges = super().read(edge_path_idx, bucket, start, stop)
            read.append((edges, [column.copy() for column in (edges.lhs, edges.rhs, edges.rel)]))
            return edges

    read = []
    config = make_config(entities={"n": {"num_partitions": 1}}, **changes)
    single = Buckets(tmp_path / "edges", partitions=1)
    figures = train(config, single, LocalStore(tmp_path / "store"), tmp_path / "scratch", edges=Once(single))
    assert len(figures) == 3
    ((edges, before),) = read
    for column, copy in zip((edges.lhs, edges.rhs, edges.rel), before, strict=True):
        np.testing.assert_array_equal(column, copy)


class Unwatched(LocalStore):
    """Stores everything except the mirror for observers."""

    def __init__(self, root):
        super().__init__(root)
        self.tried = 0

    def put(self, key, data, **options):
        if key == LIVE:
            self.tried += 1
            raise StorageError("503")
        return super().put(key, data, **options)


def test_mirror_that_cannot_be_stored_is_ignored(buckets, tmp_path):
    store = Unwatched(tmp_path / "store")
    figures = train(make_config(), buckets, store, tmp_path / "scratch")
    assert store.tried
    assert [each.epoch for each in figures] == [0, 1, 2]
    assert open_committed(store, "")[0].version == 3


def test_edges_are_not_kept_beside_their_parts(buckets, tmp_path, monkeypatch):
    whole, kept = [], []

    def split(edges, *rest):
        parts = split_off(edges, *rest)
        if len(parts[1]):
            whole[:] = [weakref.ref(edges.lhs)]
        return parts

    monkeypatch.setattr("pbg_tasks.training.edge_chunks.split_off", split)
    config = make_config(num_epochs=1)
    watched = Watched(config, lambda _: kept.append(whole[0]() is not None))
    train(config, buckets, LocalStore(tmp_path / "store"), tmp_path / "scratch", engine=watched)
    assert kept == [False] * PARTITIONS**2


def test_progress_is_shown_while_buckets_train(buckets, tmp_path, monkeypatch):
    shown, while_training, moves = [], [], []
    monkeypatch.setattr("pbg_tasks.progress._BARS.begin", lambda what, *amounts: shown.append((what, *amounts)) or what)
    monkeypatch.setattr("pbg_tasks.progress._BARS.move", lambda *state: moves.append(state[:3]))
    monkeypatch.setattr("pbg_tasks.progress._BARS.end", lambda _: shown.clear())
    config = make_config(num_epochs=2)
    watched = Watched(config, lambda _: while_training.extend(shown))
    train(config, buckets, LocalStore(tmp_path / "store"), tmp_path / "scratch", engine=watched)
    edges = moves[-1][2]
    assert while_training == [("train", edges, 0)] * 2 * PARTITIONS**2  # one bar for both epochs
    assert moves[-1] == ("train", edges, edges)
    more = config.model_copy(update={"num_epochs": 3})
    train(more, buckets, LocalStore(tmp_path / "store"), tmp_path / "scratch", engine=Watched(more, lambda _: None))
    assert moves[-1] == ("train", edges * 3 // 2, edges * 3 // 2)

    def fail(_number):
        raise FormatError("in a bucket")

    with pytest.raises(FormatError, match="in a bucket"):
        train(config, buckets, LocalStore(tmp_path / "other"), tmp_path / "scratch", engine=Watched(config, fail))
    assert shown == []


def test_plan_counts_edges_of_first_iterations():
    class Edges:
        def count(self, path, bucket):
            return 10 * path + 3 * bucket.lhs + bucket.rhs + 1

    plan = IterationPlan(make_config(edge_paths=["a", "b"], num_edge_chunks=2), Edges(), seed=1)
    sizes = [sum(edge_chunk.edges for edge_chunk in plan.edge_chunks(iteration)) for iteration in plan.plan]
    assert len(set(sizes)) > 1
    assert [plan.edges(number) for number in range(len(sizes) + 1)] == [0, *accumulate(sizes)]
    assert plan.edges() == sum(sizes)


def test_interrupt_ends_the_threads(buckets, tmp_path):
    def during(number):
        if number == 5:
            assert running() == THREADS
            raise KeyboardInterrupt

    config = make_config()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        train(config, buckets, LocalStore(tmp_path / "store"), tmp_path / "scratch", engine=Watched(config, during))
    assert time.monotonic() - started < 5
    assert not running()


def test_damaged_bucket_read_ahead_is_named(buckets, tmp_path):
    class Damaged(FiledEdges):
        def read(self, edge_path_idx, bucket, start, stop):
            if bucket == (0, 0):
                raise FormatError("edges_0_0.h5: damaged")
            return super().read(edge_path_idx, bucket, start, stop)

    store = LocalStore(tmp_path / "store")
    with pytest.raises(FormatError, match=r"edges_0_0\.h5: damaged"):
        train(make_config(), buckets, store, tmp_path / "scratch", edges=Damaged(buckets))
    with pytest.raises(NotFoundError):
        open_committed(store, "")


class Slow(LocalStore):
    def put_new(self, key, source, *, metadata=None):
        time.sleep(0.1)
        return super().put_new(key, source, metadata=metadata)


@pytest.mark.parametrize("eval_fraction", [0.0, 0.1])
def test_waiting_times_are_reported(buckets, tmp_path, capsys, eval_fraction):
    store = Slow(tmp_path / "store")
    config = make_config(num_epochs=2, eval_fraction=eval_fraction)
    figures = train(config, buckets, store, tmp_path / "scratch")
    lines, told = (
        [json.loads(line) for line in store.get(name).data.splitlines()]
        for name in ("training_stats.json", "training_io.json")
    )
    assert len(told) == 2
    assert len(lines) == 2 * (PARTITIONS**2 + (eval_fraction > 0))
    assert sum("eval_stats_chunk_avg" in line for line in lines) == 2 * (eval_fraction > 0)
    assert not any("io" in line for line in lines)
    for figure, line in zip(figures, told, strict=True):
        assert line["epoch_idx"] == figure.epoch
        assert line["io"]["waited"] > 0.1  # for the model at least: no training happens while it is stored
        assert line["io"]["waited"] <= figure.waited < figure.seconds
        assert line["io"]["share"] == pytest.approx(line["io"]["waited"] / line["io"]["seconds"], abs=0.01)
    shown = capsys.readouterr().err
    assert "of it waiting for I/O" in shown
    assert (" among negatives, " in shown) is (eval_fraction > 0)
