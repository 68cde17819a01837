"""Two models on the same edges, compared with brute-force oracles."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pbg_tasks.evaluate import paired_comparison
from pbg_tasks.evaluate.candidates import Candidates
from pbg_tasks.evaluate.paired_comparison import mean_interval
from pbg_tasks.evaluate.ranking import Ranks
from tests.evaluate.compared_models import compared_model
from tests.evaluate.graphs import NAMES, Graph, make_config


def is_known(graph, edges, known):
    """Return whether edges are between entities that a compared model knows."""
    return np.array(
        [
            known[lhs_type][lhs] and known[rhs_type][rhs]
            for lhs, rel, rhs in edges
            for lhs_type, rhs_type in [graph.types[rel]]
        ]
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("unknown", [0, 2, 5])
def test_both_models_rank_edges_among_equal_candidates(tmp_path, dynamic, unknown):
    config = make_config(partitions=3, dynamic=dynamic, operator="translation")
    graph = Graph(config)
    # another dimension and comparator: another model, which shares nothing with tonight's but the entities
    other = Graph(make_config(dynamic=dynamic, comparator="cos", operator="diagonal", dimension=4), seed=1)
    compared = compared_model(graph, other, tmp_path / "compared", unknown=unknown)
    held_out = graph.triples[:30]
    report, _ = graph.evaluate(tmp_path, held_out, compared=compared)
    fair = held_out[is_known(graph, held_out, compared.known)]
    eligible = {entity: set(np.flatnonzero(flags).tolist()) for entity, flags in compared.known.items()}
    other.triples = graph.triples  # the edges known to be true
    found = report.against
    assert found.edges == len(fair) > (0 if unknown == 5 else 5)
    assert found.candidates == {entity: len(numbers) for entity, numbers in eligible.items()}
    reciprocal = {}
    for name, model, figures in (("candidate", graph, found.candidate), ("current", other, found.current)):
        raw, filtered, *_ = model.oracle(fair, eligible)
        assert figures["raw"]["mr"] == pytest.approx(raw.mean(), abs=1e-5)
        assert figures["filtered"]["mr"] == pytest.approx(filtered.mean(), abs=1e-5)
        reciprocal[name] = (1 / filtered).reshape(2, -1).mean(axis=0)
        for rel in (0, 1):
            own = reciprocal[name][fair[:, 1] == rel].mean()
            assert found.relations[NAMES[rel]][name] == pytest.approx(own, abs=1e-6)
    difference = reciprocal["candidate"] - reciprocal["current"]
    assert found.difference["mrr"] == pytest.approx(difference.mean(), abs=1e-6)
    assert found.difference["low"] < found.difference["mrr"] < found.difference["high"]
    json.dumps(report.to_json(), allow_nan=False)


def test_model_against_itself_has_no_difference(tmp_path):
    graph = Graph(make_config(partitions=2, operator="diagonal"))
    compared = compared_model(graph, graph, tmp_path / "compared", unknown=1)
    sample = Candidates.draw(graph.counts, 8, seed=0)
    report, _ = graph.evaluate(tmp_path, graph.triples, compared=compared, candidates=sample)
    assert report.against.candidate == report.against.current
    assert report.against.difference == {"mrr": 0, "low": 0, "high": 0}
    assert (
        report.against.candidates["user"] == compared.known["user"][sample.numbers("user", graph.bases["user"])].sum()
    )


def test_relations_are_matched_by_ids_of_compared(tmp_path):
    graph = Graph(make_config(dynamic=True, operator="translation"))
    turned = {path: value[::-1].copy() for path, value in graph.params.items()}
    swapped = Graph(graph.config)
    swapped.params = turned
    compared = compared_model(graph, swapped, tmp_path / "turned", unknown=0, relations=[1, 0])
    found = graph.evaluate(tmp_path, graph.triples, compared=compared)[0].against
    assert found.candidate == found.current
    compared = compared_model(graph, graph, tmp_path / "one", unknown=0, relations=[0, -1])
    found = graph.evaluate(tmp_path, graph.triples, compared=compared)[0].against
    assert list(found.relations) == ["likes"]
    assert found.edges == (graph.triples[:, 1] == 0).sum()


def test_edges_trained_by_compared_are_left_out(tmp_path):
    graph = Graph(make_config())
    likes = graph.triples[graph.triples[:, 1] == 0]
    first, second = likes[0], likes[1]
    trained = {("user", "item"): first[[0, 2]][np.newaxis], ("item", "user"): second[[2, 0]][np.newaxis]}
    compared = compared_model(graph, graph, tmp_path / "compared", unknown=0, trained=trained)
    found = graph.evaluate(tmp_path, graph.triples, compared=compared)[0].against
    pairs = {tuple(first[[0, 2]]), tuple(second[[0, 2]])}
    assert found.edges == sum(rel == 1 or (lhs, rhs) not in pairs for lhs, rel, rhs in graph.triples.tolist())


def test_missing_common_edge_gives_no_figures(tmp_path):
    graph = Graph(make_config())
    compared = compared_model(graph, graph, tmp_path / "compared", unknown=0, relations=[-1, -1])
    found = graph.evaluate(tmp_path, graph.triples, compared=compared)[0].against
    assert (found.edges, found.difference, found.relations) == (0, {}, {})
    assert found.candidate == found.current == {"raw": {"count": 0}, "filtered": {"count": 0}}


def test_compared_lacking_few_entities_scores_only_them(tmp_path, scored):
    """Tonight's model is not ranked a second time over common candidates."""
    graph = Graph(make_config(partitions=2, operator="diagonal"))
    compared = compared_model(graph, graph, tmp_path / "compared", unknown=1)
    found = graph.evaluate(tmp_path, graph.triples, compared=compared)[0].against
    fair = graph.triples[is_known(graph, graph.triples, compared.known)]
    sizes = {entity: sum(counts) for entity, counts in graph.counts.items()}
    types = [graph.types[rel] for rel in fair[:, 1]]
    assert found.edges == len(fair)
    assert scored["compare"] == sum(
        candidates[lhs] + candidates[rhs]
        for lhs, rhs in types
        for candidates in (found.candidates, {each: sizes[each] - found.candidates[each] for each in sizes})
    )


def test_ranks_without_some_candidates_are_exact(tmp_path):
    """Known answers and ties are on both sides of the cut."""
    graph = Graph(make_config(partitions=2, operator="diagonal"))
    for table in graph.embeddings.values():
        table[::3] = table[0]  # many ties
    compared = compared_model(graph, graph, tmp_path / "compared", unknown=2)
    report, _ = graph.evaluate(tmp_path, graph.triples, compared=compared)
    fair = graph.triples[is_known(graph, graph.triples, compared.known)]
    eligible = {entity: set(np.flatnonzero(flags).tolist()) for entity, flags in compared.known.items()}
    raw, filtered, *_ = graph.oracle(fair, eligible)
    for figures in (report.against.candidate, report.against.current):
        assert figures["raw"]["mr"] == round(raw.mean(), 8)
        assert figures["filtered"]["mr"] == round(filtered.mean(), 8)


def test_edge_with_impossible_rank_is_not_compared(tmp_path, monkeypatch, capsys):
    graph = Graph(make_config(partitions=2, operator="diagonal"))
    compared = compared_model(graph, graph, tmp_path / "compared", unknown=1)
    fair = graph.triples[is_known(graph, graph.triples, compared.known)]
    exact = Ranks.without

    def without(self, outside):
        ranks = exact(self, outside)
        ranks.filtered[0] = 0
        return ranks

    monkeypatch.setattr(Ranks, "without", without)
    found = graph.evaluate(tmp_path, graph.triples, compared=compared)[0].against
    assert found.edges == len(fair) - 1
    assert found.candidate == found.current
    assert "eval: 1 edge not compared: rounding judged a candidate in two ways" in capsys.readouterr().err


def test_very_many_edges_are_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(paired_comparison, "MAX_EDGES", 25)
    graph = Graph(make_config(partitions=2))
    compared = compared_model(graph, graph, tmp_path / "compared", unknown=0)
    found = graph.evaluate(tmp_path, graph.triples, compared=compared)[0].against
    assert found.edges == 25
    assert len(found.relations) == 2


def test_interval_covers_the_true_difference():
    rng = np.random.default_rng(0)
    found = [mean_interval(rng.normal(0.1, 1, size=80), seed) for seed in range(100)]
    assert 88 <= sum(each["low"] < 0.1 < each["high"] for each in found) <= 99
    assert mean_interval(np.arange(10.0), 3) == mean_interval(np.arange(10.0), 3)
