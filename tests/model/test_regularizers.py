from __future__ import annotations

import pytest
import torch

from pbg_tasks.model.operators import OPERATORS
from pbg_tasks.model.regularizers import REGULARIZERS, Regularizer, penalty_of_parameters, penalty_of_rows
from pbg_tasks.model.relations import BoundOperator, GroupedOperator, RowwiseOperator


@pytest.mark.parametrize(
    ("regularizer", "operator", "value", "gradient"),
    [
        ("N3", "diagonal", 27 + 64, [27.0, -48.0]),
        ("N3", "complex_diagonal", 125, [45.0, -60.0]),
        ("N3_edge", "complex_diagonal", 125, [45.0, -60.0]),
        ("L2", "diagonal", 25, [6.0, -8.0]),
        ("L2", "complex_diagonal", 25, [6.0, -8.0]),
    ],
)
def test_penalty_is_of_the_modulus_of_numbers(regularizer, operator, value, gradient):
    x = torch.tensor([[3.0, -4.0]])
    found, grad = penalty_of_rows(REGULARIZERS[regularizer], OPERATORS[operator], x, 0.5)
    assert found == pytest.approx(0.5 * value)
    torch.testing.assert_close(grad, 0.5 * torch.tensor([gradient]))


@pytest.mark.parametrize("name", REGULARIZERS)
def test_analytic_slope_equals_that_of_autograd(name):
    modulus = torch.tensor([0.1, 1.0, 2.5], dtype=torch.float64)
    regularizer = REGULARIZERS[name]
    torch.testing.assert_close(regularizer.slope(modulus), Regularizer.slope(regularizer, modulus))


def test_a_steep_penalty_has_no_gradient_at_zero():
    class L1(Regularizer):
        def forward(self, modulus):
            return modulus

    _, grad = penalty_of_rows(L1(), OPERATORS["complex_diagonal"], torch.tensor([[0.0, 3.0, 0.0, -4.0]]), 1.0)
    torch.testing.assert_close(grad, torch.tensor([[0.0, 0.6, 0.0, -0.8]]))


@pytest.mark.parametrize("operator", ["linear", "affine"])
@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_grouped_matrices_count_as_their_copies(operator, regularizer):
    torch.manual_seed(0)
    applied = OPERATORS[operator]
    values = {name: torch.randn(4, *value.shape) for name, value in applied.initial(3).items()}
    paths, rel = {name: name for name in values}, torch.tensor([2, 0, 2, 2, 3])
    penalised = [
        penalty_of_parameters(REGULARIZERS[regularizer], kind(applied, paths, values, rel), 0.1)
        for kind in (GroupedOperator, RowwiseOperator)
    ]
    (total, grads), (expected_total, expected) = penalised
    torch.testing.assert_close(total, expected_total)
    for ours, theirs in zip(grads, expected, strict=True):
        assert ours.path == theirs.path
        assert ours.rows_M.tolist() == [0, 2, 3]
        sums = [torch.zeros(values[ours.path].shape).index_add_(0, part.rows_M, part.grad) for part in (ours, theirs)]
        torch.testing.assert_close(*sums)


@pytest.mark.parametrize(
    ("regularizer", "operator", "times"),
    [
        ("N3", "translation", 3),
        ("N3", "diagonal", 3),
        ("N3", "complex_diagonal", 3),
        ("N3", "linear", 100),
        ("N3", "affine", 100),
        ("N3_edge", "diagonal", 100),
        ("L2", "diagonal", 100),
    ],
)
def test_only_n3_of_pbgs_operators_counts_chunks(regularizer, operator, times):
    assert REGULARIZERS[regularizer].times(OPERATORS[operator], edges=100, chunks=3) == times


def test_operator_without_parameters_has_no_penalty():
    value, grads = penalty_of_parameters(REGULARIZERS["N3"], BoundOperator(OPERATORS["none"], {}, {}), 1.0)
    assert (value, grads) == (0, [])
