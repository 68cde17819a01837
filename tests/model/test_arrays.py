"""Scores without torch, beside those of training."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from pbg_tasks.config.comparators import PRODUCTS
from pbg_tasks.model.arrays import INITIAL, ProductLikeness, ProductScorer, likeness, scorer
from pbg_tasks.model.on_tensors import TensorLikeness, TensorScorer
from pbg_tasks.model.operators import OPERATORS
from pbg_tasks.model.stored_parameters import initial_parameters
from tests.model.configs import one_type

ROWS, DIMENSION, RELATIONS = 40, 6, 3


def model(operator="diagonal", comparator="dot", *, dynamic=True, **keys):
    config = {"dimension": DIMENSION, "dynamic_relations": dynamic, "comparator": comparator}
    return one_type({"operator": operator}, **config | keys)


def drawn(config, seed=0):
    """Return random parameters, embeddings and relations."""
    rng = np.random.default_rng(seed)
    start = initial_parameters(config, RELATIONS)
    params = {path: value + rng.normal(size=value.shape).astype(np.float32) for path, value in start.items()}
    rows = rng.normal(size=(2, ROWS, DIMENSION)).astype(np.float32)
    rows[:, 3] = 0
    return params, *rows, rng.integers(RELATIONS, size=ROWS)


@pytest.mark.parametrize("predict", ["lhs", "rhs"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("max_norm", [None, 2.0])
@pytest.mark.parametrize("comparator", PRODUCTS)
@pytest.mark.parametrize("operator", INITIAL)
def test_scores_are_those_of_torch(operator, comparator, max_norm, dynamic, predict):
    config = model(operator, comparator, dynamic=dynamic, max_norm=max_norm)
    params, known, raw, rel = drawn(config)
    ours, theirs = scorer(config, 0, params), TensorScorer(config, 0, params)
    assert isinstance(ours, ProductScorer)
    query, candidate = ours.queries(known, rel, predict=predict), ours.candidates(raw, predict=predict)
    np.testing.assert_allclose(query, theirs.queries(known, rel, predict=predict), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(candidate, theirs.candidates(raw, predict=predict), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.score(query, candidate), theirs.score(query, candidate), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        ours.score_pairs(query, candidate), theirs.score_pairs(query, candidate), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("keys", [{"comparator": "cos"}, {"comparator": "dot", "bias": True}, {"dynamic": False}])
def test_similarities_are_those_of_torch(keys):
    config = model(**keys)
    params, _, raw, _ = drawn(config)
    ours, theirs = likeness(config, params, "e"), TensorLikeness(config, params, "e")
    assert isinstance(ours, ProductLikeness)
    assert ours.is_product
    candidate = ours.candidates(raw)
    np.testing.assert_allclose(ours.vectors(raw), theirs.vectors(raw))
    np.testing.assert_allclose(candidate, theirs.candidates(raw), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.score(candidate, candidate), theirs.score(candidate, candidate), atol=1e-5)


@pytest.mark.parametrize("keys", [{"comparator": "l2"}, {"comparator": "squared_l2"}, {"bias": True}])
def test_other_scores_are_left_to_torch(keys):
    config = model(**keys)
    assert isinstance(scorer(config, 0, drawn(config)[0]), TensorScorer)


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_begin_as_the_identity_of_torch(operator):
    x = torch.randn(3, 4)
    assert torch.equal(OPERATORS[operator].forward(x, OPERATORS[operator].initial(4)), x)
    assert set(OPERATORS) == set(INITIAL)


def test_evaluation_of_products_loads_no_torch():
    modules = "pbg_tasks.tasks.nightly.evaluate, pbg_tasks.tasks.model_source, pbg_tasks.model.stored_parameters"
    source = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", source], check=True)
