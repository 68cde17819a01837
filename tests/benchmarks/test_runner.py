"""From a data set to figures, by real commands.

The graph is small.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality.commands import Clock, Pbg
from benchmarks.quality.data import DataSet
from benchmarks.quality.dated import Facts, ranks
from benchmarks.quality.experiments import BY_NAME, ROOT, Experiment
from benchmarks.quality.runner import run
from pbg_tasks.config.loading import load_config
from pbg_tasks.errors import ConfigError
from tests.benchmarks.graph import CONFIG, write_ring

CHANCE = 0.078  # expectation of a random scorer: H(60) / 60


@pytest.fixture
def ring(tmp_path):
    (tmp_path / "source").mkdir()
    data = write_ring(tmp_path / "source")
    (tmp_path / "ring.yaml").write_text(CONFIG)
    return Experiment("ring", "Ring", "dated links", Path("ring.yaml"), data, targets={"mrr": 0.5}, interval=20)


def test_experiment_yields_figures_curves_and_seconds(ring, tmp_path):
    found = run(
        ring, seed=3, root=tmp_path, data=tmp_path / "source", directory=tmp_path / "run", params=["num_epochs=40"]
    )
    assert [epoch for epoch, _ in found.curves["quality"]] == [20, 40]
    assert len(found.curves["loss"]) == 40
    assert found.curves["loss"][-1][1] < found.curves["loss"][0][1]
    assert found.figures["mrr"] > 3 * CHANCE
    # every question of the ring has one answer at one date, so that both filters leave out the same
    assert found.figures["dated_mrr"] == pytest.approx(found.figures["mrr"], abs=1e-6)
    assert found.figures["raw_mrr"] <= found.figures["mrr"]
    assert set(found.seconds) == {"import", "train", "curve", "eval"}
    assert found.training["workers"] == 1
    assert not (tmp_path / "run").exists()


def test_failing_command_raises_error_of_its_kind(tmp_path):
    with pytest.raises(ConfigError, match=r"pbg train missing\.yaml: ended with status 2"):
        Pbg(tmp_path, Clock())("train", "train", "missing.yaml")


def test_time_aware_filter_excludes_same_date_only():
    config = load_config(CONFIG.replace("dimension: 16", "dimension: 2").encode(), source="ring.yaml")
    # The relation is the identity, so that an entity scores by its first number: 3 > 2 > 1 > 0.
    params = {
        f"relations/0/operator/{side}/{part}": np.full((1, 1), value, np.float32)
        for side in ("lhs", "rhs")
        for part, value in (("real", 1.0), ("imag", 0.0))
    }
    embeddings = np.array([[0, 0], [1, 0], [2, 0], [3, 0]], np.float32)
    known = Facts(*map(np.array, ([1, 1, 1], [0, 0, 0], [1, 2, 3], [7, 7, 8])))
    asked = Facts(*map(np.array, ([1], [0], [1], [7])))
    found, among = ranks(config, params, embeddings, asked, known)
    # right end: 3 is better and of another date, 2 is better and left out; left end: 2 and 3 are better
    assert found.tolist() == [3, 2]
    assert among.tolist() == [4, 3]


def test_published_rows_use_measured_figures():
    assert BY_NAME["icews14"].published[0].figures.keys() <= {"dated_mrr", "dated_hits1", "dated_hits10"}


def test_config_of_init_is_run_as_written(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    lines = [f"e{number}\tnext\te{(number + 1) % 30}\n" for number in range(30)]
    for split, chosen in (("train", lines[:-4]), ("valid", lines[-4:-2]), ("test", lines[-2:])):
        (source / f"{split}.tsv").write_text("".join(chosen))
    initial = dataclasses.replace(BY_NAME["init_umls"], data=DataSet("ring", {}))
    found = run(initial, seed=0, root=ROOT, data=source, directory=tmp_path / "run", params=["num_epochs=2"])
    assert found.training["epochs"] == 2
    assert found.training["workers"] == 1
    assert 0 < found.figures["mrr"] <= 1
