"""Steps with more candidates than one native block.

The native engine makes the gradients of 50 at once, in ``native/chunk.inc``.
"""

from __future__ import annotations

import pytest

from pbg_tasks.training.engine.native import NativeEngine
from tests.training.native_steps import assert_same_as, native
from tests.training.reference import ReferenceStep
from tests.training.steps import Case, make_config, regularized

pytestmark = native

COUNTS = {
    "a": 2_000,
    "b": 3_000,
}  # many, so that most drawn rows are finished with their block and leave their memory to the next


class Remembering(ReferenceStep):
    """Makes every embedding once, as there are many pairs of few."""

    def __init__(self, *given):
        self._made = {}
        super().__init__(*given)

    def _once(self, key, make):
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def embedding(self, side, offset):
        return self._once((side, offset), lambda: super(Remembering, self).embedding(side, offset))

    def compared(self, side, offset, rel, *, query):
        return self._once(
            (side, offset, rel, query), lambda: super(Remembering, self).compared(side, offset, rel, query=query)
        )


CASES = {
    "as FB15k is trained": (
        ("dynamic", "complex_diagonal", "dot", "softmax", "one_type"),
        {"edges": 60, "num_batch_negs": 50, "num_uniform_negs": 1_000},
    ),
    "an operator on the drawn": (
        ("standard", "complex_diagonal", "cos", "softmax", "no_lhs_negs"),
        {"edges": 125, "num_batch_negs": 120, "num_uniform_negs": 130},
    ),
    "biases": (
        ("dynamic", "translation", "dot", "logistic", "bias"),
        {"edges": 65, "num_batch_negs": 60, "num_uniform_negs": 70},
    ),
    "distances": (
        ("dynamic", "diagonal", "l2", "ranking"),
        {"edges": 65, "num_batch_negs": 60, "num_uniform_negs": 70},
    ),
}


ALL_NEGS = {
    "one table": ("dynamic", "complex_diagonal", "dot", "softmax", "a", {}),
    "two tables": ("dynamic", "translation", "cos", "logistic", "b", {}),
    "an operator on all entities": ("standard", "translation", "l2", "ranking", "b", {}),
    "a matrix on all entities": ("standard", "affine", "cos", "softmax", "a", {}),
    "rows that shrink": ("dynamic", "diagonal", "dot", "softmax", "a", {"max_norm": 0.8}),
}


@pytest.mark.rotated(3)
@pytest.mark.parametrize("case", ALL_NEGS)
def test_all_entities_in_several_blocks_keep_gradients(case):
    mode, operator, comparator, loss, rhs, keys = ALL_NEGS[case]
    relation = {"name": "r", "lhs": "a", "rhs": rhs, "operator": operator, "all_negs": True}
    config = regularized(
        make_config(mode, operator, comparator, loss, dimension=12, batch_size=130, relations=[relation], **keys), "N3"
    )
    counts = {"a": 31, "b": 60}  # more entities on the right than are compared at once
    step = Case(config, make_engine=NativeEngine, edges=130, spread=2 * 12**-0.5, counts=counts)
    after = step.state.copy()
    assert_same_as(step, (Remembering(config, after, step.batch, step.draws), after))


@pytest.mark.rotated(3)
@pytest.mark.parametrize("case", CASES)
def test_blocks_keep_the_gradients_of_autograd(case):
    kind, sizes = CASES[case]
    edges, changes = sizes["edges"], {key: value for key, value in sizes.items() if key != "edges"}
    config = regularized(make_config(*kind, batch_size=1_200, dimension=12, **changes), "N3")
    step = Case(config, make_engine=NativeEngine, edges=edges, spread=2 * 12**-0.5, counts=COUNTS)
    after = step.state.copy()
    assert_same_as(step, (Remembering(config, after, step.batch, step.draws), after))
