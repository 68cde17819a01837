from __future__ import annotations

import pytest
import torch

from pbg_tasks.model import numerics


@pytest.fixture
def switch():
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    numerics.use_fast_float32.cache_clear()
    yield settings
    settings.fp32_precision = before
    numerics.use_fast_float32.cache_clear()


def test_products_are_float32_with_and_without_switch(switch):
    on = numerics.use_fast_float32()
    assert (switch.fp32_precision == "bf16") is on
    assert numerics.relative_error() <= numerics.MAX_RELATIVE_ERROR


def test_switch_turns_back_where_products_are_inexact(switch, monkeypatch):
    switch.fp32_precision = "ieee"
    monkeypatch.setattr(numerics, "MAX_RELATIVE_ERROR", 0.0)
    assert not numerics.use_fast_float32()
    assert switch.fp32_precision == "ieee"
