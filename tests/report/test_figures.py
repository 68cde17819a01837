"""Plots of a training, with the figures of its statistics."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pbg_tasks.config.night_results import NightResults
from pbg_tasks.formats.directory import BucketStats, EvalStats, IoStats, io_line, iteration_line, stats_line
from pbg_tasks.formats.metadata import IterationInfo
from pbg_tasks.publish import Channel
from pbg_tasks.report import figures
from pbg_tasks.report.comparison import comparison_document
from pbg_tasks.report.facts import RunFacts
from pbg_tasks.report.history import history_document
from pbg_tasks.report.pages import Links, render
from pbg_tasks.report.run import run_document
from pbg_tasks.report.standing import standing_document
from pbg_tasks.report.training import training_document
from pbg_tasks.tasks.context import CHAIN
from pbg_tasks.tasks.view.report import read_graph, read_run
from tests.report.conftest import DAYS
from tests.report.document import check_page

EDGES = ((1000, 200), (900, 300), (600, 600))
"""Seconds of both buckets, by epoch."""
SECONDS = (4.0, 2.0, 1.5)
WAITED = (1.0, 0.5, 0.0)


def statistics(*, timed=True):
    """Return lines of statistics for three epochs over two buckets."""
    lines = []
    for epoch, counts in enumerate(EDGES):
        place = IterationInfo(
            num_epochs=3,
            epoch_idx=epoch,
            num_edge_paths=1,
            edge_path_idx=0,
            edge_path="edges",
            num_edge_chunks=1,
            edge_chunk_idx=0,
        )
        for rhs, count in enumerate(counts):
            bucket = BucketStats(count=count, loss=0.5, reg=0.0, violators_lhs=0.0, violators_rhs=0.0)
            lines.append(stats_line(bucket, 0, rhs, 2 * epoch + rhs, place))
        if timed:
            lines.append(io_line(IoStats(SECONDS[epoch], WAITED[epoch]), place))
    return lines


def points(figure):
    """Return the values of a figure's traces, by epoch."""
    return {trace["name"]: dict(zip(trace["x"], trace["y"], strict=True)) for trace in figure["data"]}


def test_page_shows_training_waiting_and_speed(nights):
    run = nights.run(DAYS[1])
    results = NightResults.parse({task: run.result(task) for task in CHAIN})
    document = run_document(RunFacts(run.spec, run.url, run.spec_hash, CHAIN, results, stats=statistics()))
    page = check_page(render(document, Links(assets="assets")))
    drawn = {
        each["attrs"]["id"]: json.loads(each["attrs"]["data-figure"])
        for each in page.all("div")
        if "data-figure" in each["attrs"]
    }
    assert points(drawn["throughput"]) == {
        "training": {1: 3.0, 2: 1.5, 3: 1.5},
        "waiting for I/O": {1: 1.0, 2: 0.5, 3: 0.0},
    }
    assert drawn["throughput"]["layout"]["barmode"] == "stack"
    assert points(drawn["speed"]) == {"edges/s": {1: 300, 2: 600, 3: 800}}
    assert drawn["speed"]["layout"]["yaxis"]["title"]["text"] == "edges a second"
    table = {row["text"].strip() for row in page.all("tr")}
    assert {"training1.03.0", "waiting for I/O1.01.0", "edges/s1.0300", "edges/s3.0800"} <= table


def test_held_out_and_io_lines_make_one_iteration():
    place = IterationInfo(3, 0, 1, 0, "edges", 1, 0)
    ends = [iteration_line(EvalStats(7, 1.5, 3.0, 0.25, 0, 0, 0, 0), 1, place), *statistics()]
    for stats in (ends, ends[::-1]):
        spec = SimpleNamespace(epochs=3)
        run = SimpleNamespace(spec=spec, url="/runs/r", results=NightResults(), stats=stats, progress=None, heard=None)
        first, second, _ = training_document(run)["iterations"]
        assert (first["mrr"], first["seconds"], first["waited"]) == (0.25, 4.0, 1.0)
        assert (second["mrr"], second["seconds"]) == (None, 2.0)


def test_stopped_training_has_the_epochs_it_trained():
    results = NightResults.parse({"train": {"task": "train", "run": "r", "seconds": 1, "epochs": 3}})
    facts = {"spec": SimpleNamespace(epochs=60), "url": "/runs/r", "results": results, "heard": None}
    training = training_document(SimpleNamespace(**facts, stats=statistics(), progress=None))
    assert (training["state"], training["epoch"], training["epochs"]) == ("done", 3, 3)


def test_training_without_statistics_has_its_losses(nights):
    run = nights.run(DAYS[1])
    results = NightResults.parse({task: run.result(task) for task in CHAIN})
    document = run_document(RunFacts(run.spec, run.url, run.spec_hash, CHAIN, results))
    training = document["training"]
    assert [each["loss"] for each in training["iterations"]] == results.train.curve
    assert (training["epoch"], training["done"]) == (results.train.epochs, training["buckets"])
    assert {cell["state"] for row in training["matrix"] for cell in row} == {"done"}
    page = check_page(render(document, Links(assets="assets")))
    assert "not begun" not in page.text()


@pytest.mark.parametrize("draw", [figures.throughput, figures.speed])
def test_missing_times_are_not_drawn(draw):
    spec = SimpleNamespace(epochs=3)
    stats = statistics(timed=False)
    training = training_document(
        SimpleNamespace(spec=spec, url="/runs/r", results=NightResults(), stats=stats, progress=None, heard=None)
    )
    assert [each["edges"] for each in training["iterations"]] == [1200, 1200, 1200]
    assert draw(training) is None


@pytest.mark.parametrize(("epochs", "step"), [(1, 1), (3, 1), (9, 1), (10, 2), (100, 13)])
def test_marks_of_epochs_are_whole_epochs_apart(epochs, step):
    training = {"iterations": [{"epoch": epoch + 1, "loss": 1.0} for epoch in range(epochs)]}
    assert figures.loss(training)["layout"]["xaxis"]["dtick"] == step


def nights():
    """Return nights: a day done twice, refused and failed ones."""
    rows = [("d1", "a", "released", 0.5), ("d1", "b", "released", 0.4), ("d2", "c", "refused", 0.1)]
    rows += [("d3", "d", "failed", 0.2), ("d4", "e", "released", 0.45)]
    return [{"snapshot": day, "run": run, "state": state, "mrr": mrr, "cosine": mrr} for day, run, state, mrr in rows]


def test_line_joins_last_release_of_each_snapshot():
    drawn = figures.nights(nights(), "mrr", "MRR")
    found = {trace["name"]: dict(zip(trace["x"], trace["y"], strict=True)) for trace in drawn["data"]}
    assert found == {
        "nights": {"d1": 0.4, "d4": 0.45},
        "superseded": {"d1": 0.5},
        "refused or failed": {"d2": 0.1, "d3": 0.2},
    }
    assert drawn["layout"]["yaxis"]["rangemode"] == "tozero"


def test_trial_after_release_stands_beside_line():
    trials = [{"snapshot": day, "run": day, "state": "finished", "mrr": 0.6, "cosine": 0.6} for day in ("d1", "d5")]
    drawn = figures.nights([*nights(), *trials], "mrr", "MRR")
    found = {trace["name"]: dict(zip(trace["x"], trace["y"], strict=True)) for trace in drawn["data"]}
    assert found["nights"] == {"d1": 0.4, "d4": 0.45, "d5": 0.6}
    assert (found["superseded"], found["not published"]) == ({"d1": 0.5}, {"d1": 0.6})


def test_night_under_way_has_no_duration():
    rows = [{"snapshot": day, "run": day, "state": "released", "seconds": 7200.0, "mrr": 0.5} for day in ("d1", "d2")]
    rows.append({"snapshot": "d3", "run": "d3", "state": "running", "seconds": 12.0, "mrr": 0.4})
    assert points(figures.nights(rows, "seconds", "seconds")) == {"nights": {"d1": 7200.0, "d2": 7200.0}}
    assert points(figures.nights(rows, "mrr", "MRR")) == {"nights": {"d1": 0.5, "d2": 0.5, "d3": 0.4}}
    assert figures.nights(rows[2:], "seconds", "seconds") is None


def test_resumed_night_has_no_duration(nights):
    graph = read_graph("toy", Channel(nights.store, "production"))

    def resumed(run):
        if run.spec.snapshot != DAYS[1]:
            return run
        trained = run.results.train.model_copy(update={"resumed_from": 1})
        return replace(run, results=replace(run.results, train=trained))

    history = history_document(replace(graph, runs=[*map(resumed, graph.runs)]))
    timed = {row["snapshot"]: row["seconds"] is not None for row in history["nights"]}
    assert timed == dict.fromkeys(DAYS, True) | {DAYS[1]: False}
    left, right = (run_document(resumed(read_run(nights.run(day)))) for day in DAYS[:2])
    (duration,) = (row for row in comparison_document(left, right)["figures"] if row["title"] == "Duration")
    assert (duration["left"], duration["right"], duration["verdict"]) == (left["seconds"], None, "same")
    standing = [standing_document(history, [], [], page="p", run=run, now=0.0) for run in (left, right)]
    assert [each["took"] for each in standing] == [left["seconds"], None]
    pages = [render(document, Links(assets="assets")) for document in (left, right)]
    assert ["of training its last try" in page for page in pages] == [False, True]


def test_table_of_plot_has_newest_figures(nights):
    """Check also that a missing figure is a dash."""
    points = [{"epoch": epoch, "loss": epoch / 4} for epoch in range(1, 251)] + [{"epoch": 251, "loss": float("nan")}]
    document = run_document(read_run(nights.run(DAYS[1])))
    document["training"] |= {"iterations": [{"mrr": None, "seconds": None, **point} for point in points]}
    page = check_page(render(document, Links(assets="assets")))
    rows = [row["text"].strip() for row in page.all("tr") if row["text"].strip().startswith("loss")]
    assert (len(rows), rows[0], rows[-2:]) == (200, "loss52.013.0", ["loss250.062.5", "loss251.0–"])  # noqa: RUF001 - the dash
    assert "The last 200 of each series." in page.text()


@pytest.mark.parametrize(
    ("floor", "fall", "bands"),
    [
        (0.2, 0.36, [(0, 0.2, "--c4"), (0.2, 0.36, "--c4"), (0.36, 0.45, "--c2")]),
        (0.4, 0.36, [(0, 0.4, "--c4"), (0.4, 0.45, "--c2")]),
        (None, 0.36, [(0, 0.36, "--c4"), (0.36, 0.45, "--c2")]),
    ],
)
def test_bands_show_floor_and_allowed_fall(floor, fall, bands):
    drawn = figures.nights(nights(), "mrr", "MRR", {"floor": floor, "fall": fall, "current": 0.45})
    assert [(band["y0"], band["y1"], band["fillcolor"]) for band in drawn["layout"]["shapes"]] == bands


def test_axes_of_training_begin_at_zero():
    point = {"epoch": 1, "loss": 1.0, "mrr": 0.5, "edges": 10, "seconds": 1.0, "waited": 0.0}
    training = {"iterations": [point]}
    run = {"run": "r", "training": training}
    drawn = [draw(training) for draw in (figures.loss, figures.held_out, figures.speed)]
    for figure in [*drawn, figures.two_losses(run, run)]:
        assert figure["layout"]["yaxis"]["rangemode"] == "tozero"


def test_axis_of_cosine_ends_at_one():
    near = [{**night, "cosine": 0.998} for night in nights()]
    assert figures.nights(near, "cosine", "cosine")["layout"]["yaxis"]["range"] == [0.9, 1.0]
    far = [{**night, "cosine": -0.05} for night in nights()]
    assert figures.nights(far, "cosine", "cosine")["layout"]["yaxis"]["range"] == [-0.1, 1.0]
