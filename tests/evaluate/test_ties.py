from __future__ import annotations

import pytest
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.evaluate.ties import ROUNDING, tie_from


@pytest.mark.parametrize("score", [-100.0, 0.0, 100.0])
@pytest.mark.parametrize("bias", [False, True])
def test_scores_of_an_unknown_comparator_tie_within_rounding_whatever_their_sign(score, bias):
    config = ModelConfig(
        entities={"e": {"num_partitions": 1}}, relations=[{"name": "r", "lhs": "e", "rhs": "e"}], dimension=3
    )
    config = config.model_copy(update={"comparator": "of_a_package", "bias": bias})
    query, true = torch.tensor([[0.5, 3.0, 4.0]]).double(), torch.tensor([[0.25, 1.0, 0.0]]).double()
    apart = score - float(tie_from(config, query, true, torch.tensor([score]).double()))
    assert 4 * ROUNDING < apart < 120 * ROUNDING
