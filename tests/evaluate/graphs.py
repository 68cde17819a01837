"""Small graphs with models, and the evaluation of each by brute force."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from pbg_tasks.config import ConfigSchema, Evaluation
from pbg_tasks.evaluate.evaluation import EdgeRanking
from pbg_tasks.evaluate.local_model import LocalModel
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.formats.embeddings import IterationInfo, embeddings_file_name, write_embeddings
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.training.data.parameters import SharedParameters

INFO = IterationInfo(1, 0, 1, 0, "edges", 1, 0)

NAMES = ["likes", "knows"]


def make_config(*, partitions=1, dynamic=False, operator="none", comparator="dot", dimension=6, **keys):
    relations = [
        {"name": "likes", "lhs": "user", "rhs": "item", "operator": operator},
        {"name": "knows", "lhs": "user", "rhs": "user", "operator": operator},
    ]
    if dynamic:
        relations = [{"name": "all", "lhs": "user", "rhs": "user", "operator": operator}]
    return ConfigSchema(
        entities={"user": {"num_partitions": partitions}, "item": {"num_partitions": 1}},
        relations=relations,
        dimension=dimension,
        dynamic_relations=dynamic,
        global_emb=not dynamic,
        comparator=comparator,
        entity_path="e",
        edge_paths=("t",),
        checkpoint_path="c",
        **keys,
    )


LOCAL = ("relations", "loops", "hidden")


class Graph:
    """A random graph and model; entities are numbered over all partitions."""

    def __init__(self, config, seed=0, users=23, items=11, edges=60):
        rng = np.random.default_rng(seed)
        self.config = config
        self.users = config.entities["user"].num_partitions
        self.counts = {"user": self._cut(users), "item": [items]}
        self.bases = {name: np.concatenate(([0], np.cumsum(sizes))) for name, sizes in self.counts.items()}
        self.embeddings = {
            name: rng.normal(size=(n, config.dimension)).astype(np.float32)
            for name, n in (("user", users), ("item", items))
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
        """Place edges as `bucket` does; an item may be in any bucket."""
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

    def oracle(self, held_out, eligible=None, selfless=()):
        """Return raw and filtered ranks and the candidates of each.

        All edges come first on the left, then on the right.
        Of the relations ``selfless`` the known end is no candidate of the filtered ranks.
        """
        true = {tuple(t) for t in self.triples.tolist()}
        found = []
        for predict in ("lhs", "rhs"):
            for lhs, rel, rhs in held_out.tolist():
                index = 0 if self.config.dynamic_relations else rel
                known, answer = (rhs, lhs) if predict == "lhs" else (lhs, rhs)
                entity = self.types[rel][0 if predict == "lhs" else 1]
                own = self.score(index, rel, predict, known, answer)
                others = set(range(len(self.embeddings[entity]))) - {answer}
                others &= others if eligible is None else eligible[entity]
                wrong = {o for o in others if ((o, rel, rhs) if predict == "lhs" else (lhs, rel, o)) not in true}
                if rel in selfless:
                    wrong -= {known}
                better = {other for other in others if self.score(index, rel, predict, known, other) >= own}
                found.append((1 + len(better), 1 + len(better & wrong), 1 + len(others), 1 + len(wrong)))
        return np.array(found).T

    def evaluate(self, tmp_path, held_out, **options):
        ranking = self.ranking(tmp_path, held_out, **options)
        return ranking.report(), ranking.candidates

    def ranking(self, tmp_path, held_out, threads=1, **options):
        ranking = EdgeRanking(
            self.local(tmp_path, **{name: options.pop(name) for name in LOCAL if name in options}),
            self.buckets(held_out),
            lambda: iter(self.buckets(self.triples).items()),
            **({"evaluation": Evaluation()} | options),
        )
        ranking.rank(threads)
        return ranking

    def local(self, tmp_path, relations=NAMES, **options):
        """Write the tables; return the model that is ranked."""
        return LocalModel(self.config, self.params, self.files(tmp_path), self.counts, relations, **options)


def evenly(rel):
    """Return the places of edges in a sample's order."""
    seen, keys = Counter(), []
    for each in rel:
        keys.append((seen[each] + 0.5) / np.count_nonzero(rel == each))
        seen[each] += 1
    return np.argsort(keys, kind="stable")


def popularity_oracle(graph, train, held_out, eligible=None):
    """Return filtered ranks by occurrences on a side in training."""
    counts = {side: Counter((rel, edge[side]) for edge in train.tolist() for rel in [edge[1]]) for side in (0, 2)}
    known = {tuple(edge) for edge in graph.triples.tolist()}
    ranks = []
    for side in (0, 2):
        for edge in held_out.tolist():
            entity = graph.types[edge[1]][0 if side == 0 else 1]
            rank = 1
            for other in range(len(graph.embeddings[entity])):
                changed = [*edge]
                changed[side] = other
                skipped = other == edge[side] or (eligible is not None and other not in eligible[entity])
                if not skipped and tuple(changed) not in known:
                    rank += counts[side][edge[1], other] >= counts[side][edge[1], edge[side]]
            ranks.append(rank)
    return np.array(ranks)


def assert_popularity_is_that_of_brute_force(tmp_path, graph, train, held_out, limit):
    report, sample = graph.evaluate(
        tmp_path,
        held_out,
        train=lambda: iter(graph.buckets(train).items()),
        evaluation=Evaluation(max_candidates=limit),
    )
    eligible = sample and {name: set(sample.numbers(name, graph.bases[name]).tolist()) for name in graph.bases}
    expected = popularity_oracle(graph, train, held_out, eligible)
    assert report.popularity["count"] == len(expected) == 2 * len(held_out)
    assert report.popularity["mr"] == pytest.approx(expected.mean(), abs=1e-5)
    assert report.popularity["mrr"] == pytest.approx((1 / expected).mean(), abs=1e-6)
