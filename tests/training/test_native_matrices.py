"""Products by AMX compared with those by vectors of bfloat16.

Both round the same numbers; only the order of their sums differs. Chunks and dimensions are up to several matrix
registers and seldom whole ones.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pbg_tasks.training.engine.native import NativeEngine
from tests.training.native_steps import INSTRUCTIONS, instructions
from tests.training.steps import Case, assert_same_step, make_config

BOUND = 5e-4
"""A factor whose last bit falls the other way is off by 1/256, one of many in a sum."""

pytestmark = pytest.mark.skipif("amx" not in INSTRUCTIONS, reason="this CPU has no AMX, or no Linux that allows it")


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([("dot", "softmax"), ("dot", "logistic"), ("cos", "softmax")]),
    st.sampled_from(["standard", "dynamic"]),
    st.integers(3, 140),
    st.integers(1, 150),
    st.integers(0, 80),
    st.integers(0, 150),
    st.integers(0, 1000),
    st.booleans(),
)
def test_matrices_and_vectors_take_the_same_step(kinds, mode, dimension, edges, batch_negs, uniform, seed, bias):
    assume(batch_negs + uniform > 0)
    comparator, loss = kinds
    size = 200 * max(batch_negs, 1)
    keys = {"dimension": dimension, "bias": bias, "global_emb": False, "precision": "bf16", "batch_size": size}
    config = make_config(
        mode, "diagonal", comparator, loss, num_batch_negs=batch_negs, num_uniform_negs=uniform, **keys
    )
    case = Case(config, make_engine=NativeEngine, edges=edges, seed=seed, spread=2 * dimension**-0.5, weighted=True)
    with instructions("avx512_bf16"):
        by_vectors = case.step(dtype=torch.float32)
    with instructions("amx"):
        assert_same_step(case, by_vectors, bound=BOUND, dtype=torch.float32)
