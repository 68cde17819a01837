from __future__ import annotations

import numpy as np
import pytest

from pbg_tasks.evaluate.paired_comparison import PairedComparison
from pbg_tasks.evaluate.ranking import Ranks
from pbg_tasks.evaluate.report import EvaluationReport, rank_figures

EDGES, RELATIONS = 3000, 300


class Watched(np.ndarray):
    """Counts the numbers used in computations."""

    numbers = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **how):
        Watched.numbers += max(map(np.size, inputs))
        plain = [np.asarray(each) if isinstance(each, Watched) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **how)


@pytest.fixture
def rel(monkeypatch):
    monkeypatch.setattr(Watched, "numbers", 0)
    numbers = np.random.default_rng(0).integers(RELATIONS, size=EDGES)
    return numbers[numbers != 7].view(Watched)


def random_ranks(count, seed):
    random = np.random.default_rng(seed)
    return Ranks(*(random.integers(1, 1000, count) for _ in range(2)), *(random.integers(1000, 2000, (2, count))))


NAMES = [f"r{number}" for number in range(RELATIONS)]


def test_figures_of_relations_use_their_edges_once(rel):
    sides = {"lhs": random_ranks(len(rel), 1), "rhs": random_ranks(len(rel), 2)}
    report = EvaluationReport.of(sides, rel, NAMES, split="test", candidates={}, sampled=False)
    assert Watched.numbers < 10 * EDGES  # and not once for every relation
    assert list(report.relations) == [name for name in NAMES if name != "r7"]
    for number in (0, 1, 150, 299):
        rows = np.flatnonzero(np.asarray(rel) == number)
        assert report.relations[NAMES[number]] == rank_figures([side.select(rows) for side in sides.values()])


def test_comparison_uses_edges_of_relation_only(rel):
    ours, theirs = ([random_ranks(len(rel), seed), random_ranks(len(rel), seed + 1)] for seed in (1, 3))
    found = PairedComparison.of(ours, theirs, rel, NAMES, {}, 0)
    assert Watched.numbers < 10 * EDGES
    assert list(found.relations) == [name for name in NAMES if name != "r7"]
    for number in (0, 1, 150, 299):
        rows = np.asarray(rel) == number
        reciprocal = [np.stack([1 / side.filtered for side in ranks]).mean(axis=0)[rows] for ranks in (ours, theirs)]
        means = dict(zip(("candidate", "current"), (round(float(each.mean()), 8) for each in reciprocal), strict=True))
        assert found.relations[NAMES[number]] == {"edges": int(rows.sum())} | means


def test_relation_without_edge_is_not_reported():
    nothing = Ranks.empty(0)
    report = EvaluationReport.of(
        {"lhs": nothing, "rhs": nothing}, np.empty(0, np.int64), NAMES, split="test", candidates={}, sampled=False
    )
    assert report.relations == {}
