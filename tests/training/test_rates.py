from __future__ import annotations

import pytest

from pbg_tasks.training.engine.pace import rate_factor
from tests.model.configs import one_type


def factors(**keys):
    config = one_type(num_epochs=10, **keys)
    return [rate_factor(config, share) for share in (0, 0.25, 0.5, 0.75, 1)]


def test_rate_is_constant_by_default():
    assert factors() == [1, 1, 1, 1, 1]


def test_linear_rate_falls_to_the_final_share():
    assert factors(lr_schedule="linear") == [1, 0.75, 0.5, 0.25, 0]
    assert factors(lr_schedule="linear", lr_final=0.2) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


def test_cosine_rate_follows_its_formula():
    assert factors(lr_schedule="cosine") == pytest.approx([1, 0.853553, 0.5, 0.146447, 0], rel=1e-5)


def test_warm_up_multiplies_the_rate():
    assert factors(lr_warmup_epochs=5) == [0, 0.5, 1, 1, 1]
    assert factors(lr_warmup_epochs=5, lr_schedule="linear") == [0, 0.375, 0.5, 0.25, 0]
