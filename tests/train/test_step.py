"""Every gradient the engine writes out against autograd, in float64: largest difference over largest value <= 1e-9."""

from __future__ import annotations

import itertools

import pytest
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.model.operators import OPERATORS, Operator
from pbg_tasks.model.scoring import RelationScorer
from pbg_tasks.train.batching import Batch
from pbg_tasks.train.engine_torch import TorchEngine
from pbg_tasks.train.lookup import Single
from pbg_tasks.train.tables import Table
from tests.train.reference import ReferenceStep, State

EDGES, RELATIONS, BOUND = 13, 3, 1e-9
COUNTS = {"a": 7, "b": 9}
COMBINATIONS = list(
    itertools.product(
        ("standard", "dynamic"),
        ("none", "translation", "diagonal", "complex_diagonal", "linear", "affine"),
        ("dot", "cos", "l2", "squared_l2"),
        ("softmax", "ranking", "logistic"),
    )
)
FEATURES = {
    "bias": {"bias": True},
    "max_norm": {"max_norm": 0.8},
    "batch_only": {"num_uniform_negs": 0},
    "uniform_only": {"num_batch_negs": 0},
    "no_lhs_negs": {"disable_lhs_negs": True},
    "no_rhs_negs": {"disable_rhs_negs": True},
    "relation_lr": {"relation_lr": 0.02},
    "one_chunk": {"num_batch_negs": 100, "batch_size": 100},
    "weights": {},
    "relation_weight": {},
    "all_negs": {},
    "one_type": {},
}


class Draws:
    """Gives prepared draws."""

    def __init__(self, draws):
        self.left = list(draws)

    def draw(self, chunks, negatives, entities):
        assert self.left[0].shape == (chunks, negatives)
        assert int(self.left[0].max()) < entities
        return self.left.pop(0)


def make_config(mode, operator, comparator, loss, feature=None):
    relation = {"name": "r", "lhs": "a", "rhs": "a" if feature == "one_type" else "b", "operator": operator}
    if feature == "relation_weight":
        relation["weight"] = 0.3
    if feature == "all_negs":
        relation["all_negs"] = True
    settings = {
        "entities": {name: {"num_partitions": 1} for name in COUNTS},
        "relations": [relation],
        "dimension": 6,
        "comparator": comparator,
        "loss_fn": loss,
        "margin": 0.3,
        "lr": 0.1,
        "batch_size": 20,
        "num_batch_negs": 5,
        "num_uniform_negs": 4,
        "dynamic_relations": mode == "dynamic",
        "global_emb": mode == "standard",
    }
    return ModelConfig.model_validate(settings | FEATURES.get(feature, {}))


def regularized(config, regularizer):
    settings = config.model_dump() | {"regularizer": regularizer, "regularization_coef": 0.01}
    return ModelConfig.model_validate(settings)


class Case:
    """A config with random state, a batch and draws."""

    def __init__(self, config, *, weighted=False, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def random(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.config = config
        self.engine = TorchEngine(config, RELATIONS)
        params = {path: random(*value.shape) for path, value in self.engine.shared.values.items()}
        self.state = State(
            embeddings={name: random(count, 6) for name, count in COUNTS.items()},
            # sums above 0: the first step of Adagrad would blow up rounding where a gradient is 0
            row_sums={name: random(count).square() + 0.1 for name, count in COUNTS.items()},
            params=params,
            param_sums={path: value.square() + 0.1 for path, value in params.items()},
        )
        self.types = {"lhs": config.relations[0].lhs, "rhs": config.relations[0].rhs}
        ends = (torch.randint(COUNTS[kind], (EDGES,), generator=generator) for kind in self.types.values())
        rel = torch.randint(RELATIONS, (EDGES,), generator=generator) if config.dynamic_relations else None
        self.batch = Batch(*map(Single, ends), 0, rel, random(EDGES).abs() if weighted else None)
        self.draws = self._draws(generator)

    def _draws(self, generator):
        config = self.config
        if config.relations[0].all_negs or not config.num_uniform_negs:
            return {}
        chunks = -(-EDGES // min(config.num_batch_negs or config.num_uniform_negs, EDGES))
        disabled = {"lhs": config.disable_lhs_negs, "rhs": config.disable_rhs_negs}
        return {
            side: torch.randint(COUNTS[kind], (chunks, config.num_uniform_negs), generator=generator)
            for side, kind in self.types.items()
            if not disabled[side]
        }

    def step(self, observe=None):
        """Do the step with the engine; return what it showed and the state afterwards."""
        after = self.state.copy()
        self.engine.shared.values.update(after.params)
        self.engine.shared.sums.update(after.param_sums)
        tables = {name: Table(after.embeddings[name], after.row_sums[name]) for name in COUNTS}
        figures = self.engine.step(self.batch, tables, tables, Draws(self.draws.values()), observe)
        return figures, after

    def reference(self):
        state = self.state.copy()
        return ReferenceStep(self.config, state, self.batch, self.draws), state


def assert_equal(ours, theirs):
    assert float((ours - theirs).abs().max()) <= BOUND * max(float(theirs.abs().max()), 1e-3)


def assert_same_step(case):
    figures, ours = case.step()
    reference, theirs = case.reference()
    assert_equal(figures.loss, reference.loss)
    assert_equal(figures.reg, reference.reg)
    for part in ("embeddings", "row_sums", "params", "param_sums"):
        for name, value in getattr(theirs, part).items():
            assert_equal(getattr(ours, part)[name], value)
    moved = any(not torch.equal(ours.embeddings[name], case.state.embeddings[name]) for name in COUNTS)
    assert moved


@pytest.mark.parametrize(("mode", "operator", "comparator", "loss"), COMBINATIONS)
def test_gradients_are_those_of_autograd(mode, operator, comparator, loss):
    assert_same_step(Case(make_config(mode, operator, comparator, loss)))


@pytest.mark.parametrize(("mode", "operator", "comparator", "loss"), COMBINATIONS)
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
def test_an_operator_with_a_forward_function_only_gets_its_gradient_from_autograd(mode, monkeypatch):
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


def test_own_and_padding_are_masked_and_count_for_nothing():
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
