"""Ranking by frequency in training: what it costs. What it finds is compared with brute force in test_evaluation.py."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from pbg_tasks.config import GraphSpec
from pbg_tasks.evaluate import evaluation, popularity
from pbg_tasks.evaluate.ids import Numbering, Triples
from pbg_tasks.evaluate.one_side import OneSide
from pbg_tasks.evaluate.popularity import Popularity
from pbg_tasks.memory import evaluation_forecast
from tests.config.test_graph_spec import SPEC
from tests.evaluate.test_evaluation import Graph, make_config


class Watched:
    """NumPy, which counts the numbers that its functions are given."""

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


def edges_to(lhs, hub):
    return Triples(lhs, np.zeros(len(lhs), np.int64), np.full(len(lhs), hub))


@pytest.mark.parametrize("seen", ["once", "in every piece", "at random"])
def test_counts_are_those_of_all_pieces_together(seen):
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


@pytest.mark.parametrize("pieces", [16, 128])
def test_what_was_counted_before_is_not_gone_through_again_for_every_piece(monkeypatch, pieces):
    watched, each = Watched(), 100
    monkeypatch.setattr(popularity, "np", watched)
    found = Popularity("lhs", pieces * each)
    for piece in np.random.default_rng(0).permutation(pieces * each).reshape(pieces, each):
        found.add(edges_to(piece, 0))
    found._count(np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert watched.numbers < 6 * pieces * each * math.log2(pieces)


def test_counts_and_known_answers_keep_within_their_forecast():
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


def test_a_large_bucket_is_numbered_in_pieces(tmp_path, monkeypatch):
    graph = Graph(make_config(partitions=2, dynamic=True), edges=150)

    def evaluated():
        buckets = graph.buckets(graph.triples[40:])
        return graph.evaluate(tmp_path, graph.triples[:40], train=lambda: iter(buckets.items()))[0]

    whole, sizes, number = evaluated(), [], Numbering._number
    monkeypatch.setattr(evaluation, "PIECE_EDGES", 7)
    monkeypatch.setattr(
        Numbering, "_number", lambda self, bucket, edges: sizes.append(len(edges)) or number(self, bucket, edges)
    )
    assert evaluated() == whole
    assert sum(sizes) == 40 + 150 + 110
    assert max(sizes[4:]) == 7  # after the four buckets of held-out edges
