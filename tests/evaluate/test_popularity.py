"""Cost of ranking by frequency in training.

Its results are compared with brute force in test_evaluation.py.
"""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from pbg_tasks.config import GraphSpec
from pbg_tasks.evaluate import evaluation, popularity
from pbg_tasks.evaluate.filters import AnswerCollector
from pbg_tasks.evaluate.ids import Numbering, Triples
from pbg_tasks.evaluate.one_side import OneSide
from pbg_tasks.evaluate.popularity import Popularity
from pbg_tasks.evaluate.questions import Questions
from pbg_tasks.evaluate.tables import EntityTable
from pbg_tasks.memory.tasks import evaluation_forecast
from tests.config.specs import SPEC
from tests.evaluate.graphs import Graph, assert_popularity_is_that_of_brute_force, make_config


class Watched:
    """NumPy that counts the numbers given to its functions."""

    def __init__(self):
        self.numbers = 0

    def __getattr__(self, name):
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found

        def call(*given, **how):
            flat = [each for one in given for each in (one if isinstance(one, (tuple, list)) else (one,))]
            self.numbers += sum(each.size for each in flat if isinstance(each, np.ndarray))
            return found(*given, **how)

        return call


def among(entities):
    return EntityTable([], np.array([0, entities]), 1, None)


def edges_to(lhs, hub):
    return Triples(lhs, np.zeros(len(lhs), np.int64), np.full(len(lhs), hub))


@pytest.mark.parametrize("step", [1, 100, 1 << 20])
@pytest.mark.parametrize("seen", ["once", "in every piece", "at random"])
def test_counts_are_those_of_all_pieces(monkeypatch, seen, step):
    monkeypatch.setattr(popularity, "_WAITING", step)
    random = np.random.default_rng(0)
    pieces = {
        "once": random.permutation(900).reshape(30, 30),
        "in every piece": np.tile(np.arange(30), (30, 1)),
        "at random": random.integers(60, size=(30, 30)),
    }[seen]
    found = Popularity("lhs", 1000)
    for piece in [pieces[:4].ravel(), np.empty(0, np.int64), *pieces[4:]]:
        found.add(edges_to(piece, 0))
    expected = Counter(pieces.ravel().tolist())
    counts = found._count(np.zeros(1000, np.int64), np.arange(1000))
    assert counts.tolist() == [expected[number] for number in range(1000)]


@pytest.mark.parametrize("largest", [99, 100, 10_000])
def test_counts_are_alike_in_table_and_sorted(largest):
    keys = np.random.default_rng(0).integers(largest, size=100)
    keys[0] = largest
    expected = Counter(keys.tolist())
    found = popularity.Counted.of(keys.copy())
    assert dict(zip(found.keys.tolist(), found.counts.tolist(), strict=True)) == expected
    assert found.keys.tolist() == sorted(expected)


@pytest.mark.parametrize("pieces", [16, 128])
def test_counted_pieces_are_not_processed_again(monkeypatch, pieces):
    watched, each = Watched(), 100
    monkeypatch.setattr(popularity, "np", watched)
    monkeypatch.setattr(popularity, "_WAITING", each)
    found = Popularity("lhs", pieces * each)
    for piece in np.random.default_rng(0).permutation(pieces * each).reshape(pieces, each):
        found.add(edges_to(piece, 0))
    found._count(np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert watched.numbers < 6 * pieces * each * math.log2(pieces)


def test_small_pieces_are_counted_together(monkeypatch):
    monkeypatch.setattr(popularity, "_WAITING", 100)
    found, joined = Popularity("lhs", 1000), []
    real = popularity.Counted.joined
    monkeypatch.setattr(popularity.Counted, "joined", lambda *both: joined.append(1) or real(*both))
    for piece in np.random.default_rng(0).permutation(400).reshape(40, 10):
        found.add(edges_to(piece, 0))
    assert found._count(np.zeros(400, np.int64), np.arange(400)).tolist() == [1] * 400
    assert len(joined) == 3


def test_counts_and_answers_stay_within_forecast():
    count, pieces = 200_000, 200
    edges = Triples(np.arange(count), np.zeros(count, np.int64), np.random.default_rng(0).permutation(count))
    sides = [OneSide("lhs", edges, count), OneSide("rhs", edges, count)]  # every edge is an answer, every end new
    tracemalloc.start()
    try:
        for rows in np.split(np.random.default_rng(1).permutation(count), pieces):
            piece = edges.select(rows)
            for side in sides:
                side.add_known(piece)
                side.add_training(piece)
        answers = [side._answers for side in sides]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert all(len(each.between(np.arange(count), 0, count)[1]) == count for each in answers)
    graph = GraphSpec.model_validate(SPEC)
    few, more = (evaluation_forecast(graph, asked=1, known=(1 << 30) + known).peak for known in (0, count))
    assert 0.6 * (more - few) < peak < more - few


def test_large_bucket_is_numbered_in_pieces(tmp_path, monkeypatch):
    graph = Graph(make_config(partitions=2, dynamic=True), edges=150)

    def evaluated():
        buckets = graph.buckets(graph.triples[40:])
        return graph.evaluate(tmp_path, graph.triples[:40], train=lambda: iter(buckets.items()))[0]

    whole, sizes, number = evaluated(), [], Numbering._number
    monkeypatch.setattr(evaluation, "BLOCK_EDGES", 7)
    monkeypatch.setattr(
        Numbering, "_number", lambda self, bucket, edges: sizes.append(len(edges)) or number(self, bucket, edges)
    )
    assert evaluated() == whole
    assert sum(sizes) == 40 + 150 + 110
    assert max(sizes[4:]) == 7  # after the four buckets of held-out edges


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("limit", [1000, 9])
def test_known_answers_are_found_in_any_pieces(tmp_path, monkeypatch, step, limit):
    graph = Graph(make_config(partitions=3, dynamic=True), edges=150)
    graph.triples[:60, 0], graph.triples[:60, 1] = 3, 1  # a hub: which entities does 3 know?
    train, held_out = graph.triples[20:], np.concatenate((graph.triples[:20], graph.triples[10:70:3]))
    monkeypatch.setattr(popularity, "_STEP", step)
    monkeypatch.setattr(popularity, "_WAITING", step)
    assert_popularity_is_that_of_brute_force(tmp_path, graph, train, held_out, limit)


def test_many_questions_with_many_answers_need_little_memory():
    asked, known, hub = 2_000, 5_000, 5_000
    random = np.random.default_rng(0)
    edges = edges_to(np.arange(known), hub)
    questions = Questions.of(edges.select(np.arange(asked)), "lhs", known + 1)
    collector, counted = AnswerCollector(questions), Popularity("lhs", known + 1)
    collector.add(edges)
    listed = np.repeat(np.arange(known), random.integers(4, size=known))
    counted.add(edges_to(listed, 1))
    answers = collector.answers()
    tracemalloc.start()
    try:
        ranks = counted.ranks(np.arange(asked), questions, answers, among(known + 1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * (asked + known)
    # All entities except the hub are known to be right, and the hub was never seen.
    never = ~np.isin(np.arange(asked), listed)
    assert ranks.tolist() == (1 + never).tolist()
