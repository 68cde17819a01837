from __future__ import annotations

import pytest
import torch

from pbg_tasks.config import ModelConfig
from pbg_tasks.model.operators import OPERATORS, Operator
from pbg_tasks.model.relations import bind
from pbg_tasks.model.stored_parameters import initial_parameters


def config(operator, *, dynamic=False, global_emb=False):
    return ModelConfig.model_validate(
        {
            "entities": {"e": {"num_partitions": 1}, "f": {"num_partitions": 1, "dimension": 4}},
            "relations": [{"name": "r", "lhs": "f", "rhs": "f", "operator": operator}],
            "dimension": 10,
            "global_emb": global_emb,
            "dynamic_relations": dynamic,
        }
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_start_as_the_identity(name):
    x = torch.randn(3, 4)
    assert torch.equal(OPERATORS[name].forward(x, OPERATORS[name].initial(4)), x)


def test_complex_diagonal_is_complex_multiplication():
    x, params = torch.tensor([[1.0, 2.0]]), {"real": torch.tensor([3.0]), "imag": torch.tensor([4.0])}
    assert OPERATORS["complex_diagonal"].forward(x, params).tolist() == [[3 - 8, 4 + 6]]


def test_linear_is_matrix_times_vector():
    matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    params = {"linear_transformation": matrix, "translation": torch.tensor([10.0, 20.0])}
    assert OPERATORS["affine"].forward(torch.tensor([[1.0, 0.0]]), params).tolist() == [[11.0, 23.0]]


@pytest.mark.parametrize("name", OPERATORS)
def test_analytic_gradient_equals_that_of_autograd(name):
    operator = OPERATORS[name]
    x, grad = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    params = {key: torch.randn_like(value, dtype=torch.float64) for key, value in operator.initial(4).items()}
    grad_x, grads = operator.backward(x, params, grad)
    expected_x, expected = Operator.backward(operator, x, params, grad)
    torch.testing.assert_close(grad_x, expected_x)
    assert grads.keys() == expected.keys() == params.keys()
    for key, value in expected.items():
        torch.testing.assert_close(grads[key], value)


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_of_different_relations_get_their_own_parameters(name):
    model = config(name, dynamic=True)
    values = {path: torch.randn(value.shape) for path, value in initial_parameters(model, 3).items()}
    rel, x = torch.tensor([2, 0, 2, 1, 0]), torch.randn(5, 4)
    out = bind(model, values, "lhs", 0, rel).forward(x)
    for row, relation in enumerate(rel):
        alone = bind(model, values, "lhs", 0, relation.view(1)).forward(x[row : row + 1])
        torch.testing.assert_close(out[row : row + 1], alone)
    if values:
        assert not torch.equal(out, bind(model, values, "rhs", 0, rel).forward(x))


@pytest.mark.parametrize(
    ("operator", "dynamic", "expected"),
    [
        ("none", False, {}),
        ("affine", False, {"linear_transformation": (4, 4), "translation": (4,)}),
        ("affine", True, {"linear_transformations": (3, 4, 4), "translations": (3, 4)}),
        ("complex_diagonal", True, {"real": (3, 2), "imag": (3, 2)}),
        ("translation", True, {"translations": (3, 4)}),
        ("diagonal", True, {"diagonals": (3, 4)}),
        ("linear", False, {"linear_transformation": (4, 4)}),
    ],
)
def test_parameters_have_pbgs_names_and_shapes(operator, dynamic, expected):
    sides = ("lhs", "rhs") if dynamic else ("rhs",)
    paths = {f"relations/0/operator/{side}/{name}": shape for side in sides for name, shape in expected.items()}
    values = initial_parameters(config(operator, dynamic=dynamic), 3)
    assert {path: tuple(value.shape) for path, value in values.items()} == paths


def test_global_embeddings_start_at_zero():
    values = initial_parameters(config("none", global_emb=True), 1)
    shapes = {path: tuple(value.shape) for path, value in values.items()}
    assert shapes == {"entities/e/global_embedding": (10,), "entities/f/global_embedding": (4,)}
    assert all(not value.any() for value in values.values())


def test_gradient_survives_change_by_another_worker():
    shared = torch.full((4,), 2.0)

    class Watched(Operator):
        def forward(self, x_ND, params):
            out_ND = x_ND * params["factor"]
            with torch.no_grad():
                shared.add_(1)
            return out_ND

    grad_x, grads = Watched().backward(torch.full((1, 4), 3.0), {"factor": shared}, torch.ones(1, 4))
    assert grad_x.tolist() == [[2.0] * 4]
    assert grads["factor"].tolist() == [3.0] * 4


@pytest.mark.parametrize("name", OPERATORS)
def test_inverse_undoes_operator_up_to_damping(name, monkeypatch):
    monkeypatch.setattr("pbg_tasks.model.operators.DAMPING", 1e-6)
    generator = torch.Generator().manual_seed(3)
    params = {
        key: value + torch.randn(value.shape, generator=generator) / 3
        for key, value in OPERATORS[name].initial(4).items()
    }
    x = torch.randn(5, 4, generator=generator)
    torch.testing.assert_close(
        OPERATORS[name].inverse(OPERATORS[name].forward(x, params), params), x, rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("name", ["diagonal", "complex_diagonal", "linear", "affine"])
def test_inverse_stays_bounded(name):
    params = {key: value.clone() for key, value in OPERATORS[name].initial(4).items()}
    main = {"diagonal": "diagonal", "complex_diagonal": "real"}.get(name, "linear_transformation")
    y = torch.ones(2, 4)
    for scale in (torch.tensor([1e-6, 1.0, 1.0, 1.0]), torch.zeros(4)):
        params[main] = scale.diag() if params[main].dim() > 1 else scale[: len(params[main])].clone()
        assert OPERATORS[name].inverse(y, params).abs().max() < 4


class Doubled(Operator):
    """Operator of a package, without an inverse of its own."""

    def forward(self, x_ND, params):
        del params
        return 2 * x_ND


def test_inverse_without_formula_follows_the_product():
    assert torch.equal(Doubled().inverse(torch.tensor([[1.0, -3.0]]), {}), torch.tensor([[2.0, -6.0]]))
