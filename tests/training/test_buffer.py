from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.errors import FormatError, ResourceError
from pbg_tasks.formats.embeddings import read_embeddings
from pbg_tasks.formats.metadata import read_iteration
from pbg_tasks.training.data.buffer import PartitionBuffer
from pbg_tasks.training.data.partition_files import PartitionFiles
from pbg_tasks.training.data.partitions import Layout, PartitionKey, partition_keys
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.device import Accelerator, Host
from pbg_tasks.training.schedule import Bucket, grid
from tests.training.buffers import DIMENSION, Disk, first_table, make_config, stamp
from tests.training.simulated_swaps import simulate


class SlowFiles(PartitionFiles):
    def __init__(self, config, directory, disk):
        super().__init__(config, directory)
        self._disk = disk

    def read(self, key):
        self._disk.sleep()
        return self._disk.watch(key, super().read(key))

    def write(self, key, table, made):
        before = table.embeddings.clone(), table.row_sums.clone()
        self._disk.sleep()
        path = super().write(key, table, made)
        assert torch.equal(before[0], table.embeddings), "changed while it was written"
        assert torch.equal(before[1], table.row_sums), "changed while it was written"
        return path


def train(bucket, step, lhs, rhs, pause=lambda: None):
    """Change every table by the others and the order of steps."""
    tables = [(side, name, each[name]) for side, each in (("lhs", lhs), ("rhs", rhs)) for name in sorted(each)]
    mean = sum(float(table.embeddings[0, 0]) for _, _, table in tables) / len(tables)
    for side, _, table in tables:
        table.embeddings.mul_(0.5).add_(mean / 4 + bucket.lhs - bucket.rhs + step * (1 if side == "lhs" else 3))
        pause()
        table.row_sums.add_(table.embeddings[:, 1].abs())


def serially(config, orders):
    """Train with all partitions in memory.

    Returns the arrays after each iteration.
    """
    layout = Layout(config)
    tables = {key: first_table(key) for key in partition_keys(config)}
    after = []
    for order in orders:
        for step, bucket in enumerate(order):
            lhs, rhs = layout.by_side(bucket, tables)
            train(bucket, step, lhs, rhs)
        after.append({key: [array.copy() for array in table.to_arrays()] for key, table in tables.items()})
    return after


def run(config, orders, directory, disk, device=None):
    """Train through a buffer, on a device where there is one.

    Returns the arrays of the files after each iteration.
    """
    final: list[str] = []
    buffer = PartitionBuffer(
        config, disk, SlowFiles(config, directory, disk), on_final=lambda path: final.append(path.name), device=device
    )
    place = device or Host()
    after = []
    with buffer.io:
        for number, (order, then) in enumerate(zip(orders, [*orders[1:], []], strict=True), start=1):
            buffer.begin(order, then, stamp(number))
            for step, bucket in enumerate(order):
                lhs, rhs = buffer.swap_to(bucket)
                with place.hold(lhs, rhs, trained=True) as (there_lhs, there_rhs):
                    train(bucket, step, there_lhs, there_rhs, disk.sleep)
                del lhs, rhs, there_lhs, there_rhs
            buffer.finish()
            names = {key: f"embeddings_{key.entity}_{key.partition}.v{number}.h5" for key in partition_keys(config)}
            assert sorted(final) == sorted(names.values()), "each is final once"
            final.clear()
            assert {path.name for path in directory.iterdir()} == set(names.values())
            after.append({key: read_embeddings(directory / name) for key, name in names.items()})
            assert all(read_iteration(directory / name) == stamp(number).iteration for name in names.values())
    return after


GRAPHS = [
    ({"n": 4}, [("n", "n")]),
    ({"user": 4, "item": 3}, [("user", "item")]),
    ({"user": 3, "item": 3, "country": 1}, [("user", "item"), ("item", "item"), ("user", "country")]),
    ({"n": 3, "unused": 2}, [("n", "n")]),
    ({"n": 1}, [("n", "n")]),
]


@st.composite
def trainings(draw):
    config = make_config(*draw(st.sampled_from(GRAPHS)), buffer=draw(st.sampled_from([None, 1, 2, 3, 5])))
    buckets = grid(config.partitions("lhs"), config.partitions("rhs"))
    iteration = st.permutations(buckets).map(lambda order: order[: max(1, len(order) - 2)])  # some are never trained
    return config, draw(st.lists(iteration, min_size=1, max_size=2))


@given(trainings(), st.integers(0, 2**32), st.booleans())
@settings(max_examples=40, deadline=None)
def test_slow_disk_gives_bits_of_training_in_memory(tmp_path_factory, training, seed, elsewhere):
    config, orders = training
    device = Accelerator(torch.device("cpu")) if elsewhere else None
    found = run(config, orders, tmp_path_factory.mktemp("scratch"), Disk(seed, longest=0.0007), device)
    for ours, theirs in zip(found, serially(config, orders), strict=True):
        assert ours.keys() == theirs.keys()
        for key, arrays in ours.items():
            for one, other in zip(arrays, theirs[key], strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("buffer", [2, 3, 4, 6])
def test_memory_stays_within_the_plan(tmp_path, buffer):
    gc.collect()
    config = make_config({"n": 6}, [("n", "n")], buffer)
    orders = [grid(6, 6), grid(6, 6)[::-1]]
    disk = Disk(longest=0.001)
    run(config, orders, tmp_path, disk)
    loads, _, peak = simulate(config, orders, dict.fromkeys(partition_keys(config), 1))
    assert (len(disk.read), disk.most) == (loads, peak)
    assert peak == buffer


def test_next_partition_is_read_during_training(tmp_path):
    config, disk = make_config({"n": 4}, [("n", "n")]), Disk()
    buffer = PartitionBuffer(config, disk, PartitionFiles(config, tmp_path))
    with buffer.io:
        buffer.begin([Bucket(0, 1), Bucket(2, 3)], [], stamp(1))
        buffer.swap_to(Bucket(0, 1))
        buffer.io.drain()
        assert set(disk.read) == set(partition_keys(config))
        waited = buffer.io.waited
        buffer.swap_to(Bucket(2, 3))
        assert buffer.io.waited - waited < 0.01


def test_last_partitions_stay_for_next_iteration(tmp_path):
    config, disk = make_config({"n": 4}, [("n", "n")], 2), Disk()
    buffer = PartitionBuffer(config, disk, PartitionFiles(config, tmp_path))
    with buffer.io:
        for number in (1, 2, 3):
            buffer.begin([Bucket(0, 1)], [Bucket(0, 1)], stamp(number))
            buffer.swap_to(Bucket(0, 1))
            buffer.finish()
    assert disk.read.count(PartitionKey("n", 0)) == disk.read.count(PartitionKey("n", 1)) == 1


def test_unchanged_partitions_are_not_written(tmp_path):
    config, disk = make_config({"n": 4}, [("n", "n")], 2), Disk()
    buffer = PartitionBuffer(config, disk, PartitionFiles(config, tmp_path), keep=False)
    order = grid(4, 4)
    with buffer.io:
        buffer.begin(order, [], stamp(0))
        for bucket in order:
            lhs, rhs = buffer.swap_to(bucket)
            for table, index in ((lhs["n"], bucket.lhs), (rhs["n"], bucket.rhs)):
                assert torch.equal(table.embeddings, first_table(PartitionKey("n", index)).embeddings)
            assert (lhs["n"] is rhs["n"]) == (bucket.lhs == bucket.rhs)
            del lhs, rhs, table
    assert not any(tmp_path.iterdir())
    assert len(disk.read) > 4


class Damaged(Disk):
    def table(self, key):
        if key.partition == 2:
            raise FormatError("embeddings_n_2.v7.h5: damaged")
        return super().table(key)


def test_unreadable_partition_fails_bucket_that_needs_it(tmp_path):
    config = make_config({"n": 4}, [("n", "n")])
    buffer = PartitionBuffer(config, Damaged(), PartitionFiles(config, tmp_path))
    with buffer.io:
        buffer.begin([Bucket(0, 1), Bucket(0, 2)], [], stamp(1))
        buffer.swap_to(Bucket(0, 1))
        with pytest.raises(FormatError, match=r"embeddings_n_2\.v7\.h5: damaged"):
            buffer.swap_to(Bucket(0, 2))
    assert not any(tmp_path.iterdir())


def test_full_disk_raises_and_leaves_no_file(small_disk):
    config = make_config({"n": 3}, [("n", "n")], 2)

    class Large(Disk):
        def table(self, _key):
            return Table(torch.zeros(150_000, DIMENSION), torch.zeros(150_000))

    buffer = PartitionBuffer(config, Large(), PartitionFiles(config, small_disk))
    with buffer.io:
        buffer.begin([Bucket(0, 1), Bucket(0, 2)], [Bucket(0, 1)], stamp(1))
        buffer.swap_to(Bucket(0, 1))
        with pytest.raises(ResourceError, match="the disk has"):
            buffer.swap_to(Bucket(0, 2))
    assert not any(small_disk.iterdir())
