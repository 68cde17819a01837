from __future__ import annotations

import pytest
import torch

from pbg_tasks.config.comparators import BUILT_IN
from pbg_tasks.model.comparators import BFLOAT16, COMPARATORS, Biased, ForwardComparator
from pbg_tasks.model.registry import comparator
from pbg_tasks.native import abi

NAMES = ["dot", "cos", "l2", "squared_l2"]
FORWARD = {
    "dot": lambda query, candidate: torch.einsum("csd,ckd->csk", query, candidate),
    "l2": lambda query, candidate: -(query.unsqueeze(2) - candidate.unsqueeze(1)).norm(dim=-1),
    "squared_l2": lambda query, candidate: -(query.unsqueeze(2) - candidate.unsqueeze(1)).square().sum(-1),
}


def one_by_one(name, a, b, *, bias):
    def score(x, y):
        extra = x[0] + y[0] if bias else 0.0
        if bias:
            x, y = x[1:], y[1:]
        if name in ("dot", "cos"):
            return x @ y / (x.norm() * y.norm() if name == "cos" else 1.0) + extra
        distance = (x - y).square().sum()
        return extra - (distance if name == "squared_l2" else distance.sqrt())

    return torch.stack([torch.stack([score(x, y) for y in b]) for x in a])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_scores_follow_the_formula(name, bias):
    a, b = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    compared = comparator(name, bias=bias)
    ready_a, ready_b = compared.prepare(a), compared.prepare(b)
    expected = one_by_one(name, a, b, bias=bias)
    torch.testing.assert_close(compared.all_pairs(ready_a[None], ready_b[None])[0], expected)
    torch.testing.assert_close(compared.pairs(ready_a, ready_b), expected.diagonal())


@pytest.mark.parametrize("bias", [False, True])
def test_cos_of_zero_vector_has_finite_gradients(bias):
    compared = comparator("cos", bias=bias)
    x = torch.tensor([[0.0, 0.0, 0.0], [0.0, 3.0, 4.0]])
    ready = compared.prepare(x)
    assert compared.all_pairs(ready[None], ready[None])[0].tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert compared.prepare_backward(x, ready, torch.ones(2, 3)).isfinite().all()


def test_l2_of_equal_vectors_has_no_gradient():
    compared = comparator("l2", bias=False)
    x = torch.ones(1, 3)
    score = compared.pairs(x, x)
    assert -1e-14 < score.item() <= 0
    assert all(not grad.any() for grad in compared.pairs_backward(x, x, score, torch.ones(1)))


@pytest.mark.parametrize("name", NAMES)
def test_higher_score_means_more_alike(name):
    compared = comparator(name, bias=False)
    x, near, far = (compared.prepare(torch.tensor([v])) for v in ([1.0, 0.0], [0.9, 0.1], [-1.0, 0.5]))
    assert compared.pairs(x, near) > compared.pairs(x, far)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", FORWARD)
def test_forward_function_alone_gives_scores_and_gradients(name, bias):
    torch.manual_seed(0)
    derived = ForwardComparator(FORWARD[name])
    derived = Biased(derived) if bias else derived
    query, candidate = torch.randn(2, 3, 6, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    a, b = query[0], candidate[0, :3]
    found = []
    for compared in (comparator(name, bias=bias), derived):
        scores, out = compared.all_pairs(query, candidate), torch.empty_like(candidate)
        grad_query = compared.all_pairs_backward(query, candidate, scores, scores.cos(), out)
        paired = compared.pairs(a, b)
        found.append((scores, grad_query, out, paired, *compared.pairs_backward(a, b, paired, paired.cos())))
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


def test_each_comparator_has_its_facts():
    assert {name: comparator.facts for name, comparator in COMPARATORS.items()} == BUILT_IN
    assert {name for name, facts in BUILT_IN.items() if facts.bfloat16} == set(BFLOAT16)
    assert set(BUILT_IN) == set(abi.COMPARATORS)
