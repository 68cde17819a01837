from __future__ import annotations

import pytest
import torch

from pbg_tasks.training.data.tables import Table
from pbg_tasks.training.engine import optimizers
from pbg_tasks.training.engine.optimizers import adagrad, adagrad_rows, row_adagrad


@pytest.fixture(params=[1, 12, 1 << 18], ids=["rows", "blocks", "whole"])
def block_numbers(request, monkeypatch):
    monkeypatch.setattr(optimizers, "_BLOCK_NUMBERS", request.param)


@pytest.fixture
def gradients():
    generator = torch.Generator().manual_seed(2)
    return torch.randint(9, (40,), generator=generator), torch.randn(40, 4, generator=generator)


def dense(rows, grads, count):
    return torch.zeros(count, *grads.shape[1:]).index_add_(0, rows, grads)


@pytest.mark.usefixtures("block_numbers")
def test_row_adagrad_keeps_one_number_a_row(gradients):
    rows, grads = gradients
    table = Table(torch.randn(11, 4), torch.rand(11))
    embeddings, sums = table.embeddings.clone(), table.row_sums.clone()
    row_adagrad(table, rows, grads, 0.1)
    grad = dense(rows, grads, 11)
    sums += grad.square().mean(1)
    torch.testing.assert_close(table.row_sums, sums)
    torch.testing.assert_close(table.embeddings, embeddings - 0.1 * grad / (sums.sqrt() + 1e-10)[:, None])
    assert torch.equal(table.embeddings[9:], embeddings[9:])


def test_row_without_a_gradient_stays_unchanged():
    table = Table(torch.ones(2, 3), torch.zeros(2))
    row_adagrad(table, torch.tensor([1]), torch.zeros(1, 3), 0.1)
    assert torch.equal(table.embeddings, torch.ones(2, 3))


@pytest.mark.usefixtures("block_numbers")
@pytest.mark.parametrize("shape", [(), (2, 2)], ids=["vectors", "matrices"])
def test_stepping_present_rows_equals_stepping_all(gradients, shape):
    rows, grads = gradients
    grads = grads.view(40, *(shape or (4,)))
    params = torch.randn(9, *grads.shape[1:])
    sums = torch.rand_like(params)
    expected, expected_sums = params.clone(), sums.clone()
    adagrad(expected, expected_sums, dense(rows, grads, 9), 0.1)
    adagrad_rows(params, sums, rows, grads, 0.1)
    torch.testing.assert_close(params, expected)
    torch.testing.assert_close(sums, expected_sums)


def test_adagrad_equals_that_of_torch():
    param = torch.randn(5, requires_grad=True)
    ours, sums = param.detach().clone(), torch.zeros(5)
    theirs = torch.optim.Adagrad([param], lr=0.1)
    for _ in range(3):
        param.grad = torch.randn(5)
        adagrad(ours, sums, param.grad, 0.1)
        theirs.step()
    torch.testing.assert_close(ours, param.detach())
