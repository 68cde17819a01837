"""Start of a night's new entities.

It happens once, and every retry gets the same.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pbg_tasks.formats.embeddings import read_embeddings
from pbg_tasks.formats.entities import read_entity_names
from pbg_tasks.tasks.nightly.chain import run_chain, run_task
from pbg_tasks.tasks.nightly.plan import plan
from tests.tasks.conftest import ring

UNTRAINED = ("validate", "partition", "bucket", "train", "preserve")


def night(place, **options):
    """Do the second night up to its release; return its run."""
    url = plan(place.spec, "d2", **options)["run"]
    for task in UNTRAINED:
        run_task(task, url)
    return Path(url)


def vectors(directory, version):
    """Return the embedding of every name."""
    found = {}
    for part in range(2):
        embeddings, _ = read_embeddings(directory / f"embeddings_n_{part}.v{version}.h5")
        found |= dict(zip(read_entity_names(directory, "n", part), embeddings, strict=True))
    return found


@pytest.fixture
def two_days(place):
    place.snapshot("d1", ring(60))
    place.first = Path(run_chain(place.spec, "d1")["release"]["directory"])
    # x0 to x7 each join the known ones by three edges, y0 and y1 know only each other
    joined = [(f"x{i}", "next", f"e{(5 * i + j) % 60}") for i in range(8) for j in range(3)]
    place.snapshot("d2", [*ring(60), *joined, ("y0", "next", "y1")])
    return place


def test_new_entities_start_beside_their_neighbours(two_days, capsys):
    before = vectors(two_days.first, 3)
    after = vectors(night(two_days, epochs=0) / "release", 0)
    assert "10 new n: 8 start from known neighbours, 0 from new ones, 2 at random" in capsys.readouterr().err
    assert all(np.array_equal(after[name], before[name]) for name in before)
    usual = np.median([np.linalg.norm(row) for row in before.values()])
    assert [np.linalg.norm(after[f"x{i}"]) for i in range(8)] == pytest.approx([usual] * 8, rel=1e-4)
    assert max(np.linalg.norm(after[name]) for name in ("y0", "y1")) < usual / 10


def test_spec_may_start_new_entities_at_random(two_days):
    run = night(two_days, epochs=0, overrides=["train.new_entities=random"])
    assert not (run / "start").exists()
    after = vectors(run / "release", 0)
    assert max(np.linalg.norm(after[f"x{i}"]) for i in range(8)) < 0.1


@pytest.mark.parametrize("trainable", [False, True])
def test_frozen_new_entities_have_vectors_of_init_path(two_days, trainable):
    names = ["e0", *(f"x{i}" for i in range(8)), "stranger"]
    given = np.arange(80, dtype=np.float32).reshape(10, 8)
    (two_days.root / "n.json").write_text(json.dumps(names))
    np.save(two_days.root / "n.npy", given)
    changes = [f"model.entities.n.trainable={trainable}", f"model.init_path={two_days.root}"]
    before = vectors(two_days.first, 3)
    after = vectors(night(two_days, epochs=0, overrides=changes) / "release", 0)
    assert all(np.array_equal(after[name], before[name]) for name in before)
    taken = [np.array_equal(after[f"x{i}"], given[1 + i]) for i in range(8)]
    assert taken == [not trainable] * 8


def test_retry_starts_from_stored_first_try(two_days):
    run = night(two_days, epochs=1)
    trained = {path.name: path.read_bytes() for path in (run / "checkpoint").glob("*.v1.h5")}
    stored = {path.relative_to(run): path.read_bytes() for path in (run / "start").rglob("*") if path.is_file()}
    (folder,) = (path for path in (run / "start").iterdir() if path.is_dir())
    assert {path.name for path in folder.iterdir()} == {"embeddings_n_0.v0.h5", "embeddings_n_1.v0.h5"}

    def train_again():
        shutil.rmtree(run / "checkpoint")
        (run / "results" / "train.json").unlink()
        run_task("train", str(run))
        assert {path.name: path.read_bytes() for path in (run / "checkpoint").glob("*.v1.h5")} == trained

    train_again()
    # the first try was killed while it stored them: those of a machine that rounds differently are in another folder
    (run / "start" / "manifest.json").unlink()
    (folder / "embeddings_n_0.v0.h5").unlink()
    shutil.copytree(folder, run / "start" / "0123456789ab")
    train_again()
    again = {path.relative_to(run): path.read_bytes() for path in (run / "start").rglob("*") if path.is_file()}
    assert {name: again[name] for name in stored} == stored
