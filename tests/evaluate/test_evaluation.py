"""Ranks against a brute-force oracle that scores one candidate at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pbg_tasks.config import ConfigSchema, Evaluation
from pbg_tasks.evaluate import Candidates, evaluate_edges, ranking
from pbg_tasks.evaluate.metrics import figures, random_scorer
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.formats.embeddings import IterationInfo, embeddings_file_name, write_embeddings
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.train.parameters import SharedParameters

INFO = IterationInfo(1, 0, 1, 0, "edges", 1, 0)
NAMES = ["likes", "knows"]


def make_config(*, partitions=1, dynamic=False, operator="none", comparator="dot", **keys):
    relations = [
        {"name": "likes", "lhs": "user", "rhs": "item", "operator": operator},
        {"name": "knows", "lhs": "user", "rhs": "user", "operator": operator},
    ]
    if dynamic:
        relations = [{"name": "all", "lhs": "user", "rhs": "user", "operator": operator}]
    return ConfigSchema(
        entities={"user": {"num_partitions": partitions}, "item": {"num_partitions": 1}},
        relations=relations,
        dimension=6,
        dynamic_relations=dynamic,
        global_emb=not dynamic,
        comparator=comparator,
        entity_path="e",
        edge_paths=("t",),
        checkpoint_path="c",
        **keys,
    )


class Graph:
    """A random graph and model; entities are numbered over all partitions."""

    def __init__(self, config, seed=0, users=23, items=11, edges=60):
        rng = np.random.default_rng(seed)
        self.config = config
        self.users = config.entities["user"].num_partitions
        self.counts = {"user": self._cut(users), "item": [items]}
        self.bases = {name: np.concatenate(([0], np.cumsum(sizes))) for name, sizes in self.counts.items()}
        self.embeddings = {
            name: rng.normal(size=(n, 6)).astype(np.float32) for name, n in (("user", users), ("item", items))
        }
        shared = SharedParameters(config, 2)
        for value in shared.values.values():
            value.copy_(torch.from_numpy(rng.normal(size=value.shape).astype(np.float32)))
        self.params = shared.arrays()[0]
        rel = rng.integers(2, size=edges)
        self.types = [(r.lhs, r.rhs) for r in config.relations] * (2 if config.dynamic_relations else 1)
        lhs, rhs = (np.array([rng.integers(len(self.embeddings[self.types[r][side]])) for r in rel]) for side in (0, 1))
        self.triples = np.stack([lhs, rel, rhs], axis=1)

    def _cut(self, users):
        return [len(part) for part in np.array_split(np.arange(users), self.users)]

    def files(self, directory):
        paths = {}
        for entity, sizes in self.counts.items():
            for p in range(len(sizes)):
                rows = self.embeddings[entity][self.bases[entity][p] : self.bases[entity][p + 1]]
                path = directory / embeddings_file_name(entity, p, 1)
                write_embeddings(path, rows, None, lr=0.1, iteration=INFO, config=self.config)
                paths[entity, p] = path
        return paths

    def buckets(self, triples):
        """Place edges as `bucket` does; an item's end may lie in any bucket."""
        found = {}
        for number, (lhs, rel, rhs) in enumerate(triples):
            place = []
            for side, entity in zip((lhs, rhs), self.types[rel], strict=True):
                p = int(np.searchsorted(self.bases[entity], side, side="right") - 1)
                spread = p if len(self.counts[entity]) > 1 else number % self.users
                place.append((spread, side - self.bases[entity][p]))
            found.setdefault((place[0][0], place[1][0]), []).append((place[0][1], place[1][1], rel))
        return {
            bucket: EdgeList(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))
            for bucket, rows in found.items()
        }

    def score(self, index, rel, predict, known, candidate):
        scorer = RelationScorer(self.config, index, self.params)
        kinds = self.types[rel]
        known_type, other = (kinds[1], kinds[0]) if predict == "lhs" else kinds
        query = scorer.queries(
            torch.from_numpy(self.embeddings[known_type][[known]]), torch.tensor([rel]), predict=predict
        )
        rows = scorer.candidates(torch.from_numpy(self.embeddings[other][[candidate]]), predict=predict)
        return scorer.score(query, rows).item()

    def oracle(self, held_out):
        true = {tuple(t) for t in self.triples.tolist()}
        raw, filtered = [], []
        for predict in ("lhs", "rhs"):
            for lhs, rel, rhs in held_out.tolist():
                index = 0 if self.config.dynamic_relations else rel
                known, answer = (rhs, lhs) if predict == "lhs" else (lhs, rhs)
                entity = self.types[rel][0 if predict == "lhs" else 1]
                own = self.score(index, rel, predict, known, answer)
                better = [
                    other
                    for other in range(len(self.embeddings[entity]))
                    if other != answer and self.score(index, rel, predict, known, other) >= own
                ]
                edges = [(other, rel, rhs) if predict == "lhs" else (lhs, rel, other) for other in better]
                raw.append(1 + len(better))
                filtered.append(1 + sum(edge not in true for edge in edges))
        return np.array(raw), np.array(filtered)

    def evaluate(self, tmp_path, held_out, **options):
        return evaluate_edges(
            self.config,
            self.params,
            self.files(tmp_path),
            self.counts,
            self.buckets(held_out),
            lambda: iter(self.buckets(self.triples).items()),
            evaluation=options.pop("evaluation", Evaluation()),
            relation_names=NAMES,
            **options,
        )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("comparator", ["dot", "cos", "l2", "squared_l2"])
@pytest.mark.parametrize("operator", ["none", "translation", "diagonal", "complex_diagonal", "linear", "affine"])
def test_ranks_are_those_of_brute_force(tmp_path, operator, comparator, dynamic):
    graph = Graph(make_config(partitions=3, dynamic=dynamic, operator=operator, comparator=comparator))
    held_out = graph.triples[:12]
    report, _ = graph.evaluate(tmp_path, held_out)
    raw, filtered = graph.oracle(held_out)
    assert report.raw["mrr"] == pytest.approx((1 / raw).mean(), abs=1e-6)
    assert report.filtered["mrr"] == pytest.approx((1 / filtered).mean(), abs=1e-6)
    assert report.raw["mr"] == pytest.approx(raw.mean(), abs=1e-5)
    assert report.edges == 12


def test_partitions_and_block_sizes_do_not_change_ranks(tmp_path, monkeypatch):
    reports = []
    for partitions, rows, queries in ((1, 8192, 512), (3, 8192, 512), (3, 2, 3), (5, 7, 1)):
        monkeypatch.setattr(ranking, "QUERY_ROWS", queries)
        monkeypatch.setattr("pbg_tasks.evaluate.evaluation.block_rows", lambda *_, rows=rows: rows)
        directory = tmp_path / f"{partitions}-{rows}"
        directory.mkdir()
        graph = Graph(make_config(partitions=partitions, operator="diagonal"))
        reports.append(graph.evaluate(directory, graph.triples[:20])[0])
    assert all(report == reports[0] for report in reports[1:])


def test_a_collapsed_model_is_ranked_last_everywhere(tmp_path):
    graph = Graph(make_config(partitions=2, dynamic=True, comparator="dot"), users=40)
    graph.embeddings["user"][:] = np.float32(0.3)
    report, _ = graph.evaluate(tmp_path, graph.triples[:10])
    assert report.raw["mr"] == 40
    assert report.raw["auc"] == 0


def test_scores_that_are_no_numbers_never_look_good(tmp_path, monkeypatch):
    graph = Graph(make_config(dynamic=True), users=30)
    monkeypatch.setattr(
        RelationScorer, "score", lambda _, queries, rows: torch.full((len(queries), len(rows)), torch.nan)
    )
    report, _ = graph.evaluate(tmp_path, graph.triples[:10])
    assert report.raw["mr"] >= 29
    assert report.raw["hits10"] == 0


def test_a_sample_of_candidates_is_drawn_once_and_used_again(tmp_path):
    graph = Graph(make_config(partitions=2, dynamic=True), users=200, edges=300)
    few = Evaluation(max_candidates=50)
    report, sample = graph.evaluate(tmp_path, graph.triples[:30], evaluation=few)
    assert report.sampled
    assert report.candidates == {"user": 50, "item": 11}
    kept = Candidates.from_bytes(sample.to_bytes())
    assert graph.evaluate(tmp_path, graph.triples[:30], evaluation=few, candidates=kept, seed=9)[0] == report
    other, _ = graph.evaluate(tmp_path, graph.triples[:30], evaluation=few, seed=9)
    assert other != report
    everyone, none = graph.evaluate(tmp_path, graph.triples[:30])
    assert none is None
    assert everyone.raw["mr"] == pytest.approx(4 * report.raw["mr"], rel=0.5)


def test_figures():
    ranks, among = np.array([1, 2, 10, 100]), np.full(4, 101)
    found = figures(ranks, among)
    assert found["mrr"] == pytest.approx((1 + 0.5 + 0.1 + 0.01) / 4)
    assert (found["hits1"], found["hits10"], found["hits50"], found["mr"]) == (0.25, 0.75, 0.75, 28.25)
    assert found["auc"] == pytest.approx(1 - (0 + 1 + 9 + 99) / 400)


def test_a_random_scorer_reaches_what_is_expected_of_it():
    n = 50
    rng = np.random.default_rng(0)
    drawn = rng.integers(1, n + 1, size=200_000)
    expected = random_scorer(np.full(3, n))
    assert expected["mrr"] == pytest.approx((1 / drawn).mean(), rel=0.02)
    assert expected["hits10"] == pytest.approx((drawn <= 10).mean(), rel=0.02)
