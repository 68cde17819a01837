"""Numbers as text: ``"%.9f"`` of each, to the last digit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pbg_tasks.publish.decimals import format_rows


def one_by_one(block):
    return ["\t".join(f"{number:.9f}" for number in row) + "\n" for row in block.tolist()]


@given(arrays(np.float32, st.tuples(st.integers(0, 3), st.integers(1, 5)), elements=st.floats(-12, 12, width=32)))
def test_every_digit_is_that_of_one_number_at_a_time(block):
    assert format_rows(block) == one_by_one(block)


def test_halves_signs_and_large_numbers():
    ties = np.ldexp(np.arange(-1025, 1025, 2, np.float32), -10)  # 10 binary digits end in a 5: the tenth decimal
    odd = np.array([0.0, -0.0, -4e-10, 5e-10, 9.5, -9.4999990, 10, 123456.789, 3e38, np.inf, np.nan], np.float32)
    for row in (ties, odd, odd[:5]):
        block = row.reshape(1, -1)
        assert format_rows(block) == one_by_one(block)
        assert format_rows(block.T) == one_by_one(block.T)


@pytest.mark.parametrize("scale", [1e-3, 0.5, 4])
def test_many_numbers(scale):
    block = np.random.default_rng(7).normal(0, scale, (200, 50)).astype(np.float32)
    assert format_rows(block) == one_by_one(block)
