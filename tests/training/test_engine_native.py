"""The native engine compared with autograd and the torch engine.

Autograd computes in float64; every instruction set of this CPU is used.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pbg_tasks.errors import ConfigError, FormatError, ResourceError
from pbg_tasks.formats.edges import EdgeList
from pbg_tasks.native.coverage import BFLOAT16
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine import native as engine_native
from pbg_tasks.training.engine.choice import engine_name, make_engine
from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.engine.on_torch import TorchEngine
from tests import pbg_steps
from tests.model.configs import one_type
from tests.rotation import of_today
from tests.training.native_steps import BOUND, INSTRUCTIONS, assert_same_as, instructions, native
from tests.training.steps import COMBINATIONS, COUNTS, FEATURES, Case, make_config, regularized

STEPS = Path(__file__).parents[2].parent / "shared/data/pbg-steps/steps.npz"

pytestmark = native


def assert_same(config, **how):
    """Compare with the reference on every instruction set."""
    case = Case(config, make_engine=NativeEngine, **how)
    assert_same_as(case, case.reference())


@pytest.mark.parametrize(("mode", "operator", "comparator", "loss"), of_today(COMBINATIONS, days=6))
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_are_those_of_autograd(mode, operator, comparator, loss, weighted):
    assert_same(make_config(mode, operator, comparator, loss), weighted=weighted)


@pytest.mark.parametrize(("mode", "operator", "comparator", "loss"), of_today(COMBINATIONS, days=6))
@pytest.mark.parametrize("regularizer", ["N3", "N3_edge", "L2"])
def test_regularizers_have_the_gradients_of_autograd(mode, operator, comparator, loss, regularizer):
    assert_same(regularized(make_config(mode, operator, comparator, loss), regularizer))


@pytest.mark.parametrize("mode", ["standard", "dynamic"])
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize(
    ("operator", "comparator", "loss", "regularizer"),
    [
        ("none", "squared_l2", "softmax", None),
        ("none", "cos", "ranking", "N3"),
        ("complex_diagonal", "dot", "softmax", "N3"),
        ("complex_diagonal", "cos", "softmax", "N3"),
        ("affine", "l2", "logistic", "L2"),
    ],
)
def test_features_keep_the_gradients_of_autograd(mode, feature, operator, comparator, loss, regularizer):
    config = make_config(mode, operator, comparator, loss, feature)
    if regularizer:
        config = regularized(config, regularizer)
    assert_same(config, weighted=feature == "weights", seed=1)


@pytest.mark.rotated(3)
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(COMBINATIONS),
    st.integers(1, 100),
    st.integers(1, 25),
    st.integers(0, 12),
    st.integers(1, 20),
    st.integers(0, 1000),
    st.sampled_from([None, "N3", "N3_edge", "L2"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_dimension_and_chunk_size_is_right(
    combination, dimension, edges, batch_negs, uniform, seed, regularizer, bias, weighted, global_emb
):
    mode, operator, comparator, loss = combination
    dimension += operator == "complex_diagonal" and dimension % 2
    # The direction from one point to another is known less well the nearer they are, and in a plane some of many are
    # near.
    assume(comparator != "l2" or dimension - bias > 6)
    # An error is a share of the largest number, and of one or two numbers all may be small.
    assume(dimension - bias > 2)
    sizes = {"num_batch_negs": batch_negs, "num_uniform_negs": uniform, "batch_size": 100 * max(batch_negs, 1)}
    # Of ranking, what many edges share gets a whole gradient from each negative, and most of them cancel: what is left
    # is not known to five digits.
    bias &= loss != "ranking"
    global_emb &= mode == "standard" and loss != "ranking"
    keys = sizes | {"dimension": dimension, "bias": bias, "global_emb": global_emb}
    config = make_config(mode, operator, comparator, loss, **keys)
    if regularizer:
        config = regularized(config, regularizer)
    case = Case(config, make_engine=NativeEngine, edges=edges, seed=seed, spread=2 * dimension**-0.5, weighted=weighted)
    expected = case.reference()
    assume(expected[0].loss > 0.05 * edges)  # near 0 it is a difference of scores, which are known to seven digits
    assert_same_as(case, expected)


@pytest.mark.parametrize("dimension", [2, 4, 6])
def test_distances_in_few_dimensions_are_right(dimension):
    config = make_config("standard", "translation", "l2", "softmax", global_emb=False, dimension=dimension)
    for seed in range(4):
        assert_same(config, edges=5, seed=seed, spread=2 * dimension**-0.5)


@pytest.mark.parametrize("name", INSTRUCTIONS)
@pytest.mark.skipif(not STEPS.exists(), reason="the recorded steps of PBG are not here")
def test_steps_equal_those_of_pbg(name):
    with instructions(name):
        assert pbg_steps.main(STEPS, NativeEngine) == 0


def random_graph(config, *, edges=3000):
    rng = np.random.default_rng(0)
    lhs, rhs = rng.integers(80, size=(2, edges))
    kinds = 4 if config.relations_from_data else len(config.relations)
    return EdgeList(lhs, rhs, rng.integers(kinds, size=edges), rng.random(edges, dtype=np.float32))


def trained(make, config, edges, *, workers=1, epochs=1, dtype=torch.float32, seed=3):
    engine = make(config, 4, workers=workers)
    for kept in (engine.shared.values, engine.shared.sums):
        kept.update({path: value.to(dtype) for path, value in kept.items()})
    start = Table.random(80, config.dimension, 0.3, torch.Generator().manual_seed(1))
    table = Table(start.embeddings.to(dtype), start.row_sums.to(dtype))
    generator = torch.Generator().manual_seed(seed)  # with 3 no margin is so near 0 that rounding decides its sign
    for _ in range(epochs):
        stats, _ = engine.train_bucket(edges, {"e": table}, {"e": table}, generator=generator)
    return engine, table, stats


def graph_config(**changes):
    keys = {
        "dynamic_relations": True,
        "dimension": 24,
        "comparator": "dot",
        "loss_fn": "softmax",
        "batch_size": 100,
        "num_batch_negs": 20,
        "num_uniform_negs": 30,
        "regularization_coef": 1e-3,
        "lr": 0.1,
    }
    return one_type({"operator": "complex_diagonal"}, **keys | changes)


STANDARD = {
    "dynamic_relations": False,
    "global_emb": True,
    "relations": [
        {"name": "affine", "lhs": "e", "rhs": "e", "operator": "affine"},
        {"name": "heavy", "lhs": "e", "rhs": "e", "operator": "diagonal", "weight": 2.0, "all_negs": True},
        {"name": "same", "lhs": "e", "rhs": "e", "operator": "none"},
    ],
    "comparator": "cos",
    "loss_fn": "ranking",
    "max_norm": 1.5,
}


DISTANCES = STANDARD | {"comparator": "squared_l2", "loss_fn": "logistic", "bias": True}


@pytest.mark.parametrize("changes", [{}, STANDARD, DISTANCES])
def test_thirty_batches_follow_the_torch_engine(changes):
    """Compare in float64, so that only the native engine's rounding is left."""
    config, edges = graph_config(**changes), random_graph(graph_config(**changes))
    ours, table, stats = trained(NativeEngine, config, edges)
    exact = replace(edges, weight=edges.weight.astype(np.float64))
    theirs, expected, figures = trained(TorchEngine, config, exact, dtype=torch.float64)
    for mine, other in ((table.embeddings, expected.embeddings), (table.row_sums, expected.row_sums)):
        assert float((mine - other).abs().max()) <= BOUND * float(other.abs().max())
    for path, value in theirs.shared.values.items():
        assert float((ours.shared.values[path] - value).abs().max()) <= BOUND * float(value.abs().max())
    assert stats.count == figures.count
    assert stats.loss == pytest.approx(figures.loss, rel=1e-5)
    assert stats.reg == pytest.approx(figures.reg, rel=1e-5)
    # Of 50 negatives of an edge about 50 / 80 are its own entity again: rounding decides such ties.
    assert stats.violators_lhs == pytest.approx(figures.violators_lhs, abs=50 / 80)


@pytest.mark.parametrize("name", BFLOAT16)
@pytest.mark.parametrize("dimension", [6, 16, 50, 96])
@pytest.mark.parametrize(("comparator", "loss"), [("dot", "softmax"), ("dot", "logistic"), ("cos", "softmax")])
def test_bfloat16_roughly_follows_float32(name, dimension, comparator, loss):
    """Numbers have 8 bits: each is off by up to 1/256.

    Adagrad's first step has the length of the learning rate however small the gradient is, so that rounding may turn
    one around; hence the median of several seeds.
    """
    changes = {"dimension": dimension, "comparator": comparator, "loss_fn": loss}
    edges = random_graph(graph_config(**changes), edges=700)
    start = Table.random(80, dimension, 0.3, torch.Generator().manual_seed(1)).embeddings
    if name not in INSTRUCTIONS:
        pytest.skip("this CPU has no such instructions")
    shares = []
    for seed in range(5):
        _, exact, _ = trained(TorchEngine, graph_config(**changes), edges, seed=seed)
        with instructions(name):
            _, rounded, _ = trained(NativeEngine, graph_config(precision="bf16", **changes), edges, seed=seed)
        moved, apart = (exact.embeddings - start).norm(), (rounded.embeddings - exact.embeddings).norm()
        shares.append(float(apart / moved))
    assert 1e-5 < statistics.median(shares) < 1e-2


def test_the_same_seed_gives_the_same_bits():
    config = graph_config()
    edges = random_graph(config)
    first, second = (trained(NativeEngine, config, edges, epochs=2)[1] for _ in range(2))
    assert torch.equal(first.embeddings, second.embeddings)


def test_frozen_entities_stay_and_operators_learn():
    config = graph_config(entities={"e": {"num_partitions": 1, "trainable": False}}, max_norm=0.1)
    edges = random_graph(config)
    engine, table, _ = trained(NativeEngine, config, edges)
    start = Table.random(80, config.dimension, 0.3, torch.Generator().manual_seed(1))
    assert torch.equal(table.embeddings, start.embeddings)
    assert not table.row_sums.any()
    expected = trained(TorchEngine, config, edges)[0]
    for path, value in expected.shared.values.items():
        assert float((engine.shared.values[path] - value).abs().max()) <= BOUND * float(value.abs().max())


def test_workers_train_every_edge_and_learn_equally():
    config = graph_config()
    ids = np.tile(np.arange(80), 40)
    edges = EdgeList(ids, (ids + 1) % 80, np.zeros(len(ids), np.int64))
    _, _, alone = trained(NativeEngine, config, edges, epochs=5)
    _, table, together = trained(NativeEngine, config, edges, epochs=5, workers=4)
    assert together.count == len(edges)
    assert torch.isfinite(table.embeddings).all()
    assert together.loss == pytest.approx(alone.loss, rel=0.1)


@pytest.mark.parametrize("loss", ["softmax", "ranking", "logistic"])
def test_negative_that_is_nan_shows_in_loss(loss):
    case = Case(make_config("dynamic", "none", "dot", loss), make_engine=NativeEngine)
    entity, drawn = case.types["rhs"], int(case.draws["rhs"][0, 0])
    case.state.embeddings[entity][drawn] = float("nan")
    case.batch.rhs.rows_M[case.batch.rhs.rows_M == drawn] = (drawn + 1) % COUNTS[entity]
    for name in INSTRUCTIONS:
        with instructions(name):
            assert torch.isnan(case.step(dtype=torch.float32)[0].loss)


def test_edges_out_of_range_are_refused_early():
    config = graph_config()
    edges = EdgeList(np.array([0, 80]), np.array([1, 2]), np.array([0, 0]))
    with pytest.raises(FormatError, match="column lhs holds 80"):
        trained(NativeEngine, config, edges)


def test_native_engine_is_chosen_where_it_can_compute():
    assert engine_name("auto", graph_config()) == ("native", "")
    assert make_engine("auto", graph_config(), 4).name == "native"
    assert engine_name("torch", graph_config()) == ("torch", "")


def test_configs_left_to_torch_are_named(capsys):
    config = graph_config(mask_known_negatives=True)
    assert make_engine("auto", config, 4).name == "torch"
    assert capsys.readouterr().err.count("mask_known_negatives: true") == 1
    with pytest.raises(ConfigError, match="left to engine torch: mask_known_negatives: true; set engine: auto"):
        make_engine("native", config, 4)


def test_engine_without_instructions_is_lack_of_machine(monkeypatch):
    """A search keeps no failure for it, as another machine may serve."""
    monkeypatch.setattr("pbg_tasks.native.coverage.instruction_set", lambda: "avx2")
    with pytest.raises(ResourceError, match="precision: bf16"):
        make_engine("native", graph_config(precision="bf16", comparator="dot"), 4)
    with pytest.raises(ConfigError, match="precision: bf16"):
        make_engine("native", graph_config(precision="bf16", comparator="dot", mask_known_negatives=True), 4)


def test_torch_trains_without_the_library(monkeypatch):
    monkeypatch.setattr(engine_native, "library", lambda: None)
    monkeypatch.setattr("pbg_tasks.native.library", lambda: None)
    assert engine_name("auto", graph_config()) == ("torch", "this installation has no native library")
    with pytest.raises(ResourceError, match="no C\\+\\+ compiler that could build it"):
        make_engine("native", graph_config(), 4)
