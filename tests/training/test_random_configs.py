"""The command that compares random configs with autograd, and its alarm."""

from __future__ import annotations

import random

import pytest

from pbg_tasks.training.engine.native import NativeEngine
from pbg_tasks.training.engine.on_torch import TorchEngine
from tests import random_configs
from tests.training.native_steps import native
from tests.training.steps import Case


def test_random_configs_are_right(capsys):
    assert random_configs.main(25, seed=1) == 0
    assert capsys.readouterr().out.startswith("25 random configs, ")


def test_wrong_learning_rate_is_found(monkeypatch):
    drawn = random_configs.draw(random.Random(1))
    assert random_configs.judge(drawn)[0] == "equal"
    rates = TorchEngine._learning_rates
    monkeypatch.setattr(TorchEngine, "_learning_rates", lambda self, rate: rates(self, rate * (1 + 1e-7)))
    assert random_configs.judge(drawn)[0] == "WRONG"


@pytest.mark.parametrize("engine", [pytest.param(NativeEngine, marks=native), TorchEngine])
def test_vectors_that_are_no_numbers_are_found(monkeypatch, engine):
    step = Case.step

    def spoiled(case, *, dtype):
        figures, after = step(case, dtype=dtype)
        if type(case.engine) is engine:
            after.embeddings["b"][:] = float("nan")
        return figures, after

    monkeypatch.setattr(Case, "step", spoiled)
    assert random_configs.judge(random_configs.draw(random.Random(1)))[0] == "WRONG"


def test_no_config_at_all_is_no_success():
    assert random_configs.main(0, seed=1) == 1
