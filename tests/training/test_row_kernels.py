"""Adagrad in Triton, on a GPU or by Triton's interpreter."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine import fixed_shapes

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed here")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RATE = torch.tensor(0.1, dtype=torch.float64)


@pytest.fixture
def kernels(monkeypatch):
    if DEVICE.type == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when the kernels are defined
    from pbg_tasks.training.engine import row_kernels

    return row_kernels


@pytest.fixture(params=[False, True], ids=["even", "skewed"])
def gradients(request):
    def make(count, rows, dimension):
        generator = torch.Generator().manual_seed(count + rows)
        rows_M = torch.randint(rows, (count,), generator=generator)
        if request.param:  # runs over many blocks
            rows_M[torch.rand(count, generator=generator) < 0.6] = 3 % rows
        return rows_M, torch.randn(count, dimension, generator=generator), generator

    return make


CASES = [(1, 3, 5), (70, 4, 7), (200, 1, 6), (200, 5, 33), (150, 60, 16)]


def assert_near(ours, exact):
    torch.testing.assert_close(ours.cpu(), exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("count", "rows", "dimension"), CASES)
def test_rows_are_stepped_as_in_float64(kernels, gradients, count, rows, dimension):
    rows_M, grads, generator = gradients(count, rows, dimension)
    start = torch.randn(rows, dimension, generator=generator), torch.rand(rows, generator=generator)
    ours, exact = (Table(*(each.to(where) for each in start)) for where in (DEVICE, torch.float64))
    for _ in range(2):
        kernels.row_adagrad(ours, rows_M.to(DEVICE), grads.to(DEVICE, copy=True), RATE.to(DEVICE))
        fixed_shapes.row_adagrad(exact, rows_M, grads.double(), RATE)
    assert_near(ours.embeddings, exact.embeddings)
    assert_near(ours.row_sums, exact.row_sums)


@pytest.mark.parametrize(("count", "rows", "dimension"), [*CASES, (9, 2, 1500)])
def test_parameters_are_stepped_as_in_float64(kernels, gradients, count, rows, dimension):
    rows_M, grads, generator = gradients(count, rows, dimension)
    start = torch.randn(rows, dimension, generator=generator), torch.rand(rows, dimension, generator=generator)
    ours, exact = ([each.to(where) for each in start] for where in (DEVICE, torch.float64))
    for _ in range(2):
        kernels.adagrad_rows(*ours, rows_M.to(DEVICE), grads.to(DEVICE, copy=True), RATE.to(DEVICE))
        fixed_shapes.adagrad_rows(*exact, rows_M, grads.double(), RATE)
    for found, expected in zip(ours, exact, strict=True):
        assert_near(found, expected)


def test_sums_are_same_every_time(kernels, gradients):
    rows_M, grads, generator = gradients(200, 4, 20)
    start, found = torch.randn(4, 20, generator=generator), []
    for _ in range(2):
        table = Table(start.to(DEVICE, copy=True), torch.zeros(4, device=DEVICE))
        kernels.row_adagrad(table, rows_M.to(DEVICE), grads.to(DEVICE, copy=True), RATE.to(DEVICE))
        found.append(table)
    assert torch.equal(found[0].embeddings, found[1].embeddings)
    assert torch.equal(found[0].row_sums, found[1].row_sums)
