"""Steps of the native engine in which most negatives have no weight.

Its products take five rows at once, and leave out what none of them has a factor for (``native/packed.inc``).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pbg_tasks.training.engine.lookup import Single
from pbg_tasks.training.engine.native import NativeEngine
from tests.training.native_steps import INSTRUCTIONS, assert_same_as, instructions, native
from tests.training.steps import Case, make_config

pytestmark = native

ROWS, EDGES, NEGATIVES = 5, 10, 20


def make_case(dimension):
    """Return a step of one chunk, with each entity once.

    Of the first number, all left ends have 1, and all candidates 0.
    """
    config = make_config(
        "standard",
        "none",
        "dot",
        "ranking",
        "no_lhs_negs",
        dimension=dimension,
        global_emb=False,
        num_batch_negs=0,
        num_uniform_negs=NEGATIVES,
        batch_size=EDGES,
    )
    counts = {"a": EDGES, "b": EDGES + NEGATIVES}
    case = Case(config, make_engine=NativeEngine, edges=EDGES, spread=dimension**-0.5, counts=counts)
    ends = torch.arange(EDGES)
    case.batch = replace(case.batch, lhs=Single(ends), rhs=Single(ends), weight=torch.ones(EDGES))
    case.draws = {"rhs": torch.arange(EDGES, EDGES + NEGATIVES)[None]}
    case.state.embeddings["a"][:, 0] = 1
    case.state.embeddings["b"][:, 0] = 0
    case.state.embeddings["b"][:EDGES, 0] = 0.6  # few negatives have a weight
    return case


def assert_same_bits(case, change, kind, rows):
    before = {name: case.state.embeddings[name].clone() for name in case.counts}
    for name in INSTRUCTIONS:
        with instructions(name):
            change(1)
            _, without_zeros = case.step(dtype=torch.float32)
            change(0)
            _, with_zeros = case.step(dtype=torch.float32)
        moved = with_zeros.embeddings[kind][rows] != before[kind][rows].float()
        assert moved[:, -1].any()
        assert torch.equal(with_zeros.embeddings[kind][rows], without_zeros.embeddings[kind][rows])
        assert torch.equal(with_zeros.row_sums[kind][rows], without_zeros.row_sums[kind][rows])
    assert_same_as(case, case.reference())


@pytest.mark.parametrize("dimension", [3, 8, 19])
def test_left_out_candidates_keep_bits_of_queries(dimension):
    """The last query of a tile has factors for all or none."""
    case = make_case(dimension)
    case.state.embeddings["b"][ROWS - 1, 0] = -50

    def change(weight):
        case.batch.weight[ROWS - 1] = weight

    assert_same_bits(case, change, "a", slice(ROWS - 1))


@pytest.mark.parametrize("dimension", [3, 8, 19])
def test_left_out_queries_keep_bits_of_candidates(dimension):
    """The last candidate of a tile has factors for all or none."""
    case = make_case(dimension)
    last = EDGES + ROWS - 1

    def change(weight):
        case.state.embeddings["b"][last, 0] = 50 if weight else -50

    assert_same_bits(case, change, "b", slice(EDGES, last))
