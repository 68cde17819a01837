"""Samples of held-out edges: their order, rounds and size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pbg_tasks.config import Evaluation, Gates
from pbg_tasks.evaluate import sampling
from pbg_tasks.evaluate.sampling import (
    FIRST_PAIRS,
    ROUND_EDGES,
    Reciprocals,
    Sample,
    floors_decide,
    pair_decides,
    start_ratios,
)
from pbg_tasks.formats.edges import EdgeList
from tests.evaluate.compared_models import compared_model
from tests.evaluate.graphs import Graph, evenly, make_config

STRICT = Gates(min_over_popularity={}, max_mrr_drop=0.1)


def split(*sizes, relations=1, seed=0):
    """Return buckets whose edges have different left ends."""
    rng, first, found = np.random.default_rng(seed), 0, {}
    for place, size in enumerate(sizes):
        lhs = np.arange(first, first + size)
        rel = np.minimum(rng.geometric(0.7, size=size), relations) - 1
        found[place, 0], first = EdgeList(lhs, lhs, rel), first + size
    return found


def listed(sample):
    """Return left end and relation of the sampled edges, by row."""
    return (np.concatenate([getattr(edges, name) for edges in sample.edges.values()]) for name in ("lhs", "rel"))


def test_small_split_is_ranked_whole_at_once():
    held_out = split(300, 200)
    sample = Sample.of(held_out, 500, relation_edges=30)
    assert sample.edges is held_out
    (only,) = sample.rounds()
    assert sorted(only) == list(range(500))


def test_unlimited_split_is_ranked_whole_at_once(monkeypatch):
    monkeypatch.setattr(sampling, "ROUND_EDGES", 10)
    assert [len(rows) for rows in Sample.of(split(300), None, relation_edges=30).rounds()] == [300]


def test_each_round_has_its_share_of_relations():
    """Sizes of relations are far apart, and their edges come in blocks."""
    sizes = np.array([20_000, 2_500, 40, 39, 12, 3])
    rel = np.repeat(np.arange(6), sizes)[np.random.default_rng(0).permutation(sizes.sum())]
    half = len(rel) // 2
    buckets = {(0, 0): np.sort(rel[:half]), (0, 1): rel[half:]}
    lhs = np.arange(len(rel))
    held_out = {bucket: EdgeList(lhs[: len(own)], lhs[: len(own)], own) for bucket, own in buckets.items()}
    sample = Sample.of(held_out, 20_000)
    _, rel = listed(sample)
    ranked = np.cumsum([len(rows) for rows in sample.rounds()])
    there = np.array([np.bincount(rel[sample.order[:count]], minlength=6) for count in ranked])
    assert (np.abs(there - sizes * ranked[:, np.newaxis] / sizes.sum()) < 1).all()
    assert (there[0, 2:4] > 0).all()


def test_rounds_double_until_the_limit(monkeypatch):
    monkeypatch.setattr(sampling, "ROUND_EDGES", 10)
    sample = Sample.of(split(300, 200, 0, 100), 100)
    rounds = list(sample.rounds())
    assert [len(rows) for rows in rounds] == [10, 10, 20, 40, 20]
    assert sorted(np.concatenate(rounds)) == list(range(100))
    lhs, _ = listed(sample)
    assert [np.sum((lhs >= first) & (lhs < stop)) for first, stop in ((0, 300), (300, 500), (500, 600))] == [50, 33, 17]
    first_half = lhs[np.concatenate(rounds[:3])]
    assert sum(first_half < 300) in range(19, 22)


def test_larger_limit_begins_with_the_smaller_sample():
    held_out = split(3000, 2000, relations=3)
    few, many = Sample.of(held_out, 100), Sample.of(held_out, 400)
    names = [next(iter(listed(sample)))[sample.order] for sample in (few, many)]
    assert names[0].tolist() == names[1][:100].tolist()


def test_rare_relations_get_edges_of_their_own():
    held_out = split(20_000, 20_000, relations=6)
    plain, sample = Sample.of(held_out, 2000), Sample.of(held_out, 2000, relation_edges=30)
    _, of_all = listed(Sample.of(held_out, None))
    _, rel = listed(sample)
    for relation, edges in enumerate(np.bincount(of_all)):
        assert np.sum(rel == relation) >= min(30, edges)
    assert np.bincount(listed_relations(plain), minlength=6).min() < 30  # else this tests nothing
    assert len(sample.order) + len(sample.extra) == len(rel) == 2000
    assert not set(sample.order) & set(sample.extra)
    # the edges for all relations are the beginning of the plain sample
    ends = [next(iter(listed(each)))[each.order] for each in (sample, plain)]
    assert ends[0].tolist() == ends[1][: len(sample.order)].tolist()


def listed_relations(sample):
    _, rel = listed(sample)
    return rel


def test_many_relations_take_half_the_limit_at_most():
    lhs = np.arange(10_000)
    sample = Sample.of({(0, 0): EdgeList(lhs, lhs, lhs % 1000)}, 400, relation_edges=30)
    assert len(sample.order) + len(sample.extra) == 400
    assert len(sample.order) >= 200
    assert len(np.unique(listed_relations(sample))) > 300


@pytest.mark.parametrize(
    ("floors", "enough"),
    [
        ({}, True),
        ({"b": 2}, True),
        ({"b": 3}, False),
        ({"c": 9}, True),
        ({"gone": 9}, True),
        ({"*": 2}, True),
        ({"*": 3}, False),
        ({"*": 3, "b": 1}, True),
    ],
)
def test_floor_asks_for_the_edges_there_are(floors, enough):
    gates = Gates(relations={name: {"min_mrr": 0.1, "min_edges": edges} for name, edges in floors.items()})
    rel = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])
    ranked, far = np.array([0, 1, 2, 4, 5, 8]), np.full(6, 0.5)
    assert floors_decide(gates, rel, ranked, far, ["a", "b", "c", "d"]) is enough


@pytest.mark.parametrize(
    ("mrr", "ranked", "enough"),
    [(0.15, 32, True), (0.05, 32, True), (0.11, 32, False), (0.09, 32, False), (0.11, 40, True)],
)
def test_floor_of_relation_near_its_mrr(mrr, ranked, enough):
    """Three standard errors are 0.03 here; of 40 edges all are ranked."""
    gates = Gates(relations={"b": {"min_mrr": 0.1}, "*": {"min_mrr": 0.0}})
    rel, ours = np.arange(80) % 2, mrr + 0.05 * (-1.0) ** np.arange(ranked)
    found = np.concatenate((np.full(ranked, 0.1), ours))
    rows = np.concatenate([np.flatnonzero(rel == number)[:ranked] for number in (0, 1)])
    assert floors_decide(gates, rel, rows, found, ["a", "b"]) is enough


def test_relation_between_rare_and_common_is_judged(tmp_path, monkeypatch):
    """The sample has its edges, the first round too few."""
    monkeypatch.setattr(sampling, "ROUND_EDGES", 50)
    graph = Graph(make_config(dynamic=True), edges=1800)
    rare = np.flatnonzero(graph.triples[:, 1] == 1)
    held_out = np.delete(graph.triples, np.setdiff1d(rare, rare[::15]), axis=0)
    floor = {"min_mrr": 0.0, "min_edges": 20}

    def ranked(name, **relations):
        gates = Gates(min_over_popularity={}, relations=relations)
        report, _ = graph.evaluate(tmp_path, held_out, evaluation=Evaluation(max_edges=800), gates=gates)
        return report.edges, report.relations[name]["filtered"]["count"] // 2

    edges, of_rare = ranked("knows")
    assert edges == 50
    assert of_rare < 20  # else this tests nothing
    edges, of_rare = ranked("knows", knows=floor)
    assert 50 < edges < 800
    assert of_rare >= 20
    assert ranked("knows", likes=floor)[0] == 50


def reciprocals(rng, count, mean, *, compared=None):
    ranked = rng.uniform(0, 2 * mean, size=count)
    if compared is None:
        return Reciprocals(ranked, None, None, None)
    noise = rng.normal(0, 0.2 * mean, size=count)
    return Reciprocals(ranked, None, ranked, ranked * compared + noise - noise.mean())


@pytest.mark.parametrize(
    ("compared", "count", "enough"),
    [(1.0, 500, True), (1.5, 500, True), (1 / 0.9, 500, False), (1.0, 99, False)],
    ids=["no fall", "a fall beyond the limit", "a fall at the limit", "few edges"],
)
def test_comparison_far_from_its_limit_is_enough(rng, compared, count, enough):
    assert reciprocals(rng, count, 0.1, compared=compared).decide(STRICT) is enough


@pytest.mark.parametrize(
    ("compared", "count", "enough"),
    [
        (1.0, 500, True),
        (1 / 0.9, 500, False),
        (1 / 0.9, FIRST_PAIRS, True),
        (1 / 0.8, 500, False),
        (1 / 0.8, 2 * ROUND_EDGES, False),
        (1.5, 500, True),
        (1.0, 99, False),
    ],
    ids=[
        "no fall",
        "a fall at the warning",
        "a fall at the warning, on the first pairs",
        "a fall at the limit",
        "a fall at the limit, on two rounds",
        "a fall beyond both",
        "few edges",
    ],
)
def test_best_far_from_both_limits_is_enough(rng, compared, count, enough):
    found = reciprocals(rng, count, 0.1, compared=compared)
    beside = replace(found, candidate=None, current=None, best=(found.candidate, found.current))
    assert beside.decide(Gates(min_over_popularity={})) is enough
    assert replace(beside, best=None).decide(Gates(min_over_popularity={}))


@pytest.mark.parametrize(
    ("errors", "enough"),
    [(1.9, False), (2.1, True), (-2.1, False), (-2.9, False), (-3.1, True)],
    ids=["not clear", "end of the interval clear", "refused by chance", "refused", "clearly refused"],
)
def test_start_is_judged_by_end_of_interval(rng, errors, enough):
    """A mean two errors above a limit has an end four above."""
    theirs, noise = rng.uniform(0, 0.2, size=500), rng.normal(0, 0.02, size=500)
    noise -= noise.mean()
    ours = 0.95 * theirs + noise + errors * noise.std(ddof=1) / 500**0.5
    gates = Gates(min_over_start={"block": 0.95})
    assert pair_decides(ours, theirs, start_ratios(gates), gates) is enough


def test_start_that_is_not_clear_asks_for_more(rng):
    """The upper end of its interval falls with more edges."""
    gates = Gates(min_over_popularity={}, min_over_start={"block": 0.95})
    close, far = (reciprocals(rng, ROUND_EDGES, 0.1, compared=1 / share) for share in (0.94, 0.84))
    assert close.decide(gates)
    assert not close.decide(gates, continued=True)
    assert far.decide(gates, continued=True)


@pytest.mark.parametrize(("count", "enough"), [(FIRST_PAIRS - 1, False), (FIRST_PAIRS, True)])
def test_warnings_ask_another_model_the_first_pairs_only(rng, count, enough):
    theirs = rng.uniform(0.1, 0.2, size=count)
    noise = rng.normal(0, 0.01, size=count)
    gates = Gates(min_over_start={"warn": 1, "block": 0.5})
    assert pair_decides(theirs + noise - noise.mean(), theirs, start_ratios(gates), gates) is enough


@pytest.mark.parametrize(("floor", "enough"), [(0.0, True), (0.05, True), (0.1, False), (0.2, True)])
def test_floor_near_the_mrr_asks_for_more(rng, floor, enough):
    found = reciprocals(rng, 1000, 0.1)
    centred = Reciprocals(found.ranked - found.ranked.mean() + 0.1, None, None, None)
    assert centred.decide(Gates(min_mrr=floor, min_over_popularity={})) is enough


def test_popularity_near_its_limit_asks_for_more(rng):
    ranked, other = rng.uniform(size=500), rng.uniform(size=500)
    close, far = (Reciprocals(ranked, popular, None, None) for popular in (other, other / 3))
    assert not close.decide(Gates())
    assert far.decide(Gates())


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def test_sample_figures_are_those_of_its_edges(tmp_path, monkeypatch):
    """An evaluation of the first round's edges alone has the same figures."""
    monkeypatch.setattr(sampling, "ROUND_EDGES", 100)
    graph = Graph(make_config(dynamic=True, operator="translation"), edges=900)
    compared = compared_model(graph, graph, tmp_path / "compared", unknown=1)
    lenient = Gates(min_over_popularity={}, max_mrr_drop=0.5, min_common_edges=10)
    (tmp_path / "a").mkdir()
    report, _ = graph.evaluate(
        tmp_path / "a", graph.triples, evaluation=Evaluation(max_edges=800), compared=compared, gates=lenient
    )
    assert (report.edges, report.held_out) == (100, 900)
    assert report.interval["low"] < report.filtered["mrr"] == report.interval["mrr"] < report.interval["high"]
    (tmp_path / "b").mkdir()
    first = graph.triples[evenly(graph.triples[:, 1])[:100]]
    alone, _ = graph.evaluate(tmp_path / "b", first, compared=compared)
    assert alone.filtered == report.filtered
    assert alone.sides == report.sides
    assert alone.against.candidate == report.against.candidate
    assert alone.against.current == report.against.current
    assert alone.interval is None
    assert "held_out" not in alone.to_json()


def test_undecided_night_ranks_the_whole_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "ROUND_EDGES", 50)
    graph = Graph(make_config(dynamic=True), edges=900)
    mrr = graph.evaluate(tmp_path, graph.triples)[0].filtered["mrr"]
    undecided = Gates(min_mrr=mrr, min_over_popularity={})
    again = tmp_path / "again"
    again.mkdir()
    report, _ = graph.evaluate(again, graph.triples, evaluation=Evaluation(max_edges=400), gates=undecided)
    assert report.edges == 400
    assert abs(report.filtered["mrr"] - mrr) < 3 * (report.interval["high"] - report.interval["low"])
