from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.formats.embeddings import read_embeddings
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.model.stored_parameters import initial_parameters
from pbg_tasks.training.data import newcomers
from pbg_tasks.training.data.newcomers import Newcomers
from pbg_tasks.training.data.partitions import PartitionKey
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.schedule import Bucket

DIMENSION = 6
KNOWN = 40
RELATIONS = 2


def make_config(operator="translation", comparator="l2", *, dynamic=True, partitions=1, **more):
    relations = [{"name": f"r{i}", "lhs": "n", "rhs": "n", "operator": operator} for i in range(RELATIONS)]
    return ConfigSchema.model_validate(
        {
            "entities": {"n": {"num_partitions": partitions}},
            "relations": relations[:1] if dynamic else relations,
            "dynamic_relations": dynamic,
            "dimension": DIMENSION,
            "comparator": comparator,
            "global_emb": False,
            "entity_path": "entities",
            "edge_paths": ["edges"],
            "checkpoint_path": "checkpoint",
            **more,
        }
    )


class Graph:
    """A graph with KNOWN known entities, and new ones after them.

    Entity e is row e // P of partition e % P.
    """

    def __init__(self, config, edges, *, new, weights=None):
        self.config, self.parts, self.total = config, config.entities["n"].num_partitions, KNOWN + new
        generator = np.random.default_rng(1)
        self.vectors = generator.normal(size=(self.total, DIMENSION)).astype(np.float32)
        self.vectors[KNOWN:] *= 1e-3
        self.sums = generator.random(self.total, dtype=np.float32)
        self.sums[KNOWN:] = 0
        params = initial_parameters(config, RELATIONS)
        self.params = {
            path: (value + generator.normal(size=value.shape) / 3).astype(np.float32) for path, value in params.items()
        }
        self.edges = np.array(edges, np.int64).reshape(-1, 3)
        self.weights = None if weights is None else np.array(weights, np.float32)

    def rows(self, part):
        return np.arange(part, self.total, self.parts)

    def table(self, key):
        rows = self.rows(key.partition)
        return Table.from_arrays(self.vectors[rows].copy(), self.sums[rows].copy())

    def _of(self, bucket):
        lhs, _, rhs = self.edges.T
        return np.flatnonzero((lhs % self.parts == bucket.lhs) & (rhs % self.parts == bucket.rhs))

    def count(self, _path, bucket):
        return len(self._of(bucket))

    def read(self, _path, bucket, start, stop):
        chosen = self._of(Bucket(*bucket))[start:stop]
        lhs, rel, rhs = self.edges[chosen].T
        weights = None if self.weights is None else self.weights[chosen]
        return EdgeList(lhs // self.parts, rhs // self.parts, rel, weights)

    def newcomers(self, scratch):
        scratch.mkdir(exist_ok=True)
        return Newcomers(
            self.config,
            relation_count=RELATIONS,
            params=self.params,
            known={PartitionKey("n", p): int((self.rows(p) < KNOWN).sum()) for p in range(self.parts)},
            source=self,
            edges=self,
            scratch=scratch,
        )

    def placed(self, scratch):
        """Place the new entities; return report, vectors and sums.

        They are in the order of the entities' numbers.
        """
        newcomers = self.newcomers(scratch)
        report = newcomers.place()
        out = scratch / "out"
        out.mkdir(exist_ok=True)
        newcomers.write(out)
        vectors, sums = self.vectors.copy(), self.sums.copy()
        for part in range(self.parts):
            rows = self.rows(part)
            rows = rows[rows >= KNOWN]
            if len(rows):
                vectors[rows], sums[rows] = read_embeddings(out / f"embeddings_n_{part}.v0.h5")
        return report.get("n"), vectors[KNOWN:], sums[KNOWN:]

    @property
    def usual_length(self):
        return np.median(np.linalg.norm(self.vectors[:KNOWN], axis=1))


def directions(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_new_entity_starts_where_its_relations_lead(tmp_path):
    # 40 is a right-hand end of two edges and a left-hand end of one; the second weighs three times as much
    graph = Graph(make_config(), [(3, 0, 40), (4, 1, 40), (40, 1, 5)], new=1, weights=[1, 3, 1])
    report, vectors, sums = graph.placed(tmp_path)
    assert report == {"new": 1, "by_known": 1, "by_new": 0, "random": 0}
    known, path = graph.vectors, "relations/0/operator/{}/translations"
    lhs, rhs = graph.params[path.format("lhs")], graph.params[path.format("rhs")]
    mean = (known[3] + lhs[0] + 3 * (known[4] + lhs[1]) + known[5] + rhs[1]) / 5
    np.testing.assert_allclose(vectors[0], mean * graph.usual_length / np.linalg.norm(mean), rtol=1e-5)
    assert sums[0] == np.median(graph.sums[:KNOWN]) / 4


def test_known_rows_are_looked_at_in_blocks(tmp_path, monkeypatch):
    """A million at once take twice the memory of their partition."""
    graph, seen = Graph(make_config(), [(3, 0, 40), (4, 1, 41), (40, 1, 42)], new=3), Newcomers._seen
    counts, (report, *whole) = [], graph.placed(tmp_path / "whole")

    def noted(self, entity, table, rows):
        counts.append(len(rows))
        return seen(self, entity, table, rows)

    monkeypatch.setattr(Newcomers, "_seen", noted)
    monkeypatch.setattr(newcomers, "_BLOCK_VALUES", 7 * DIMENSION)
    again, *parts = graph.placed(tmp_path / "parts")
    assert max(counts) == 7
    assert sum(counts) == KNOWN
    assert again == report
    for found, expected in zip(parts, whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_new_rows_of_bfloat16_are_copied_in_blocks(tmp_path, monkeypatch):
    """All at once take twice the memory of their partition."""
    counts, widened = [], torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda rows: counts.append(len(rows)) or widened(rows))
    monkeypatch.setattr(newcomers, "_BLOCK_VALUES", 7 * DIMENSION)
    rows = torch.randn(KNOWN, DIMENSION).bfloat16()
    arrivals = newcomers.Arrivals.of(Table(rows, torch.zeros(KNOWN)), 10, tmp_path / "rows")
    assert counts == [7, 7, 7, 7, 2]
    np.testing.assert_array_equal(arrivals.rows_ND, widened(rows[10:]).numpy())


def test_operator_is_inverted_for_standard_relations(tmp_path):
    graph = Graph(make_config(dynamic=False), [(3, 0, 40), (41, 1, 5)], new=2)
    _, vectors, _ = graph.placed(tmp_path)
    shifts = [graph.params[f"relations/{i}/operator/rhs/translation"] for i in range(RELATIONS)]
    wanted = np.stack([graph.vectors[3] - shifts[0], graph.vectors[5] + shifts[1]])
    np.testing.assert_allclose(directions(vectors), directions(wanted), rtol=1e-5)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    ("operator", "comparator", "more"),
    [
        ("none", "dot", {}),
        ("translation", "cos", {}),
        ("diagonal", "dot", {"max_norm": 2.0}),
        ("complex_diagonal", "dot", {}),
        ("complex_diagonal", "cos", {}),
        ("linear", "dot", {}),
        ("affine", "cos", {}),
        ("diagonal", "dot", {"bias": True}),
        ("translation", "squared_l2", {"global_emb": True}),
    ],
)
def test_edges_of_new_entities_score_far_above_chance(tmp_path, operator, comparator, more, dynamic):
    if dynamic:  # the models have no global embeddings
        more = {key: value for key, value in more.items() if key != "global_emb"}
    generator = np.random.default_rng(0)
    new = 12
    edges = [(KNOWN + n, n % 2, other) for n, other in enumerate(generator.choice(KNOWN, new, replace=False))]
    graph = Graph(make_config(operator, comparator, dynamic=dynamic, **more), edges, new=new)
    report, vectors, _ = graph.placed(tmp_path)
    assert report["by_known"] == new
    better = []
    for lhs, rel, rhs in graph.edges.tolist():
        scorer = RelationScorer(graph.config, 0 if dynamic else rel, graph.params)
        row = torch.tensor([rel if dynamic else 0])
        queries = scorer.queries(torch.from_numpy(graph.vectors[[rhs]]), row, predict="lhs")
        table = np.concatenate((graph.vectors[:KNOWN], vectors))
        scores = scorer.score(queries, scorer.candidates(torch.from_numpy(table), predict="lhs"))[0]
        better.append(int((scores > scores[lhs]).sum()))
    assert np.mean(better) < len(table) / 8  # by chance it would be half of them


def test_frozen_types_keep_lengths_above_max_norm(tmp_path):
    frozen = {"n": {"num_partitions": 1, "trainable": False}}
    graph = Graph(make_config(max_norm=0.5, entities=frozen), [(3, 0, 40)], new=1)
    _, vectors, _ = graph.placed(tmp_path)
    np.testing.assert_allclose(np.linalg.norm(vectors[0]), graph.usual_length, rtol=1e-5)


def test_entities_beside_new_ones_start_after_them(tmp_path):
    # 41 only knows 40; 42 and 43 know each other; 44 has no edge but to itself
    graph = Graph(make_config("none"), [(3, 0, 40), (40, 0, 41), (42, 1, 43), (44, 0, 44)], new=5)
    report, vectors, sums = graph.placed(tmp_path)
    assert report == {"new": 5, "by_known": 1, "by_new": 1, "random": 3}
    np.testing.assert_allclose(directions(vectors[:2]), directions(graph.vectors[[3, 3]]), rtol=1e-5)
    np.testing.assert_array_equal(vectors[2:], graph.vectors[KNOWN + 2 :])
    np.testing.assert_array_equal(sums[2:], 0)


def test_number_of_partitions_changes_nothing(tmp_path):
    generator = np.random.default_rng(5)
    edges = np.stack([generator.integers(0, 60, 300), generator.integers(0, 2, 300), generator.integers(0, 60, 300)], 1)
    report, vectors, sums = Graph(make_config(), edges, new=20).placed(tmp_path / "one")
    in_parts = Graph(make_config(partitions=3), edges, new=20).placed(tmp_path / "three")
    assert in_parts[0] == report
    np.testing.assert_allclose(in_parts[1], vectors, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(in_parts[2], sums)


def test_placing_again_gives_the_same_bytes(tmp_path):
    edges = [(n % 50, n % 2, (7 * n + 1) % 50) for n in range(200)]
    graph = Graph(make_config("complex_diagonal", "dot"), edges, new=10)
    files = []
    for attempt in ("first", "second"):
        graph.placed(tmp_path / attempt)
        files.append(hashlib.sha256((tmp_path / attempt / "out" / "embeddings_n_0.v0.h5").read_bytes()).hexdigest())
    assert files[0] == files[1]
    newcomers = Graph(make_config(), [(1, 0, 2)], new=0).newcomers(tmp_path / "nobody")
    assert newcomers.place() == {}
    newcomers.write(tmp_path)
    assert not list(tmp_path.glob("*.h5"))


def test_graph_without_known_entities_starts_at_random(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.KNOWN", 0)
    report, vectors, _ = Graph(make_config(), [(0, 0, 1), (1, 0, 2)], new=3).placed(tmp_path)
    assert report == {"new": 3, "by_known": 0, "by_new": 0, "random": 3}
    assert np.isfinite(vectors).all()
