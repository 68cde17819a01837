"""One process of a gang, up to its need of the others."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from pbg_tasks.checkpoint import checkpoint_names
from pbg_tasks.errors import ConfigError, EvictedError, ResourceError
from pbg_tasks.formats.edges import EdgeList, edge_file_name, write_edges
from pbg_tasks.memory import machine
from pbg_tasks.storage.local import LocalStore
from pbg_tasks.tasks.training import gang
from pbg_tasks.tasks.training.job import Job
from pbg_tasks.tasks.training.train import train_directory
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.ranks.group.rank_env import RankEnv
from pbg_tasks.training.ranks.parameters.server import ParameterServer
from pbg_tasks.training.ranks.services import Services
from tests.checkpoint.samples import iteration
from tests.directories import DataSet


def test_sigterm_ends_rank_that_waits_for_others(tmp_path, monkeypatch):
    """A container's first process would ignore it without a handler."""
    monkeypatch.setenv("WORLD_SIZE", "2")  # a trainer and a partition server
    data = DataSet(tmp_path)
    config = data.config(num_machines=2, num_partition_servers=1, distributed_init_method=f"file://{tmp_path}/meeting")
    lease = tmp_path / "model" / "lease.json"

    def end():
        while not lease.exists():
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(EvictedError, match="told to end"):
        train_directory(config, rank=0)
    assert not lease.exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_ranks_with_gpus_do_not_share_whole_types(tmp_path, monkeypatch):
    """They are refused before a GPU is looked for, or ranks meet."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    data = DataSet(tmp_path, 4)
    types = {"n": {"num_partitions": 4}, "country": {"num_partitions": 1}}
    config = data.config(entities=types, distributed_init_method=f"file://{tmp_path}/meeting")
    with pytest.raises(ConfigError, match=r"2 ranks with GPUs cannot share .* of one partition \(country\)"):
        train_directory(config, device="cuda", rank=0)
    assert not (tmp_path / "model").exists()


def test_ranks_without_epochs_store_the_start(tmp_path, monkeypatch):
    """They need not meet, so each comes and goes alone."""
    monkeypatch.setenv("WORLD_SIZE", "3")  # two trainers and a partition server
    data = DataSet(tmp_path, 4)
    gang_of = {"num_machines": 2, "num_partition_servers": 1, "distributed_init_method": f"file://{tmp_path}/meeting"}
    config = data.config(num_epochs=0, **gang_of)
    assert [train_directory(config, rank=rank)["rank"] for rank in (1, 2)] == [1, 2]
    assert not (tmp_path / "model" / "HEAD.json").exists()
    train_directory(config, rank=0)
    assert np.isfinite(data.embeddings(config, 0)).all()


def test_ranks_may_read_for_longer_than_ten_minutes():
    """Rank 0 alone looks for loops, perhaps in all edges."""
    waited = []
    services = SimpleNamespace(
        env=SimpleNamespace(role="trainer"),
        _gang=SimpleNamespace(barrier=lambda timeout, check: waited.append((timeout, check))),
        _listener=SimpleNamespace(offer=lambda _: None),
        _member=SimpleNamespace(check="ends the wait"),
        _parameters=ParameterServer(),
    )
    store = SimpleNamespace(config=SimpleNamespace(num_partition_servers=0))
    with ExitStack() as stack:
        Services.serve(services, store, stack)
    assert waited == [(3600.0, "ends the wait")]


def small_job(tmp_path, monkeypatch, rows, servers):
    """Return a job of two ranks on a machine with 600 MB."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable:     600000 kB\n")
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    config = DataSet(tmp_path).config(
        num_machines=2, num_partition_servers=servers, distributed_init_method=f"file://{tmp_path}/meeting"
    )
    counts = dict.fromkeys((PartitionKey("n", partition) for partition in range(2)), rows)
    edges = SimpleNamespace(count=lambda *_: 0)
    return Job(config, counts, relation_count=2, edges=edges, names=None, warm_start=None, seed=0, engine="torch")


def kept(tmp_path, monkeypatch, rows):
    """Run the first part of a partition server, up to serving."""
    job = small_job(tmp_path, monkeypatch, rows, servers=1)
    here = SimpleNamespace(env=RankEnv(rank=2, world=2, servers=1, init_method="env://"))
    gang._keep(here, None, job, SimpleNamespace(store=LocalStore(tmp_path / "store")), tmp_path, 0, None)


def test_partition_server_without_enough_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(ResourceError, match=r"partition server would take .* for partitions .*num_partition_servers"):
        kept(tmp_path, monkeypatch, rows=10**7)


@pytest.mark.parametrize("together", ["1", "3"])
def test_ranks_of_machine_share_its_memory(tmp_path, monkeypatch, together):
    """One rank alone has enough memory for Python and torch."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", together)
    job = small_job(tmp_path, monkeypatch, rows=10, servers=-1)
    store, part = LocalStore(tmp_path / "store"), gang._part(RankEnv(0, 2, 0, "env://"), job.config)
    if together == "1":
        job.prepare(store, part)
    else:
        with pytest.raises(ResourceError, match=r"where 205 MB may be used by each of 3 processes"):
            job.prepare(store, part)


def test_partition_server_may_exceed_its_machines_trainers(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    job = small_job(tmp_path, monkeypatch, rows=10, servers=1)
    job.prepare_server(LocalStore(tmp_path / "store"), gang._part(RankEnv(2, 2, 1, "env://"), job.config))


@pytest.mark.parametrize(("rank", "lines"), [(0, 2.5), (1, 1.5)])
def test_trainer_forecasts_partitions_kept_for_gang(tmp_path, rank, lines):
    config, rows = DataSet(tmp_path).config(), 1_000
    counts = dict.fromkeys((PartitionKey("n", partition) for partition in range(2)), rows)
    edges = SimpleNamespace(count=lambda *_: 100)
    job = Job(config, counts, relation_count=2, edges=edges, names=None, warm_start=None, seed=0, engine="torch")
    alone = job.forecast().to_json()["lines"]
    found = job.forecast(gang=gang._part(RankEnv(rank, 2, 0, "env://"), config)).to_json()["lines"]
    table = rows * (config.dimension + 1) * 4
    assert found["embeddings in memory"] == alone["embeddings in memory"] == 2 * table
    assert found["partitions kept for the gang"] == table
    assert found["partitions coming and being stored"] == 2 * table
    assert found["copies of what ranks share"] == int(lines * alone["shared parameters"])
    assert "edges of the next" in alone
    assert "edges of the next" not in found  # a rank learns of one bucket at a time


@pytest.mark.parametrize(
    ("changes", "seed", "alike"),
    [
        ({"workers": 2, "entity_path": "entities"}, 0, True),
        ({"lr": 0.2}, 0, False),
        ({"num_epochs": 1}, 0, False),  # rank 0 waited for the others without end
        ({}, 1, False),
        ({"edge_paths": ["fewer"]}, 0, False),
    ],
)
def test_ranks_compare_configs_seeds_and_edges(tmp_path, monkeypatch, changes, seed, alike):
    """Each rank trained by its own rate, or ended before the others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    data, specs = DataSet(tmp_path), []
    (tmp_path / "fewer").mkdir()
    write_edges(tmp_path / "fewer" / edge_file_name(0, 0), EdgeList(*np.zeros((3, 5), np.int64)))

    def join(env, spec, **_):
        specs.append(spec)
        raise EvictedError("here the test ends")

    monkeypatch.setattr(gang.Gang, "join", join)
    gangs = {"num_machines": 2, "num_partition_servers": 1, "distributed_init_method": f"file://{tmp_path}/meeting"}
    for config, seeded in ((data.config(**gangs), 0), (data.config(**gangs | changes), seed)):
        with pytest.raises(EvictedError, match="here the test ends"):
            train_directory(config, rank=1, seed=seeded)
    assert (specs[0] == specs[1]) is alike


def test_record_beyond_lowered_epochs_takes_no_gang():
    """A training in bfloat16 that was done ended with an error."""
    job = SimpleNamespace(iteration_plan=lambda: SimpleNamespace(plan=[iteration(1)]))
    assert gang._follows(SimpleNamespace(iteration=iteration(2)), job)


def test_rank_with_directory_of_its_own_is_refused(tmp_path, monkeypatch):
    """An epoch was trained first, and failed at its end."""

    class Here:
        def __init__(self, *_):
            self.agreed = {"version": 0, "writer_epoch": 1, "url": "/of/rank/0"}

        def open(self, found):
            return nullcontext(found)

    monkeypatch.setattr(gang, "Services", Here)
    target = gang.TrainingTarget(DataSet(tmp_path).config(), LocalStore(tmp_path / "own"), "", "spec", job=None)
    with pytest.raises(ConfigError, match="own: is not the checkpoint directory of rank 0, /of/rank/0; give all"):
        gang._follow(None, RankEnv(1, 2, 0, "env://"), target, tmp_path)


@pytest.mark.parametrize(("grace", "seconds"), [("", 40), ("20", 40), ("60", 76), ("300", 316)])
def test_claim_outlasts_the_grace_of_another(monkeypatch, grace, seconds):
    """A cleared task begins its next gang while the one before stores."""
    monkeypatch.setenv("PBG_GRACE_SECONDS", grace)
    monkeypatch.setattr(gang, "claim", lambda *_, patience, **_more: patience)
    assert gang.TrainingTarget(None, None, "", "spec", job=None).claim() == seconds


@pytest.mark.parametrize("given", [[], ["embeddings_n_0.v0.h5"]])
def test_rank_finds_start_that_rank_zero_found(tmp_path, given):
    """All ranks but the first refused a start without a model."""
    config, store = DataSet(tmp_path).config(), LocalStore(tmp_path / "started")
    for name in given:
        store.put(name, b"start")
    target = gang.TrainingTarget(config, store, "", "spec", job=None, adopt=checkpoint_names(config))
    with target.claim() as writer:
        found = target.newest()
        assert (found.version, sorted(found.names)) == (writer.version, sorted(writer.files.names)) == (0, given)


@pytest.mark.parametrize(("startup", "seconds"), [("", 600), ("900", 1500)])
def test_rank_outwaits_the_start_of_others(monkeypatch, startup, seconds):
    """A node for the last pod may take longer than ten minutes."""
    monkeypatch.setenv("PBG_STARTUP_SECONDS", startup)
    monkeypatch.setattr(gang.Gang, "join", lambda *_, timeout, **_more: timeout)
    target = SimpleNamespace(config=SimpleNamespace(rank_tls=False), common="", spec="spec")
    assert gang._join(RankEnv(1, 2, 0, "env://"), target) == seconds
