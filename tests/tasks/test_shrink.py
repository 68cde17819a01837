"""Nights that begin with shrunk vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pbg_tasks.config.run import RunLayout
from pbg_tasks.errors import ConfigError
from pbg_tasks.formats.embeddings import read_embeddings
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.tasks.context import RunContext
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from pbg_tasks.tasks.training.train import job_of
from pbg_tasks.training.commits import Commits
from pbg_tasks.training.data.partitions import PartitionKey
from tests.tasks.conftest import ring

STILL = {"lr": 1e-30, "num_epochs": 2}
"""A training that moves nothing."""
SHRINK = {"shrink": {"vectors": 0.5, "sums": 0.25}}


def stored(run, version=2):
    """Read both partitions of a run's checkpoint."""
    place = Path(run) / RunLayout.checkpoint
    return [read_embeddings(place / f"embeddings_n_{part}.v{version}.h5") for part in (0, 1)]


def first_night(place):
    place.write_spec(model={"num_epochs": 2})
    place.snapshot("d1", ring(60))
    place.snapshot("d2", ring(64))
    return run_chain(place.spec, "d1")["run"]


def planned(place, **train):
    place.write_spec(model=STILL, train=train)
    run = plan(place.spec, "d2")["run"]
    for task in ("validate", "partition", "bucket"):
        run_task(task, run)
    return run


def known_rows(before, after):
    for (old, _), (new, _) in zip(before, after, strict=True):
        yield old, new[: len(old)]


def start_of(run):
    """Return where the training of a planned run begins."""
    with Scratch() as scratch:
        job = job_of(RunContext.open(run), 0, scratch.path, ignore_memory=True)
        return [job.start(None, scratch.path).table(PartitionKey("n", part)) for part in (0, 1)]


def test_known_rows_start_at_their_factors(place):
    before = stored(first_night(place))
    tables = start_of(planned(place, **SHRINK))
    for (old, old_sums), table in zip(before, tables, strict=True):
        np.testing.assert_array_equal(table.embeddings[: len(old)], old * np.float32(0.5))
        np.testing.assert_array_equal(table.row_sums[: len(old)], old_sums * np.float32(0.25))
        assert old_sums.min() > 0


def test_sums_of_new_rows_stay(place):
    known = [len(rows) for rows, _ in stored(first_night(place))]
    whole, shrunk = start_of(planned(place)), start_of(planned(place, **SHRINK))
    assert sum(len(table) for table in whole) == sum(known) + 4
    for plain, table, count in zip(whole, shrunk, known, strict=True):
        np.testing.assert_array_equal(table.row_sums[count:], plain.row_sums[count:])


def test_new_rows_shrink_with_their_neighbours(place):
    first_night(place)
    whole, shrunk = planned(place), planned(place, **SHRINK)
    assert whole != shrunk
    for run in (whole, shrunk):
        run_task("train", run)
    fresh = 0
    for (plain, _), (half, _) in zip(stored(whole), stored(shrunk), strict=True):
        np.testing.assert_allclose(half, plain / 2, rtol=1e-6)
        fresh += len(plain)
    assert fresh == 64


def test_frozen_vectors_are_not_shrunk(place):
    frozen = {"entities": {"n": {"num_partitions": 2, "trainable": False}}}
    place.write_spec(model=frozen)
    for day in ("d1", "d2"):
        place.snapshot(day, ring(60))
    before = stored(run_chain(place.spec, "d1")["run"], 3)
    place.write_spec(model=frozen, train=SHRINK)
    run = plan(place.spec, "d2")["run"]
    for task in ("validate", "partition", "bucket"):
        run_task(task, run)
    for (old, _), table in zip(before, start_of(run), strict=True):
        np.testing.assert_array_equal(table.embeddings, old)


def test_interrupted_training_shrinks_once(place, monkeypatch):
    before = stored(first_night(place))
    run = planned(place, **SHRINK)
    commit, commits = Commits.commit, []

    def dies_after_the_first(self, *args, **kwargs):
        over = commit(self, *args, **kwargs)
        commits.append(1)
        if len(commits) == 1:
            raise OSError("the machine went away")
        return over

    monkeypatch.setattr(Commits, "commit", dies_after_the_first)
    with pytest.raises(OSError, match="went away"):
        run_task("train", run)
    assert run_task("train", run)["resumed_from"] == 1
    for old, new in known_rows(before, stored(run)):
        np.testing.assert_array_equal(new, old * np.float32(0.5))


def test_first_night_is_not_shrunk(place):
    place.snapshot("d1", ring(60))
    place.write_spec()
    plain = run_chain(place.spec, "d1")["run"]
    place.write_spec(store=str(place.root / "other"), train=SHRINK)
    other = run_chain(place.spec, "d1")["run"]
    assert RunContext.open(other).spec.graph.train.shrink is not None
    for (a, _), (b, _) in zip(stored(plain, 3), stored(other, 3), strict=True):
        assert np.linalg.norm(b) > 0.8 * np.linalg.norm(a)


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ({**SHRINK, "warm_start": False}, "of warm starts"),
        ({**SHRINK, "anchor": 0.1}, "anchor draws vectors back"),
        ({"shrink": {"vectors": 0}}, "greater than 0"),
        ({"shrink": {"sums": 1.5}}, "less than or equal to 1"),
    ],
)
def test_meaningless_shrink_is_refused(place, train, sentence):
    place.write_spec(train=train)
    place.snapshot("d1", ring(60))
    with pytest.raises(ConfigError, match=sentence):
        plan(place.spec, "d1")


@pytest.mark.parametrize("train", [SHRINK, {"anchor": 2}, {"delta": {"sample": 0.1}}])
def test_keys_of_chains_are_refused_between_independent_nights(place, train):
    place.write_spec(train=train, nights={"walk": "independent"})
    place.snapshot("d1", ring(60))
    (key,) = train
    with pytest.raises(ConfigError, match=f"train.{key} is of warm starts, which nights"):
        plan(place.spec, "d1")
