"""Slopes of the native engine's l2 for rows stepped meanwhile.

They are divided by distances.
"""

from __future__ import annotations

import pytest
import torch

from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine.batching import Batch
from pbg_tasks.training.engine.lookup import Single
from pbg_tasks.training.engine.native import NativeEngine
from tests.training.native_steps import INSTRUCTIONS, instructions, native
from tests.training.steps import RELATIONS, Draws, make_config

pytestmark = native


@pytest.mark.parametrize("name", INSTRUCTIONS)
@pytest.mark.parametrize("mode", ["standard", "dynamic"])
def test_rows_are_compared_as_looked_up(mode, name):
    """Let one worker change rows that another one compares, for certain.

    With several workers this happens by chance. Here two tables are the same memory. The right-hand side's ends are
    drawn on the left as well, where nothing else needs them: they take their step before they are compared with the
    values they were looked up for.
    """
    config = make_config(mode, "none", "l2", "softmax", global_emb=False, dimension=24)
    start = torch.randn(9, 24, generator=torch.Generator().manual_seed(0))
    lhs, rhs = torch.arange(4), torch.arange(4, 8)
    rel = torch.zeros(4, dtype=torch.int64) if mode == "dynamic" else None
    rows, shown = start.clone(), {}

    def observe(side, positive, negative):
        shown[side] = positive, negative

    with instructions(name):
        NativeEngine(config, RELATIONS).step(
            Batch(Single(lhs), Single(rhs), 0, rel, None),
            {"a": Table(rows, torch.zeros(9))},
            {"b": Table(rows, torch.zeros(9))},
            Draws([rhs[None], torch.full((1, 4), 8)]),
            observe,
        )
    assert float((rows - start)[rhs].abs().min()) > 0
    expected = -torch.cdist(start[lhs], start[rhs])
    positive, negative = shown["rhs"]
    others = ~torch.eye(4, dtype=torch.bool)
    assert torch.allclose(positive, expected.diag(), rtol=1e-5)
    assert torch.allclose(negative[:, :4][others], expected[others], rtol=1e-5)
