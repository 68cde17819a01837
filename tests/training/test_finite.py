"""Infinite numbers are found by one sum a row.

Whatever happens, they are found before they are committed.
"""

from __future__ import annotations

import math
import threading
import time

import pytest
import torch

from pbg_tasks.checkpoint import open_committed
from pbg_tasks.errors import NotFoundError, TrainingDivergedError
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.training.data import partition_files
from pbg_tasks.training.data.buffer import PartitionBuffer
from pbg_tasks.training.data.finite import check_trained
from pbg_tasks.training.data.partition_files import PartitionFiles
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.device import Accelerator
from pbg_tasks.training.engine.on_device import DeviceEngine
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.ranks.partitions.partition_store import PartitionStore
from pbg_tasks.training.schedule import Bucket
from tests.training import buffers
from tests.training.buckets import PARTITIONS, make_config, train


def random_table(seed=0):
    return Table.random(10, 4, 0.1, torch.Generator().manual_seed(seed))


def make_engine(where, config):
    if where == "host":
        return TorchEngine(config, 1)
    return DeviceEngine(config, 1, place=Accelerator(torch.device("cpu")))


@pytest.fixture
def summed(monkeypatch):
    """Return the addresses of the summed tensors, in order."""
    found, total = [], torch.Tensor.sum

    def watched(self, *args, **kwargs):
        found.append(self.data_ptr())
        return total(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "sum", watched)
    return found


@pytest.mark.parametrize("where", ["host", "device"])
def test_bucket_is_checked_by_sums_once_a_table(summed, where):
    engine, both, other = make_engine(where, make_config()), random_table(), random_table(1)
    check_trained(engine.config, engine.shared, {"n": both, "m": other}, {"n": both})
    shared = engine.shared
    parameters = [each[path].data_ptr() for path in shared.values for each in (shared.values, shared.sums)]
    assert summed == [*parameters, both.row_sums.data_ptr(), other.row_sums.data_ptr()]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["host", "device"])
def test_infinite_sums_stop_training(where, bad):
    engine, table = make_engine(where, make_config()), random_table()
    table.row_sums[7] = bad
    with pytest.raises(TrainingDivergedError, match="sums of squared gradients of entity type 'n': some are not"):
        check_trained(engine.config, engine.shared, {"n": random_table()}, {"n": table})
    next(iter(engine.shared.sums.values())).view(-1)[0] = bad
    with pytest.raises(TrainingDivergedError, match="sums of squared gradients of parameter '"):
        check_trained(engine.config, engine.shared, {"n": random_table()})


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("gradient", [math.nan, math.inf, -3e38, 2e19, 1e19, 1.0, 1e-30])
def test_sum_reveals_infinite_row_for_any_gradient(where, gradient):
    """Start from the largest number with the largest unchecked step.

    A larger learning rate makes training look at the rows themselves.
    """
    from pbg_tasks.training.engine import fixed_shapes, optimizers

    table, largest = random_table(), torch.finfo(torch.float32).max
    table.embeddings[3] = torch.tensor([largest, -largest, 1.0, 0.0])
    lr = 1e20 / math.sqrt(4)
    step, rate = (optimizers, lr) if where == "host" else (fixed_shapes, torch.tensor(lr, dtype=torch.float64))
    for given in (gradient, -1.0):
        grads = torch.full((1, 4), given)
        grads[0, 2] = 0.0
        step.row_adagrad(table, torch.tensor([3]), grads, rate)
        if table.row_sums.isfinite().all():
            assert table.embeddings.isfinite().all()
    assert bool(table.row_sums.isfinite().all()) == (abs(gradient) <= 1e19)


def test_rows_are_checked_where_steps_may_overflow(summed):
    engine, table = TorchEngine(make_config(lr=1e20), 1), random_table()
    check_trained(engine.config, engine.shared, {"n": table})
    assert table.embeddings.data_ptr() in summed
    table.embeddings[1, 1] = math.inf
    with pytest.raises(TrainingDivergedError, match="embeddings of entity type 'n': some are not finite; try"):
        check_trained(engine.config, engine.shared, {"n": table})


class Spoiling(TorchEngine):
    """Leaves infinite numbers that no sum reveals.

    It does so in the last bucket of an epoch.
    """

    def __init__(self, config, part, value):
        super().__init__(config, 1)
        self._part, self._value, self._buckets = part, value, 0

    def train_bucket(self, edges, lhs, rhs, *args, **kwargs):
        done = super().train_bucket(edges, lhs, rhs, *args, **kwargs)
        self._buckets += 1
        if self._buckets == PARTITIONS**2:
            getattr(rhs["n"], self._part)[0] = self._value
        return done


@pytest.mark.parametrize("buffer", [None, 2])
@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("embeddings", math.nan, "embeddings"),
        ("embeddings", math.inf, "embeddings"),
        ("row_sums", math.inf, "sums of"),
    ],
)
def test_infinite_version_is_never_committed(buckets, tmp_path, buffer, part, value, said):
    config, store = make_config(eval_fraction=0.0, partition_buffer=buffer), LocalStore(tmp_path / "store")
    message = rf"^{said}.* of entity type 'n', partition \d: some are not finite; .*; version 0 stays the newest$"
    with pytest.raises(TrainingDivergedError, match=message):
        train(config, buckets, store, tmp_path / "scratch", engine=Spoiling(config, part, value))
    with pytest.raises(NotFoundError, match="no version has been committed"):
        open_committed(store, "")


class Late(TorchEngine):
    """Diverges in a bucket once a partition could not be written."""

    def __init__(self, config):
        super().__init__(config, 1)
        self.refused = threading.Event()

    def train_bucket(self, *args, **kwargs):
        if self.refused.wait(0.3):
            time.sleep(0.1)  # time for the writing thread to end
            raise TrainingDivergedError("the bucket under way")
        return super().train_bucket(*args, **kwargs)


def test_refused_partition_is_reported_before_active_bucket(buckets, tmp_path, monkeypatch):
    config = make_config(eval_fraction=0.0, partition_buffer=2)
    engine = Late(config)

    def refuse(key, _table):
        engine.refused.set()
        raise TrainingDivergedError(f"partition {key.partition}")

    monkeypatch.setattr(partition_files, "check_partition", refuse)
    with pytest.raises(TrainingDivergedError, match=r"^partition \d; version 0 stays the newest$"):
        train(config, buckets, LocalStore(tmp_path / "store"), tmp_path / "scratch", engine=engine)


def test_partition_is_checked_after_settling(tmp_path):
    config, final = buffers.make_config({"n": 2}, [("n", "n")]), []

    def settle(key, table, _iteration):
        table.embeddings[key.partition] = math.nan

    files = PartitionFiles(config, tmp_path)
    buffer = PartitionBuffer(config, buffers.Disk(), files, settle=settle, on_final=final.append)
    with buffer.io:
        buffer.begin([Bucket(0, 1)], [], buffers.stamp(1))
        buffer.swap_to(Bucket(0, 1))
        with pytest.raises(TrainingDivergedError, match=r"embeddings of entity type 'n', partition 0"):
            buffer.finish()
    assert not final
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("part", ["embeddings", "row_sums"])
def test_no_rank_stores_infinite_numbers(tmp_path, part):
    partition_store, table = PartitionStore(make_config(), None, tmp_path, 0, buffers.stamp(1)), random_table()
    getattr(table, part)[0] = math.inf
    with pytest.raises(TrainingDivergedError, match="entity type 'n', partition 2: some are not finite"):
        partition_store.put(PartitionKey("n", 2), table, "0.0")
    assert not any(tmp_path.iterdir())
