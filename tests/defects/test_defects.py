"""Defects of PBG that must not return, one test each.

They are numbered as in docs/differences-from-pbg.md.

Those of importing (1 to 6 and 13) are in ``test_import.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from pbg_tasks.checkpoint.writer_heartbeat import SILENCE_SECONDS, wait_until_free
from pbg_tasks.config import ModelConfig
from pbg_tasks.config.base import parse
from pbg_tasks.errors import ConfigError, FormatError, PbgError
from pbg_tasks.formats.edges import EdgeList, Features, edge_file_name, write_edges
from pbg_tasks.model.negatives import MASKED
from pbg_tasks.storage import LocalStore
from pbg_tasks.tasks.directory.configs import load_config_from
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.training.train import train_directory
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.base import Engine
from pbg_tasks.training.engine.choice import make_engine
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.iterations import chunk_bounds
from tests.commands import pbg
from tests.directories import DataSet
from tests.model.configs import one_type


@pytest.fixture
def data(tmp_path):
    return DataSet(tmp_path)


def model(**changes):
    settings = {"global_emb": False, "batch_size": 10, "num_batch_negs": 5, "num_uniform_negs": 5}
    return one_type({"operator": "linear"}, **settings | changes)


def test_07_evaluation_edges_do_not_leak_into_training(data, monkeypatch):
    """PBG draws them with replacement and trains a share of them.

    Some edges are in neither set.
    """
    trained, evaluated = set(), set()

    def watch(name, seen):
        real = getattr(Engine, name)

        def watching(self, edges, *args, **kwargs):
            seen.update(zip(edges.lhs, edges.rel, edges.rhs, strict=True))
            return real(self, edges, *args, **kwargs)

        monkeypatch.setattr(Engine, name, watching)

    watch("train_bucket", trained)
    watch("evaluate", evaluated)
    # One partition on each side makes (offset, relation, offset) an edge's name.
    for bucket in ((0, 1), (1, 0), (1, 1)):
        (data.edges / edge_file_name(*bucket)).unlink()
    train_directory(data.config(eval_fraction=0.3, num_epochs=4, eval_num_batch_negs=5, eval_num_uniform_negs=5))
    assert evaluated
    assert not trained & evaluated
    assert len(trained | evaluated) == 30


@pytest.mark.parametrize("value", [0, None])
def test_08_eval_num_batch_negs_may_be_null(data, value):
    config = data.config(eval_fraction=0.2, eval_num_batch_negs=value, eval_num_uniform_negs=20, num_epochs=1)
    assert train_directory(config)["held_out"]["count"] == 24


def test_09_more_chunks_than_edges(data):
    for bucket in ((0, 1), (1, 0), (1, 1)):
        (data.edges / edge_file_name(*bucket)).unlink()
    nothing = np.zeros(5, np.int64)
    write_edges(data.edges / edge_file_name(0, 0), EdgeList(np.arange(5), np.arange(5) + 1, nothing))
    result = train_directory(data.config(num_edge_chunks=8, num_epochs=1))
    assert (result["version"], result["edges_trained"]) == (8, 5)
    sizes = [chunk_bounds(5, chunk, 4) for chunk in range(4)]
    assert [stop - start for start, stop in sizes] == [1, 1, 1, 2]


def test_10_hogwild_delay_holds_back_other_workers(data, monkeypatch):
    delays = []
    real = Engine.train_bucket

    def watching(self, edges, lhs, rhs, pace, **kwargs):
        delays.append(pace.delay)
        return real(self, edges, lhs, rhs, pace, **kwargs)

    monkeypatch.setattr(Engine, "train_bucket", watching)
    train_directory(data.config(num_epochs=2, workers=2, hogwild_delay=0.05))
    assert delays == [0.05] * 4 + [0.0] * 4  # the first epoch only; tests/training/test_hogwild.py shows its effect


def test_11_result_is_independent_of_pythons_hash(data):
    """PBG assigns a parameter's server by ``hash(key)``.

    That differs from process to process.
    """
    for name, seed in (("one", "1"), ("two", "2")):
        path = data.root / f"{name}.json"
        path.write_text(json.dumps(data.config(name).to_pbg()))
        command = [sys.executable, "-m", "pbg_tasks", "train", str(path)]
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True)
    one, two = (data.embeddings(data.config(name), 2) for name in ("one", "two"))
    assert np.array_equal(one, two)


def test_12_config_command_works(data):
    path = data.root / "config.json"
    path.write_text(json.dumps(data.config().to_pbg()))
    whole = pbg("config", path, "-p", "lr=0.5")
    assert json.loads(whole.stdout) == data.config(lr=0.5).to_pbg()
    one = pbg("config", path, "entities.n.num_partitions")
    assert json.loads(one.stdout) == 2


def test_14_edge_is_ranked_against_all_partitions(data):
    """PBG ranks within the bucket's partitions.

    So its MRR rises with their number.
    """
    config = data.config(num_epochs=1, lr=0.0)
    train_directory(config)
    figures = evaluate_directory(config)
    assert figures["candidates"] == {"n": 60}
    assert figures["raw"]["mr"] > 25  # a random model reaches 30.5 over both partitions, 15.5 within one


def test_15_zero_negatives_are_refused_with_keys():
    with pytest.raises(ConfigError, match="num_batch_negs and num_uniform_negs cannot both be 0"):
        parse(ModelConfig, model().model_dump() | {"num_batch_negs": 0, "num_uniform_negs": 0}, source="config")


@pytest.mark.parametrize("operator", ["linear", "affine"])
@pytest.mark.parametrize("regularizer", ["N3", "N3_edge", "L2"])
def test_16_regularizers_work_with_every_operator(operator, regularizer):
    edges = EdgeList(*(np.random.default_rng(0).integers(20, size=(2, 10))), np.zeros(10, np.int64))
    penalties = {}
    for chunk in (2, 10):  # five edge chunks, and one
        config = model(
            relations=[{"name": "r", "lhs": "e", "rhs": "e", "operator": operator}],
            regularizer=regularizer,
            regularization_coef=0.1,
            num_batch_negs=chunk,
        )
        table = Table.random(20, 4, 1.0, torch.Generator().manual_seed(0))
        stats, _ = TorchEngine(config, 1).train_bucket(
            edges, {"e": table}, {"e": table}, generator=torch.Generator().manual_seed(0)
        )
        penalties[chunk] = stats.reg
    assert penalties[2] > 0
    assert penalties[2] == pytest.approx(penalties[10], rel=1e-5)


def test_17_cos_of_zero_vector_is_finite():
    table = Table(torch.zeros(20, 4), torch.zeros(20))
    edges = EdgeList(np.arange(10), np.arange(10) + 10, np.zeros(10, np.int64))
    stats, _ = TorchEngine(model(comparator="cos"), 1).train_bucket(
        edges, {"e": table}, {"e": table}, generator=torch.Generator().manual_seed(0)
    )
    assert np.isfinite(stats.loss)
    assert torch.isfinite(table.embeddings).all()


def test_18_preserved_snapshot_can_be_moved(data):
    """PBG's snapshots are absolute links into the directory they were made from."""
    config = data.config(num_epochs=2, checkpoint_preservation_interval=1)
    train_directory(config)
    kept = data.root / "model" / "epoch_1"
    assert not [path for path in kept.rglob("*") if path.is_symlink()]
    shutil.move(kept, data.root / "elsewhere")
    shutil.rmtree(data.root / "model")
    assert evaluate_directory(data.config("elsewhere"))["version"] == 1


def test_19_selection_keeps_weights_and_features():
    ids = np.arange(4)
    edges = EdgeList(
        ids, ids, ids, ids.astype(np.float32), Features.of([[n] for n in ids]), Features.of([[n, n] for n in ids])
    )
    some = edges.select(np.array([3, 1]))
    assert some.weight.tolist() == [3, 1]
    assert some.lhs_features.data.tolist() == [3, 1]
    assert some.rhs_features.data.tolist() == [3, 3, 1, 1]


def test_20_seed_decides_everything(data):
    for name in ("one", "two"):
        train_directory(data.config(name), seed=5)
    one, two = ((data.root / name / "embeddings_n_0.v2.h5").read_bytes() for name in ("one", "two"))
    assert one.replace(b"/one", b"/two") == two  # the path is in the attributes


def test_21_dead_peer_is_given_up_soon(tmp_path):
    """PBG's processes wait 365 days for one another.

    A silent writer is given up within seconds.
    """
    store = LocalStore(tmp_path)
    store.put("lease.json", json.dumps({"holder": {"machine": "gone", "pid": 1}, "beat": 7}).encode())
    slept = []
    wait_until_free(store, "lease.json", sleep=slept.append)
    assert SILENCE_SECONDS <= sum(slept) <= SILENCE_SECONDS + 2


def test_22_overrides_take_null_and_equals_signs(data):
    path = data.root / "config.json"
    path.write_text(json.dumps(data.config(max_norm=0.5).to_pbg()))
    config = load_config_from(str(path), ["max_norm=null", "checkpoint_path=/data/run=3/model", "relations.0.name=a=b"])
    assert config.max_norm is None
    assert config.checkpoint_path == "/data/run=3/model"
    assert config.relations[0].name == "a=b"


def test_23_true_negatives_can_be_masked():
    """PBG never masks them; here ``mask_known_negatives`` does.

    It is off by default: a step then equals PBG's.
    """
    assert not ModelConfig.model_fields["mask_known_negatives"].default
    edges = EdgeList(np.array([0, 0]), np.array([1, 2]), np.array([0, 0]))
    masked = {}
    for wanted in (False, True):
        config = model(num_uniform_negs=0, mask_known_negatives=wanted, batch_size=10, num_batch_negs=5)
        table = Table.random(3, 4, 1.0, torch.Generator().manual_seed(0))
        engine, seen = TorchEngine(config, 1), []
        real = engine.step

        def observe(side, _, negative, seen=seen):
            seen.append((side, bool((negative <= MASKED).all())))

        def step(*args, real=real, observe=observe, **kwargs):
            return real(*args, observe=observe, **kwargs)

        engine.step = step
        engine.train_bucket(edges, {"e": table}, {"e": table}, generator=torch.Generator().manual_seed(0))
        masked[wanted] = dict(seen)
    assert masked == {False: {"lhs": False, "rhs": False}, True: {"lhs": True, "rhs": True}}


def test_24_training_starts_no_processes(data, monkeypatch):
    monkeypatch.setattr(os, "fork", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    threads = set()
    engine = type(make_engine("auto", data.config(), 1))
    real = engine.step

    def step(self, *args, **kwargs):
        threads.add(threading.get_ident())
        time.sleep(0.005)  # gives the other worker its turn
        return real(self, *args, **kwargs)

    monkeypatch.setattr(engine, "step", step)
    assert train_directory(data.config(workers=2, hogwild_delay=0, num_epochs=3))["edges_trained"] == 360
    assert len(threads) > 1


def test_25_chunks_follow_from_the_largest_bucket(data):
    """PBG uses bucket (0, 0) instead."""
    one = np.zeros(1, np.int64)
    write_edges(data.edges / edge_file_name(0, 0), EdgeList(one, one, one))
    assert train_directory(data.config(num_epochs=1, max_edges_per_chunk=10))["version"] == 3


def test_26_unreadable_file_is_named(data):
    config = data.config()
    train_directory(config)
    lost = data.root / "model" / "embeddings_n_1.v2.h5"
    lost.unlink()
    with pytest.raises(PbgError, match=r"embeddings_n_1\.v2\.h5"):
        train_directory(data.config(num_epochs=3))
    (data.edges / edge_file_name(1, 0)).write_bytes(b"not an edge file")
    with pytest.raises(FormatError, match=r"edges_1_0\.h5: not an HDF5 file"):
        train_directory(data.config("new"))
