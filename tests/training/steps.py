"""One training step from random numbers, and its expected result.

There are cases for every engine.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.batching import Batch
from pbg_tasks.training.engine.lookup import Single
from pbg_tasks.training.engine.on_torch import TorchEngine
from tests.training.reference import ReferenceStep, State

RELATIONS, EDGES = 3, 13
KEY = 6_364_136_223_846_793_005
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
    "side_weights": {},
    "all_negs": {},
    "one_type": {},
    "self_negatives": {"self_negatives": True},
    "self_negatives_on_one_side": {"self_negatives": True, "disable_lhs_negs": True},
    "self_negatives_with_uniform_only": {"self_negatives": True, "num_batch_negs": 0},
}
ONE_TYPE = {name for name in FEATURES if name.startswith(("one_type", "self_negatives"))}


class Draws:
    """Returns prepared draws."""

    generator = torch.Generator()

    def __init__(self, draws):
        self.left = list(draws)

    def draw(self, chunks, negatives, entities, *_):
        assert self.left[0].shape == (chunks, negatives)
        assert int(self.left[0].max()) < entities
        return self.left.pop(0)

    def key(self):
        return KEY


def make_config(mode, operator, comparator, loss, feature=None, **changes):
    relation = {"name": "r", "lhs": "a", "rhs": "a" if feature in ONE_TYPE else "b", "operator": operator}
    if feature == "relation_weight":
        relation["weight"] = 0.3
    if feature == "side_weights":
        relation |= {"weight": 0.3, "lhs_weight": 2.0, "rhs_weight": 0.5}
    if feature == "all_negs":
        relation["all_negs"] = True
    if mode == "reciprocal":
        relation["reciprocal"] = True
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
        "global_emb": mode != "dynamic",
    }
    return ModelConfig.model_validate(settings | FEATURES.get(feature, {}) | changes)


def regularized(config, regularizer):
    settings = config.model_dump() | {"regularizer": regularizer, "regularization_coef": 0.01}
    return ModelConfig.model_validate(settings)


class Case:
    """A config with random state, a batch and draws.

    ``spread`` is the standard deviation of embeddings and parameters: with 1 and many dimensions scores are so large
    that their rounding alone moves gradients. ``loops`` are the relations that have loops.
    """

    def __init__(
        self,
        config,
        *,
        weighted=False,
        seed=0,
        make_engine=TorchEngine,
        edges=EDGES,
        spread=1.0,
        counts=COUNTS,
        loops=(),
    ):
        generator = torch.Generator().manual_seed(seed)
        dimension = config.dimension

        def random(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.config, self.counts, self.loops = config, counts, loops
        self.engine = make_engine(config, RELATIONS, loops=np.array(loops, np.int64))
        params = {path: random(*value.shape) * spread for path, value in self.engine.shared.values.items()}
        self.state = State(
            embeddings={name: random(count, dimension) * spread for name, count in counts.items()},
            # sums above 0: the first step of Adagrad would amplify rounding where a gradient is 0
            row_sums={name: random(count).square() + 0.1 for name, count in counts.items()},
            params=params,
            param_sums={path: value.square() + 0.1 for path, value in params.items()},
        )
        self.types = {"lhs": config.relations[0].lhs, "rhs": config.relations[0].rhs}
        ends = (torch.randint(counts[kind], (edges,), generator=generator) for kind in self.types.values())
        rel = None
        if config.has_two_operators(config.relations[0]):
            rel = torch.randint(RELATIONS if config.dynamic_relations else 1, (edges,), generator=generator)
        self.batch = Batch(*map(Single, ends), 0, rel, random(edges).abs() if weighted else None)
        self.draws = self._draws(generator, edges)

    def _draws(self, generator, edges):
        config = self.config
        if config.relations[0].all_negs or not config.num_uniform_negs:
            return {}
        chunks = -(-edges // min(config.num_batch_negs or config.num_uniform_negs, edges))
        disabled = {"lhs": config.disable_lhs_negs, "rhs": config.disable_rhs_negs}
        return {
            side: torch.randint(self.counts[kind], (chunks, config.num_uniform_negs), generator=generator)
            for side, kind in self.types.items()
            if not disabled[side]
        }

    def step(self, observe=None, dtype=torch.float64):
        """Do the step; return its figures and the new state."""
        after = self.state.copy(dtype)
        self.engine.shared.values.update(after.params)
        self.engine.shared.sums.update(after.param_sums)
        tables = {name: Table(after.embeddings[name], after.row_sums[name]) for name in self.counts}
        weight = None if self.batch.weight is None else self.batch.weight.to(dtype)
        batch = replace(self.batch, weight=weight)
        figures = self.engine.step(batch, tables, tables, Draws(self.draws.values()), observe)
        return figures, after

    def reference(self):
        state = self.state.copy()
        return ReferenceStep(self.config, state, self.batch, self.draws, self.loops), state


def assert_equal(ours, theirs, bound=1e-9):
    apart = float((ours.double() - theirs).abs().max())
    assert apart <= bound * max(float(theirs.abs().max()), 1e-3)


def assert_same_step(case, expected=None, *, bound=1e-9, dtype=torch.float64):
    figures, ours = case.step(dtype=dtype)
    reference, theirs = expected or case.reference()
    assert_equal(figures.loss, reference.loss, bound)
    assert_equal(figures.reg, reference.reg, bound)
    for part in ("embeddings", "row_sums", "params", "param_sums"):
        for name, value in getattr(theirs, part).items():
            assert_equal(getattr(ours, part)[name], value, bound)
    moved = any(not torch.equal(ours.embeddings[name].double(), case.state.embeddings[name]) for name in COUNTS)
    assert moved
