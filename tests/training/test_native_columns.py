"""Scores of short rows by columns, as of AVX-512.

They are compared with those by rows. Sizes cover rows that are too long or too few for columns, and tiles and vectors
that are filled in part.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbg_tasks.training.engine.native import NativeEngine
from tests.training.native_steps import BOUND, INSTRUCTIONS, instructions
from tests.training.steps import Case, assert_same_step, make_config

pytestmark = pytest.mark.skipif("avx512" not in INSTRUCTIONS, reason="this CPU has no AVX-512")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([("dot", "softmax"), ("cos", "logistic")]),
    st.one_of(st.integers(3, 50), st.sampled_from([96, 100, 128, 255, 256])),
    st.integers(14, 70),
    st.integers(0, 200),
    st.integers(0, 1000),
    st.booleans(),
)
def test_columns_and_rows_take_the_same_step(kinds, dimension, chunk, uniform, seed, bias):
    comparator, loss = kinds
    keys = {"dimension": dimension, "bias": bias, "global_emb": False, "batch_size": 200 * chunk}
    config = make_config(
        "standard", "diagonal", comparator, loss, num_batch_negs=chunk, num_uniform_negs=uniform, **keys
    )
    case = Case(config, make_engine=NativeEngine, edges=2 * chunk, seed=seed, spread=2 * dimension**-0.5, weighted=True)
    with instructions("avx2"):
        by_rows = case.step(dtype=torch.float32)
    with instructions("avx512"):
        assert_same_step(case, by_rows, bound=BOUND, dtype=torch.float32)
