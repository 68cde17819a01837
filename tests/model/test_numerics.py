from __future__ import annotations

import threading
import time

import pytest
import torch

from pbg_tasks.model import numerics


@pytest.fixture
def switch():
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    numerics._tried.cache_clear()
    yield settings
    settings.fp32_precision = before
    numerics._tried.cache_clear()


def test_products_are_float32_with_and_without_switch(switch):
    on = numerics.use_fast_float32()
    assert (switch.fp32_precision == "bf16") is on
    assert numerics.relative_error() <= numerics.MAX_RELATIVE_ERROR


def test_switch_turns_back_where_products_are_inexact(switch, monkeypatch):
    switch.fp32_precision = "ieee"
    monkeypatch.setattr(numerics, "MAX_RELATIVE_ERROR", 0.0)
    assert not numerics.use_fast_float32()
    assert switch.fp32_precision == "ieee"


def test_threads_that_ask_together_try_once(switch, monkeypatch):
    tried = []

    def inexact():
        tried.append(switch.fp32_precision)
        time.sleep(0.05)
        return 1.0

    switch.fp32_precision = "ieee"
    monkeypatch.setattr(numerics, "relative_error", inexact)
    threads = [threading.Thread(target=numerics.use_fast_float32) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tried == ["bf16"]
    assert switch.fp32_precision == "ieee"
