from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from benchmarks.quality import report
from benchmarks.quality.experiments import BY_NAME, EXPERIMENTS, ROOT
from benchmarks.quality.plot import Line, Panel, draw, ticks
from benchmarks.quality.results import Results, Run, means, missed, recipe
from pbg_tasks.errors import FormatError
from pbg_tasks.tasks.directory.configs import load_config_from

FIGURES = {"mrr": 0.8413, "hits1": 0.7741, "hits10": 0.8949, "mr": 50.2, "auc": 0.99, "raw_mrr": 0.2503}


@pytest.fixture
def run():
    return Run(
        experiment="fb15k",
        seed=0,
        recipe="r",
        date="2026-01-01 00:00",
        environment={"cpu": "C", "cores": 2, "python": "3.11", "torch": "2"},
        figures=FIGURES,
        curves={"loss": [[1, 6.5], [2, 4.0]], "quality": [[2, 0.6]]},
        training={"epochs": 2, "engine": "torch", "workers": 2, "edges_per_second": 100},
        seconds={"train": {"wall": 10.0, "cpu": 19.0}},
    )


def test_results_are_read_as_written(run, tmp_path):
    results = Results()
    results.add(run)
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results
    assert Results.read(tmp_path / "none.json") == Results()


def test_foreign_results_are_refused(tmp_path):
    path = tmp_path / "results.json"
    for text in ("{", "[]", '{"format": 2, "runs": []}', '{"format": 1, "runs": [{"seed": 1}]}'):
        path.write_text(text)
        with pytest.raises(FormatError, match=r"results\.json.*start over"):
            Results.read(path)


def test_run_counts_for_its_recipe_and_seed(run):
    results = Results()
    results.add(run)
    assert results.has("fb15k", 0, "r")
    assert not results.has("fb15k", 0, "another")
    assert not results.has("fb15k", 1, "r")


def test_recipe_depends_on_config_changes_and_data():
    one, other = BY_NAME["fb15k"], BY_NAME["fb15k_237"]
    assert (
        len({recipe(one, b"a", ()), recipe(one, b"b", ()), recipe(one, b"a", ("x=1",)), recipe(other, b"a", ())}) == 4
    )


def test_targets_are_compared_with_mean_of_seeds(run):
    experiment = BY_NAME["fb15k"]
    worse = dataclasses.replace(run, seed=1, figures=FIGURES | {"mrr": 0.8181})
    assert means([run, worse])["mrr"] == pytest.approx(0.8297)
    assert missed(experiment, [run]) == []
    (sentence,) = missed(experiment, [run, worse])
    assert sentence == "fb15k: mrr is 0.8297, below the target 0.835"


def test_document_lists_measured_and_missing_experiments(run, tmp_path):
    results = Results()
    results.add(run)
    report.write(results, tmp_path / "q.md", tmp_path / "q.svg")
    text = (tmp_path / "q.md").read_text()
    assert "| FB15k, our config | MRR | 0.835, aim 0.84 | 0.8413 | met |" in text
    assert "| FB15k-237 | MRR | 0.345 |  | not run |" in text
    assert "| **ours**, seed 0 | 0.8413 | 0.7741 | 0.8949 | 50.2 | 0.2503 |" in text
    ET.parse(tmp_path / "q.svg")  # noqa: S314 - written above


def test_document_compares_initial_configs_with_tuned_ones(run, tmp_path):
    results = Results()
    for name, mrr in (("umls", 0.9), ("init_umls", 0.81)):
        results.add(dataclasses.replace(run, experiment=name, figures=FIGURES | {"mrr": mrr}))
    report.write(results, tmp_path / "q.md", tmp_path / "q.svg")
    text = (tmp_path / "q.md").read_text()
    assert "| umls | 0.9 (1) | 0.81 (1) | 90.0% |" in text
    assert "| wn18rr |  (0) |  (0) | not run |" in text


def test_plot_has_all_points_of_each_line():
    lines = [Line("a & b", 0, [(1, 0.1), (2, 0.4)]), Line("c", 1, [(1, 0.3)])]
    root = ET.fromstring(draw([Panel("t", "x", lines)]))  # noqa: S314 - made here
    name = "{http://www.w3.org/2000/svg}"
    drawn = [line.get("points", "").split() for line in root.iter(f"{name}polyline")]
    assert [len(points) for points in drawn] == [2, 1]
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in drawn[0])
    assert x1 < x2
    assert y1 > y2
    assert "a & b" in {text.text for text in root.iter(f"{name}text")}


@pytest.mark.parametrize("reach", [(0, 1), (0.17, 0.83), (2.3, 11.4), (5, 5), (0, 0.003)])
def test_ticks_are_few_and_around_the_values(reach):
    found = ticks(*reach)
    assert found[0] <= reach[0]
    assert found[-1] >= reach[1]
    assert 2 <= len(found) <= 8


SHIPPED = [experiment for experiment in EXPERIMENTS if experiment.kind != "init"]


@pytest.mark.parametrize("experiment", SHIPPED, ids=lambda experiment: experiment.name)
def test_every_shipped_config_fits_its_experiment(experiment):
    config = load_config_from(str(ROOT / experiment.config))
    assert len(config.edge_paths) == (1 if experiment.kind == "labels" else 3)
    assert config.eval_fraction == 0
