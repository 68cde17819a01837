"""Runs that stop early and release their best epoch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pbg_tasks.checkpoint import open_best, open_preserved
from pbg_tasks.config.loading import load_graph_spec
from pbg_tasks.config.run import RunLayout
from pbg_tasks.errors import ConfigError, EvictedError
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.view.show import show
from pbg_tasks.tasks.view.tables import table
from pbg_tasks.tasks.view.verify import verify
from pbg_tasks.training.commits import Commits
from pbg_tasks.training.edge_chunks import EdgeChunkTrainer
from pbg_tasks.training.engine.base import Engine
from pbg_tasks.training.local_work import LocalWork
from tests.tasks.conftest import communities, ring, workplace

EPOCHS = 8
MODEL = {
    "num_epochs": EPOCHS,
    "lr": 0.12,
    "comparator": "dot",
    "num_uniform_negs": 20_000,
    "entities": {"n": {"num_partitions": 1}},
    "checkpoint_preservation_interval": 1,
}
"""A model that fits the training edges too closely within some epochs."""
SPLIT = {"valid": 0.1, "test": 0.04}


def planned(place, **sections):
    """Prepare a run up to its training."""
    place.write_spec(**{"model": MODEL, "split": SPLIT, "train": {"early_stopping": {"patience": 2}}, **sections})
    run = plan(place.spec, "d1")["run"]
    for task in ("validate", "partition", "bucket"):
        run_task(task, run)
    return run


def objects(run):
    """Return the hashes of a released run's vectors, optimizer sums and model."""
    records = open_preserved(*opened(run, RunLayout.release)).records
    return {name: record.sha256 for name, record in records.items() if name.endswith(".h5")}


def opened(run, folder):
    found = RunContext.open(run)
    return found.store, found.key(folder)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    with workplace(tmp_path_factory.mktemp("early")) as place:
        place.snapshot("d1", communities())
        yield place


@pytest.fixture(scope="module")
def stopped(graph):
    """A run that nothing interrupts, trained and preserved."""
    run = planned(graph)
    found = run_task("train", run)
    run_task("preserve", run)
    return run, found


def test_training_stops_and_result_has_reason(stopped):
    _, found = stopped
    early = found["early_stopping"]
    assert early["stopped"] is True
    assert found["epochs"] == len(early["mrr"]) == found["version"] < EPOCHS
    best = early["mrr"].index(max(early["mrr"])) + 1
    assert early["best_epoch"] == early["version"] == best == found["epochs"] - 2 > 1
    assert early["reason"].startswith(f"stopped after epoch {found['epochs']} of {EPOCHS}: epoch {best} is the best")
    assert early["edges"] >= 400


def test_summary_names_the_released_epoch(stopped):
    run, found = stopped
    shown = show(run)
    assert shown["best_epoch"] == found["early_stopping"]["best_epoch"] < shown["epochs"]
    text = " ".join(table([shown]).split())
    assert f"epoch that is released {shown['best_epoch']}" in text
    assert f"loss of the last epoch {found['loss']:.4f}" in text


def test_release_holds_best_epoch(stopped, graph):
    """A training without early stopping has the same bytes after that epoch."""
    run, found = stopped
    whole = planned(graph, train={"early_stopping": None})
    run_task("train", whole)
    best = found["early_stopping"]["best_epoch"]
    epoch = open_preserved(*opened(whole, f"{RunLayout.checkpoint}/epoch_{best}"))
    expected = {name: record.sha256 for name, record in epoch.records.items() if name.endswith(".h5")}
    released = objects(run)
    assert released.keys() == expected.keys()
    embeddings = [name for name in expected if name.startswith("embeddings")]
    assert embeddings == [f"embeddings_n_0.v{best}.h5"]
    assert contents(run, RunLayout.release, embeddings) == contents(
        whole, f"{RunLayout.checkpoint}/epoch_{best}", embeddings
    )


def contents(run, folder, names):
    """Read vectors and optimizer sums."""
    from pbg_tasks.formats.embeddings import read_embeddings

    return [[each.tobytes() for each in read_embeddings(Path(run) / folder / name)] for name in names]


def test_verify_checks_best_version(stopped):
    run, found = stopped
    checked = verify(run)
    assert not checked.get("wrong")
    best = found["early_stopping"]["version"]
    path = Path(run) / RunLayout.checkpoint / f"embeddings_n_0.v{best}.h5"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        with pytest.raises(Exception, match=path.name):
            verify(run)
    finally:
        path.write_bytes(data)


def fresh(graph, number):
    """Prepare a run of the same training that no other test has."""
    return planned(
        graph,
        model=MODEL | {"checkpoint_preservation_interval": None},
        resources={"memory_gb": 1 + number / 10, "threads": 1},
    )


class KilledError(Exception):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("where", ["in epoch 3", "after the last commit"])
def test_killed_training_releases_same_bytes(graph, stopped, monkeypatch, where):
    run, found = stopped[0], stopped[1]
    again = fresh(graph, 1 if where == "in epoch 3" else 2)
    if where == "in epoch 3":
        train, calls = EdgeChunkTrainer.train, []

        def dying(self, iteration, *args, **kwargs):
            calls.append(iteration.number)
            if calls.count(3) == 1:
                raise KilledError
            return train(self, iteration, *args, **kwargs)

        monkeypatch.setattr(EdgeChunkTrainer, "train", dying)
    else:
        commit = Commits.commit

        def late(self, *args, **kwargs):
            over = commit(self, *args, **kwargs)
            if over:
                raise KilledError
            return over

        monkeypatch.setattr(Commits, "commit", late)
    with pytest.raises(KilledError):
        run_task("train", again)
    monkeypatch.undo()
    resumed = run_task("train", again)
    assert resumed["early_stopping"] == found["early_stopping"]
    assert resumed["epochs"] == found["epochs"]
    run_task("preserve", again)
    names = [name for name in objects(again) if name.startswith("embeddings")]
    assert contents(again, RunLayout.release, names) == contents(run, RunLayout.release, names)


def test_training_evicted_while_it_ranks_goes_on_alike(graph, stopped, monkeypatch):
    again = fresh(graph, 3)
    told = []

    def ranking(self, *args, check, **kwargs):
        told.append(True)
        check()
        raise AssertionError("the check has to end the ranking")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "evaluate", ranking)
        patch.setattr(LocalWork, "stopping", lambda _: bool(told))
        with pytest.raises(EvictedError):
            run_task("train", again)
    assert told == [True]
    assert run_task("train", again)["early_stopping"] == stopped[1]["early_stopping"]


@pytest.mark.s3
def test_gang_in_s3_stops_and_releases_best(graph, s3_bucket):
    """Two ranks, each a process."""
    run = planned(
        graph,
        store=s3_bucket,
        split={"valid": 0.4, "test": 0.04},
        model=MODEL
        | {
            "entities": {"n": {"num_partitions": 4}},
            "num_uniform_negs": 50_000,
            "checkpoint_preservation_interval": None,
        },
    )
    command = [sys.executable, "-m", "pbg_tasks", "train", run, "--json", "--ranks", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr
    early = json.loads(ended.stdout)["early_stopping"]
    manifest, _ = open_best(*opened(run, RunLayout.checkpoint))
    assert manifest.version == early["version"] == early["mrr"].index(max(early["mrr"])) + 1
    run_task("preserve", run)
    assert {name for name in objects(run) if name.startswith("embeddings")} == {
        f"embeddings_n_{part}.v{manifest.version}.h5" for part in range(4)
    }


def spec_of(place, **sections):
    place.write_spec(**sections)
    return load_graph_spec(place.spec).train.early_stopping


def test_file_without_key_has_early_stopping(place):
    assert spec_of(place).patience == 3
    assert spec_of(place, train={"early_stopping": None}) is None
    assert spec_of(place, split={"valid": 0, "test": 0.1}) is None
    assert spec_of(place, eval={"split": "valid"}) is None
    assert spec_of(place, model={"eval_fraction": 0.05}) is None


def test_early_stopping_without_valid_split_is_refused(place):
    with pytest.raises(ConfigError, match=r"ranks the valid split, yet split\.valid is 0"):
        spec_of(place, split={"valid": 0, "test": 0.1}, train={"early_stopping": {}})
    with pytest.raises(ConfigError, match=r"model\.eval_fraction other edges"):
        spec_of(place, model={"eval_fraction": 0.05}, train={"early_stopping": {}})


def test_stored_run_without_key_trains_to_its_end(place):
    """Runs of earlier versions have no such key."""
    place.snapshot("d1", ring(60))
    run = plan(place.spec, "d1")["run"]
    spec = json.loads((Path(run) / RunLayout.spec).read_text())
    assert spec["graph"]["train"].pop("early_stopping") == {"patience": 3}
    assert RunContext.open(run).spec.model_validate(spec).graph.train.early_stopping is None
    assert yaml.safe_load(place.spec.read_text()).get("train") is None
