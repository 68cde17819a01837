"""Gradients of the engine compared with autograd, in float64.

The largest difference over the largest value is at most 1e-9.
"""

from __future__ import annotations

import pytest
import torch

from pbg_tasks.model.operators import OPERATORS, Operator
from pbg_tasks.model.scoring import RelationScorer
from tests.rotation import of_today
from tests.training.steps import (
    COMBINATIONS,
    EDGES,
    FEATURES,
    Case,
    assert_equal,
    assert_same_step,
    make_config,
    regularized,
)


@pytest.mark.parametrize(("mode", "operator", "comparator", "loss"), of_today(COMBINATIONS, days=6))
def test_gradients_are_those_of_autograd(mode, operator, comparator, loss):
    assert_same_step(Case(make_config(mode, operator, comparator, loss)))


@pytest.mark.parametrize(("mode", "operator", "comparator", "loss"), of_today(COMBINATIONS, days=6))
@pytest.mark.parametrize("regularizer", ["N3", "L2"])
def test_regularizers_have_the_gradients_of_autograd(mode, operator, comparator, loss, regularizer):
    config = make_config(mode, operator, comparator, loss)
    assert_same_step(Case(regularized(config, regularizer)))


@pytest.mark.parametrize("mode", ["standard", "dynamic"])
@pytest.mark.parametrize("operator", ["none", "translation", "diagonal", "complex_diagonal", "linear", "affine"])
@pytest.mark.parametrize("feature", [None, "one_type", "bias", "all_negs"])
def test_n3_of_edges_has_the_gradients_of_autograd(mode, operator, feature):
    assert_same_step(Case(regularized(make_config(mode, operator, "cos", "softmax", feature), "N3_edge")))


@pytest.mark.parametrize("mode", ["standard", "dynamic"])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(
    ("operator", "comparator", "loss"),
    [
        ("complex_diagonal", "dot", "softmax"),
        ("translation", "cos", "ranking"),
        ("diagonal", "l2", "logistic"),
        ("none", "squared_l2", "softmax"),
    ],
)
def test_features_keep_the_gradients_of_autograd(mode, feature, operator, comparator, loss):
    config = make_config(mode, operator, comparator, loss, feature)
    assert_same_step(Case(config, weighted=feature == "weights", seed=1))


@pytest.mark.parametrize("operator", ["linear", "affine"])
@pytest.mark.parametrize("feature", ["bias", "weights", "one_type", "all_negs"])
@pytest.mark.parametrize("mode", ["standard", "dynamic"])
def test_features_with_matrices(mode, feature, operator):
    assert_same_step(Case(make_config(mode, operator, "cos", "logistic", feature), weighted=feature == "weights"))


@pytest.mark.parametrize("mode", ["standard", "dynamic"])
def test_forward_only_operator_gets_gradients_of_autograd(mode, monkeypatch):
    class ForwardOnly(Operator):
        def initial(self, dimension):
            return {"diagonal": torch.ones(dimension)}

        def forward(self, x_ND, params):
            return params["diagonal"] * x_ND

    monkeypatch.setitem(OPERATORS, "diagonal", ForwardOnly())
    assert_same_step(Case(make_config(mode, "diagonal", "cos", "softmax")))


@pytest.mark.parametrize(("mode", "operator"), sorted({combination[:2] for combination in COMBINATIONS}))
@pytest.mark.parametrize("comparator", ["dot", "cos", "l2", "squared_l2"])
@pytest.mark.parametrize("feature", [None, "bias"])
def test_the_scorer_gives_the_scores_of_training(mode, operator, comparator, feature):
    case = Case(make_config(mode, operator, comparator, "softmax", feature))
    trained, negatives = {}, {}

    def observe(side, positive_B, negative_BK):
        trained[side], negatives[side] = positive_B.clone(), negative_BK.clone()

    case.step(observe)
    reference, _ = case.reference()
    scorer = RelationScorer(case.config, 0, {path: value.numpy() for path, value in case.state.params.items()})
    rel = case.batch.rel if case.config.dynamic_relations else torch.zeros(EDGES, dtype=torch.int64)
    raw = {side: case.state.embeddings[case.types[side]][getattr(case.batch, side).rows_M] for side in ("lhs", "rhs")}
    for side, other in (("lhs", "rhs"), ("rhs", "lhs")):
        queries = scorer.queries(raw[other], rel, predict=side)
        assert_equal(trained[side], torch.tensor(reference.scores[side], dtype=torch.float64))
        assert_equal(scorer.score_pairs(queries, scorer.candidates(raw[side], predict=side)), trained[side])
        everyone = scorer.candidates(case.state.embeddings[case.types[side]], predict=side)
        drawn = scorer.score(queries, everyone)[:5, case.draws[side][0]]
        assert_equal(drawn, negatives[side][:5, 5:])


def test_own_and_padding_columns_are_masked():
    case = Case(make_config("dynamic", "none", "dot", "softmax"))
    seen = {}
    case.step(lambda side, _, negative_BK: seen.update({side: negative_BK.clone()}))
    masked = seen["lhs"] == -1e9
    assert masked.shape == (EDGES, 5 + 4)
    # 13 edges in chunks of 5: each edge's own, and for the 3 of the last chunk the 2 columns of padding
    expected = torch.zeros_like(masked)
    expected[torch.arange(EDGES), torch.arange(EDGES) % 5] = True
    expected[10:, 3:5] = True
    assert torch.equal(masked, expected)
