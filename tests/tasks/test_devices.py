"""Training on several devices in one process, for which CPUs stand in."""

from __future__ import annotations

import os
import signal
import threading
from itertools import count

import numpy as np
import pytest
import torch

from pbg_tasks.errors import ConfigError, EvictedError, ResourceError, TrainingDivergedError
from pbg_tasks.formats.edges import EdgeList, edge_file_name, write_edges
from pbg_tasks.formats.entities import write_entity_count
from pbg_tasks.tasks.nightly.chain import TASKS, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.training import train as task
from pbg_tasks.tasks.training.train import train_directory
from pbg_tasks.tasks.tuning.tune import tune
from pbg_tasks.training.engine import resident
from pbg_tasks.training.engine.device import Host
from pbg_tasks.training.engine.on_device import DeviceEngine
from pbg_tasks.training.engine.resident import PlacedTable, ResidentDevice, find_devices, on_host
from tests.directories import PER_PARTITION, DataSet
from tests.tasks.conftest import ring

PARTITIONS, EPOCHS = 6, 3
EDGES = 2 * PARTITIONS * PER_PARTITION
A_BUCKET = 2 * PER_PARTITION * 4 * (8 + 1)  # bytes
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds no two GPUs here")


class Counted(ResidentDevice):
    """Device on the CPU that counts copies from it and others."""

    def __init__(self, room=float("inf")):
        super().__init__(torch.device("cpu"))
        self.brought = self.passed = 0
        self._room_here = room

    @property
    def room(self):
        return self._room_here

    def bring(self, table):
        self.brought += 1
        return super().bring(table)

    def take(self, table):
        self.passed += isinstance(table, PlacedTable) and table.place is not self
        return super().take(table)


@pytest.fixture
def devices(monkeypatch):
    """Train on so many devices of the CPU."""

    def use(number=2, room=float("inf")):
        found = [Counted(room) for _ in range(number)]
        monkeypatch.setattr(task, "find_devices", lambda _: found)
        return found

    return use


@pytest.fixture
def data(tmp_path):
    return DataSet(tmp_path, PARTITIONS)


def config_of(data, **changes):
    return data.config(**{"num_gpus": 2, "num_epochs": EPOCHS, "workers": 1} | changes)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("room", [float("inf"), A_BUCKET])
def test_devices_train_every_edge_once(data, devices, room, ahead):
    used = devices(3, room)
    result = train_directory(config_of(data, num_gpus=3, partitions_ahead=ahead, store_interval=600.0))
    assert result["edges_trained"] == EDGES * EPOCHS
    assert result["edges_retrained"] == 0
    assert result["ranks"] == 3
    assert 0 < result["rank_0"]["buckets"] < EPOCHS * PARTITIONS**2
    assert result["curve"][-1] < result["curve"][0]
    assert np.isfinite(data.embeddings(config_of(data), EPOCHS)).all()
    brought, passed = (sum(getattr(device, what) for device in used) for what in ("brought", "passed"))
    if room > A_BUCKET:  # to the host only for a version's files, and the one stored to see how long it takes
        assert brought <= PARTITIONS * EPOCHS + 1
        assert passed > PARTITIONS
    else:
        assert brought > 2 * PARTITIONS * EPOCHS
        assert passed == 0


def test_no_epochs_store_the_start(data, devices, monkeypatch):
    devices()
    monkeypatch.setattr("pbg_tasks.training.engine.device.find_place", lambda *_: Host())  # for want of a GPU
    config = config_of(data, num_epochs=0)
    train_directory(config)
    assert np.isfinite(data.embeddings(config, 0)).all()
    assert train_directory(config_of(data, num_epochs=1))["edges_trained"] == EDGES


def test_devices_learn_what_one_learns(data, devices):
    devices()
    several = train_directory(config_of(data, num_epochs=8))["curve"][-1]
    one = train_directory(data.config("other", num_epochs=8), engine="torch")["curve"][-1]
    assert several == pytest.approx(one, rel=0.15)


@pytest.fixture
def interrupted(monkeypatch):
    """Do something before the n-th batch of a device."""

    def at(number, act):
        numbers, step = count(), DeviceEngine.step

        def counted(self, *args, **kwargs):
            if next(numbers) == number:
                act(self)
            return step(self, *args, **kwargs)

        monkeypatch.setattr(DeviceEngine, "step", counted)

    return at


@pytest.mark.parametrize("batch", [0, 17, 50])
def test_sigterm_keeps_what_devices_trained(data, devices, interrupted, batch):
    devices()
    interrupted(batch, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(EvictedError, match="SIGTERM"):
        train_directory(config_of(data))
    devices()
    result = train_directory(config_of(data))
    assert result["edges_trained"] == EDGES * EPOCHS
    assert result["edges_retrained"] == 0


def test_run_stopped_on_devices_continues_on_host(data, devices, interrupted):
    devices()
    interrupted(30, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(EvictedError):
        train_directory(config_of(data))
    result = train_directory(data.config(num_epochs=EPOCHS), engine="torch")
    assert result["edges_trained"] == EDGES * EPOCHS
    assert result["edges_retrained"] == 0


@pytest.mark.parametrize("number", [0, 1])
def test_failure_of_a_device_ends_all(data, devices, monkeypatch, number):
    hurt, step = devices()[number], DeviceEngine.step

    def fail(self, *args, **kwargs):
        if self.place is hurt:
            raise TrainingDivergedError("the loss is nan")
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(DeviceEngine, "step", fail)
        with pytest.raises(TrainingDivergedError, match=r"epoch 1, bucket \(\d, \d\): the loss is nan"):
            train_directory(config_of(data))
    assert train_directory(config_of(data))["edges_trained"] == EDGES * EPOCHS


@pytest.mark.parametrize("number", [0, 1])
def test_foreign_error_of_a_device_stays_itself(data, devices, monkeypatch, number):
    """Otherwise its status would be a bug's, without another try."""
    hurt = devices()[number]

    def fail(self, *args, **kwargs):
        if self.place is hurt:
            raise MemoryError
        return step(self, *args, **kwargs)

    step = DeviceEngine.step
    monkeypatch.setattr(DeviceEngine, "step", fail)
    with pytest.raises(MemoryError):
        train_directory(config_of(data, num_epochs=1))


def test_error_before_training_ends_all_at_once(data, devices, monkeypatch):
    devices()
    train_directory(config_of(data, num_epochs=1))
    monkeypatch.setattr("pbg_tasks.training.ranks.rank.FAREWELL_SECONDS", 60.0)
    monkeypatch.setattr("pbg_tasks.tasks.training.devices._LIMIT_SECONDS", 20.0)
    with pytest.raises(ConfigError, match="num_edge_chunks"):
        train_directory(config_of(data, num_edge_chunks=2))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("GPU")]


def test_devices_share_types_of_one_partition(tmp_path, devices):
    """Each has a copy, and they exchange its changes."""
    devices()
    data, edges = DataSet(tmp_path, PARTITIONS), tmp_path / "countries"
    write_entity_count(data.entities, "country", 0, 5)
    edges.mkdir()
    for partition in range(PARTITIONS):
        lhs = np.arange(PER_PARTITION)
        write_edges(edges / edge_file_name(partition, 0), EdgeList(lhs, lhs % 5, np.zeros_like(lhs)))
    result = train_directory(
        config_of(
            data,
            entities={"n": {"num_partitions": PARTITIONS}, "country": {"num_partitions": 1}},
            relations=[{"name": "in", "lhs": "n", "rhs": "country", "operator": "none"}],
            dynamic_relations=False,
            edge_paths=(str(edges),),
            num_uniform_negs=3,
        )
    )
    assert result["edges_trained"] == PARTITIONS * PER_PARTITION * EPOCHS
    assert result["curve"][-1] < result["curve"][0]


def test_too_few_partitions_for_devices_are_refused(tmp_path, devices):
    devices()
    with pytest.raises(ConfigError, match=r"2 GPUs cannot train at once: .* raise num_partitions to 4 or more"):
        train_directory(DataSet(tmp_path).config(num_gpus=2))


def test_rank_with_several_gpus_is_refused(data, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    config = config_of(data, distributed_init_method="tcp://localhost:1")
    with pytest.raises(ConfigError, match="num_gpus: 2: a rank trains on one GPU"):
        train_directory(config)


@pytest.mark.parametrize("found", [0, 1])
def test_fewer_gpus_than_asked_are_refused(data, monkeypatch, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(ResourceError, match="num_gpus: 2: "):
        train_directory(config_of(data))
    assert not (data.root / "model").exists()


@pytest.mark.parametrize("connected", [True, False])
def test_gpus_without_direct_copies_are_named(data, monkeypatch, capsys, connected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: connected)
    assert [place.device.index for place in find_devices(config_of(data))] == [0, 1]
    assert ("between GPUs 0 to 1, 1 to 0 partitions go through the host" in capsys.readouterr().err) is not connected


def test_copy_on_a_device_is_independent():
    one, other = Counted(), Counted()
    table = one.take(resident.Table.random(7, 4, 1.0, torch.Generator().manual_seed(0)))
    copies = [table.copy(), other.take(table), on_host(table)]
    before = table.embeddings.clone()
    table.embeddings.zero_()
    assert all(torch.equal(copy.embeddings, before) for copy in copies)
    assert [getattr(copy, "place", None) for copy in copies] == [one, other, None]


def test_nights_train_on_devices(place, devices, monkeypatch):
    """They continue each other, anchored and with early stopping."""
    monkeypatch.setattr("pbg_tasks.training.early_stopping.FEWEST", 5)
    monkeypatch.setattr("pbg_tasks.training.valid_sample.FEWEST", 5)
    used = devices()
    model = {"entities": {"n": {"num_partitions": 4}}, "num_gpus": 2, "num_epochs": 4, "num_uniform_negs": 500}
    place.write_spec(
        model=model,
        train={"anchor": 0.5, "early_stopping": {"patience": 3}},
        split={"valid": 0.3, "test": 0.1},
        eval={"device": "cpu"},
    )
    for day in (1, 2):
        place.snapshot(f"d{day}", ring(2_000 + 20 * day))
        run = plan(place.spec, f"d{day}")["run"]
        result = {name: run_task(name, run) for name in TASKS}["train"]
        assert len(result["early_stopping"]["mrr"]) == 4
        assert result["warm_start"] is (day == 2)
    assert all(device.passed for device in used)


def test_candidates_of_a_search_train_on_devices(place, devices):
    used = devices()
    place.write_spec(
        model={"entities": {"n": {"num_partitions": 4}}, "num_gpus": 2, "num_epochs": 4, "num_uniform_negs": 500},
        split={"valid": 0.3, "test": 0.1},
        tune={"space": {"model.lr": [0.1, 0.05]}},
    )
    place.snapshot("d1", ring(2_000))
    assert all(row["mrr"] is not None for row in tune(place.spec, "d1")["rows"])
    assert all(device.passed for device in used)


@needs_two_gpus
def test_two_gpus_learn_what_a_cpu_learns(data):
    several = train_directory(config_of(data, num_epochs=8))["curve"][-1]
    one = train_directory(data.config("other", num_epochs=8), engine="torch")["curve"][-1]
    assert several == pytest.approx(one, rel=0.15)
