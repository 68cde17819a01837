"""Featurized and frozen entities, dynamic relations of several types, HOGWILD."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.formats.edges import EdgeList, Features
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.on_torch import TorchEngine
from pbg_tasks.training.engine.pace import Pace

COUNTS = {"a": 30, "b": 20}


def make_config(relations=None, **changes):
    settings = {
        "entities": {name: {"num_partitions": 1} for name in COUNTS},
        "relations": relations or [{"name": "r", "lhs": "a", "rhs": "b", "operator": "diagonal"}],
        "dimension": 6,
        "comparator": "dot",
        "loss_fn": "softmax",
        "batch_size": 50,
        "num_batch_negs": 10,
        "num_uniform_negs": 5,
        "lr": 0.1,
        "dynamic_relations": False,
        "global_emb": True,
    }
    return ModelConfig.model_validate(settings | changes)


def random_tables():
    return {name: Table.random(count, 6, 0.5, torch.Generator().manual_seed(count)) for name, count in COUNTS.items()}


def random_edges(count=200, relations=1, seed=0):
    rng = np.random.default_rng(seed)
    rel = np.sort(rng.integers(relations, size=count))
    return EdgeList(rng.integers(20, size=count), rng.integers(20, size=count), rel)


def train(config, edges, tables, *, workers=1, relation_count=1, epochs=1):
    engine = TorchEngine(config, relation_count, workers=workers)
    generator = torch.Generator().manual_seed(7)
    for _ in range(epochs):
        stats, _ = engine.train_bucket(edges, tables, tables, generator=generator)
    return engine, stats


def featurized(config, *names):
    entities = {name: schema.model_dump() | {"featurized": name in names} for name, schema in config.entities.items()}
    return ModelConfig.model_validate(config.model_dump() | {"entities": entities})


@pytest.mark.parametrize("max_norm", [None, 0.6])
def test_entity_with_one_feature_equals_that_feature(max_norm):
    config, edges = make_config(num_uniform_negs=0, max_norm=max_norm), random_edges()
    plain, bags = random_tables(), random_tables()
    train(config, edges, plain)
    ones = np.full(len(edges), -1)
    as_bags = EdgeList(ones, edges.rhs, edges.rel, lhs_features=Features.of([[row] for row in edges.lhs]))
    train(featurized(config, "a"), as_bags, bags)
    for name in COUNTS:
        assert torch.allclose(plain[name].embeddings, bags[name].embeddings, rtol=1e-5, atol=1e-7)
        assert torch.allclose(plain[name].row_sums, bags[name].row_sums, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("dynamic", [False, True])
def test_features_get_the_gradient_of_autograd(dynamic):
    """Train one batch of one chunk with batch negatives only.

    Adagrad's first sums are then the means of the squared gradients.
    """
    config = make_config(
        num_uniform_negs=0, num_batch_negs=50, dynamic_relations=dynamic, global_emb=False, batch_size=50
    )
    config = featurized(config, "a", "b")
    rng = np.random.default_rng(1)
    lists = {
        side: [rng.integers(count, size=rng.integers(1, 5)).tolist() for _ in range(40)]
        for side, count in (("lhs", 30), ("rhs", 20))
    }
    ones = np.full(40, -1)
    edges = EdgeList(
        ones,
        ones,
        np.zeros(40, np.int64),
        lhs_features=Features.of(lists["lhs"]),
        rhs_features=Features.of(lists["rhs"]),
    )
    tables = random_tables()
    leaves = {name: table.embeddings.clone().requires_grad_() for name, table in tables.items()}
    lhs = torch.stack([leaves["a"][rows].mean(0) for rows in lists["lhs"]])
    rhs = torch.stack([leaves["b"][rows].mean(0) for rows in lists["rhs"]])
    scores = lhs @ rhs.T  # the diagonal operators start as ones
    loss = -2 * scores.diagonal().sum() + torch.logsumexp(scores, 0).sum() + torch.logsumexp(scores, 1).sum()
    loss.backward()
    _, stats = train(config, edges, tables)
    assert stats.loss == pytest.approx(loss.item() / 40, rel=1e-5)
    for name, table in tables.items():
        assert torch.allclose(table.row_sums, leaves[name].grad.square().mean(1), rtol=1e-4, atol=1e-8)


def test_frozen_type_stays_while_the_other_learns():
    entities = {"a": {"num_partitions": 1, "trainable": False}, "b": {"num_partitions": 1}}
    config, tables, before = make_config(entities=entities, max_norm=0.3), random_tables(), random_tables()
    engine, _ = train(config, random_edges(), tables)
    assert torch.equal(tables["a"].embeddings, before["a"].embeddings)
    assert not tables["a"].row_sums.any()
    assert not torch.equal(tables["b"].embeddings, before["b"].embeddings)
    params, _ = engine.parameters()
    assert not params["entities/a/global_embedding"].any()
    assert params["entities/b/global_embedding"].any()


def test_listed_relations_of_one_kind_equal_unlisted():
    kind = {"lhs": "a", "rhs": "b", "operator": "complex_diagonal"}
    listed = make_config([kind | {"name": f"r{n}"} for n in range(3)], dynamic_relations=True, global_emb=False)
    unlisted = make_config([kind | {"name": "all"}], dynamic_relations=True, global_emb=False)
    edges, results = random_edges(relations=3), []
    for config in (listed, unlisted):
        tables = random_tables()
        engine, _ = train(config, edges, tables, relation_count=3)
        results.append((tables, engine.parameters()[0]))
    (one, params), (other, others) = results
    assert all(torch.equal(one[name].embeddings, other[name].embeddings) for name in COUNTS)
    assert params.keys() == others.keys()
    assert all(np.array_equal(params[path], others[path]) for path in params)


def test_dynamic_relations_between_several_types_learn_both_directions():
    """PBG #267: PBG takes one pair of types only."""
    relations = [
        {"name": "likes", "lhs": "a", "rhs": "b", "operator": "diagonal"},
        {"name": "liked_by", "lhs": "b", "rhs": "a", "operator": "diagonal"},
        {"name": "knows", "lhs": "a", "rhs": "b", "operator": "diagonal"},
    ]
    config = make_config(relations, dynamic_relations=True, global_emb=False)
    a, b = np.arange(20), np.arange(20)[::-1].copy()
    edges = EdgeList(np.concatenate((a, b, a)), np.concatenate((b, a, np.roll(b, 1))), np.repeat([0, 1, 2], 20))
    tables = random_tables()
    engine, _ = train(config, edges, tables, epochs=80)
    params, _ = engine.parameters()
    assert {path: value.shape for path, value in params.items()} == {
        "relations/0/operator/lhs/diagonals": (2, 6),
        "relations/0/operator/rhs/diagonals": (2, 6),
        "relations/1/operator/lhs/diagonals": (1, 6),
        "relations/1/operator/rhs/diagonals": (1, 6),
    }
    for family, row, pair, (lhs, rhs) in (
        (0, 0, "ab", (a, b)),
        (1, 0, "ba", (b, a)),
        (0, 1, "ab", (a, np.roll(b, 1))),
    ):
        scorer = RelationScorer(config, family, params)
        known = tables[pair[0]].embeddings[torch.from_numpy(lhs)]
        queries = scorer.queries(known, torch.full((20,), row), predict="rhs")
        scores = scorer.score(queries, scorer.candidates(tables[pair[1]].embeddings, predict="rhs"))
        true = scores.gather(1, torch.from_numpy(rhs)[:, None])
        assert (1 / (scores >= true).sum(1)).mean() > 0.5  # by chance .18 at most


def test_workers_train_every_edge_once_and_learn():
    edges = random_edges(2000, seed=3)
    losses = []
    for workers in (1, 4):
        _, stats = train(make_config(), edges, random_tables(), workers=workers, epochs=5)
        assert stats.count == 2000
        losses.append(stats.loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


def test_evaluation_changes_nothing():
    config = make_config(max_norm=0.3, eval_num_batch_negs=20, eval_num_uniform_negs=30)
    tables, before = random_tables(), random_tables()
    engine = TorchEngine(config, 1)
    stats = engine.evaluate(random_edges(), tables, tables, generator=torch.Generator().manual_seed(0))
    assert stats.count == 200
    assert 1 < stats.pos_rank < 50
    assert all(torch.equal(tables[name].embeddings, before[name].embeddings) for name in COUNTS)


def test_learning_rate_follows_the_finished_share():
    def moved(rate):
        tables = random_tables()
        engine = TorchEngine(make_config(batch_size=50), 1)
        generator = torch.Generator().manual_seed(1)
        engine.train_bucket(random_edges(), tables, tables, Pace(rate), generator=generator)
        return float((tables["a"].embeddings - random_tables()["a"].embeddings).abs().sum())

    asked = []
    assert moved(lambda share: asked.append(share) or 0.0) == 0
    assert asked == [0.0, 0.25, 0.5, 0.75]
    assert moved(lambda _: 1.0) == moved(None) > moved(lambda _: 0.5)
