"""Numbers as text, equal to ``"%.9f"`` of each to the last digit."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pbg_tasks.native import library
from pbg_tasks.publish import decimals


def one_by_one(heads, block):
    lines = zip(heads, block.tolist(), strict=True)
    return "".join("\t".join([head, *(f"{number:.9f}" for number in row)]) + "\n" for head, row in lines)


@pytest.fixture(params=["native", "numpy"])
def written(request, monkeypatch):
    """Return the function that writes a block, with or without the library."""
    if request.param == "numpy":
        monkeypatch.setattr(decimals, "library", lambda: None)
    elif library() is None:
        pytest.skip("no native library")

    def written(block, heads=None):
        out, named = io.BytesIO(), [f"é{row}" for row in range(len(block))] if heads is None else heads
        decimals.write_lines(out, named, block)
        assert out.getvalue().decode() == one_by_one(named, block)

    return written


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(block=arrays(np.float32, st.tuples(st.integers(0, 3), st.integers(1, 5)), elements=st.floats(width=32)))
def test_digits_equal_those_of_single_numbers(written, block):
    written(block)


def test_halves_signs_and_large_numbers(written):
    ties = np.ldexp(
        np.arange(-1025, 1025, 2, np.float32), -10
    )  # a number of 10 binary digits ends in a 5 at the tenth decimal
    odd = np.array([0.0, -0.0, -4e-10, 5e-10, 9.5, -9.4999990, 10, 123456.789, 3e38, np.inf, -np.inf, np.nan, -np.nan])
    edges = np.nextafter(np.float32([1, 10, 1 << 24, 1 << 33]), np.float32([[0], [np.inf]]), dtype=np.float32).ravel()
    for row in (ties, odd.astype(np.float32), odd[:5].astype(np.float32), edges):
        block = row.reshape(1, -1)
        written(block)
        written(block.T)


def test_widest_numbers_have_room(written):
    written(np.full((3, 7), -np.finfo(np.float32).max))


@pytest.mark.parametrize("scale", [1e-3, 0.5, 4, 1e5])
def test_many_numbers_equal_single_ones(written, scale):
    written(np.random.default_rng(7).normal(0, scale, (200, 50)).astype(np.float32))


def test_a_block_may_be_a_view(written):
    written(np.arange(24, dtype=np.float32).reshape(4, 6)[::2, 1:4])


def test_block_has_as_many_heads_as_rows():
    with pytest.raises(ValueError, match="2 heads for 1 rows"):
        decimals.write_lines(io.BytesIO(), ["a", "b"], np.zeros((1, 1), np.float32))
