"""Edges that another model is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pbg_tasks.config import Evaluation, Gates
from pbg_tasks.evaluate import sampling
from tests.evaluate.compared_models import compared_model
from tests.evaluate.graphs import Graph, evenly, make_config

GATES = Gates(min_over_popularity={}, max_mrr_drop=0.5, max_trend_drop={}, min_common_edges=10)


@pytest.fixture
def graph():
    return Graph(make_config(dynamic=True, operator="translation"), edges=900)


@pytest.fixture
def report(tmp_path, graph, monkeypatch):
    """Evaluate a graph beside itself in a round of 200 edges."""
    monkeypatch.setattr(sampling, "ROUND_EDGES", 200)
    monkeypatch.setattr(sampling, "FIRST_PAIRS", 20)
    compared = compared_model(graph, graph, tmp_path / "compared", unknown=0)

    def evaluate(gates=GATES, *, as_="compared", most=800, **facts):
        evaluation = Evaluation(max_edges=most)
        beside = {as_: replace(compared, **facts)}
        return graph.evaluate(tmp_path, graph.triples, evaluation=evaluation, gates=gates, **beside)[0]

    return evaluate


def test_clear_comparison_asks_few_edges(tmp_path, graph, report):
    found = report()
    assert (found.edges, found.against.edges) == (200, 20)
    compared = compared_model(graph, graph, tmp_path / "again", unknown=0)
    first = graph.triples[evenly(graph.triples[:, 1])[:20]]
    alone = graph.evaluate(tmp_path, first, compared=compared)[0].against
    assert (alone.candidate, alone.current) == (found.against.candidate, found.against.current)


def test_best_release_is_asked_few_edges_too(report):
    assert report(replaced(max_trend_drop={"block": 0.5}), as_="best").best.edges == 20


def test_replaced_release_of_other_edges_decides_by_fall(report):
    """A trial is asked what is ranked for other limits."""
    assert report(as_="replaced").replaced.edges == 20
    few = replaced(min_common_edges=201)
    found = report(few, as_="replaced")
    assert (found.edges, found.replaced.edges) == (400, 400)
    trial = report(few, as_="replaced", repeats=True)
    assert (trial.edges, trial.replaced.edges) == (200, 200)


def replaced(**keys):
    return GATES.model_validate(GATES.model_dump() | keys)


@pytest.mark.parametrize(("common", "asked"), [(20, 20), (21, 40), (100, 160), (161, 200)])
def test_parts_double_until_they_decide(report, common, asked):
    found = report(replaced(min_common_edges=common))
    assert (found.edges, found.against.edges) == (200, asked)


def test_undecided_start_is_asked_the_whole_sample(report):
    """The gate judges an end of its interval, which few edges widen."""
    undecided = report(replaced(min_over_start={"block": 1}), continued=True)
    assert (undecided.edges, undecided.against.edges) == (800, 800)
    independent = report(replaced(min_over_start={"block": 1}))
    assert (independent.edges, independent.against.edges) == (200, 20)
    assert report(replaced(min_over_start={"warn": 1, "block": 0.5}), continued=True).against.edges == 20
    assert report(replaced(min_over_start={"block": 0.5}), continued=True).against.edges == 20


def test_split_that_is_ranked_whole_is_compared_whole(report):
    assert report(most=900).against.edges == 900
