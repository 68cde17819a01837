from __future__ import annotations

import pytest
import torch

from pbg_tasks.model.losses import LOSSES, ForwardLoss
from pbg_tasks.model.negatives import MASKED

MARGIN = 0.3


def plain(name, positive, negative, weight):
    """Return the loss by PBG's documentation, to be differentiated by autograd."""
    if name == "ranking":
        losses = (MARGIN - positive[:, None] + negative).clamp_min(0).sum(1)
    elif name == "softmax":
        losses = torch.cat((positive[:, None], negative), 1).logsumexp(1) - positive
    else:
        losses = -torch.nn.functional.logsigmoid(positive)
        losses = losses - torch.nn.functional.logsigmoid(-negative).sum(1) / max(negative.shape[1], 1)
    return (losses if weight is None else losses * weight).sum()


@pytest.mark.parametrize("columns", [0, 5])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_those_of_autograd(name, weighted, columns):
    generator = torch.Generator().manual_seed(3)
    positive = torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_()
    negative = torch.randn(4, columns, generator=generator, dtype=torch.float64)
    if columns:
        negative[1, 2] = negative[3, 0] = MASKED
    negative.requires_grad_()
    weight = torch.tensor([1.0, 0.5, 0.0, 2.5], dtype=torch.float64) if weighted else None
    expected = plain(name, positive, negative, weight)
    expected.backward()
    found = LOSSES[name](positive.detach().clone(), negative.detach().clone(), weight, MARGIN)
    torch.testing.assert_close(found.value, expected.detach())
    torch.testing.assert_close(found.positive_B, positive.grad)
    torch.testing.assert_close(found.negative_BK, negative.grad)


@pytest.mark.parametrize("name", LOSSES)
def test_scores_far_apart_do_not_overflow(name):
    found = LOSSES[name](torch.tensor([-3e4, 3e4]), torch.tensor([[3e4, MASKED], [-3e4, MASKED]]), None, MARGIN)
    assert all(part.isfinite().all() for part in found)


def test_loss_with_all_negatives_masked_is_zero():
    for loss in LOSSES.values():
        found = loss(torch.tensor([50.0]), torch.full((1, 3), MASKED), None, MARGIN)
        assert found.value == pytest.approx(0, abs=1e-6)
        assert not found.negative_BK.any()


@pytest.mark.parametrize("columns", [0, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_forward_function_alone_gives_gradients_in_place(weighted, columns):
    generator = torch.Generator().manual_seed(3)
    positive, negative = torch.randn(4, generator=generator), torch.randn(4, columns, generator=generator)
    if columns:
        negative[1, 2] = negative[3, 0] = MASKED
    weight = torch.tensor([1.0, 0.5, 0.0, 2.5]) if weighted else None
    derived = ForwardLoss(
        lambda positive, negative, _: torch.cat((positive[:, None], negative), 1).logsumexp(1) - positive
    )
    given = negative.clone()
    found, expected = (
        loss(positive.clone(), scores, weight, MARGIN)
        for loss, scores in ((derived, given), (LOSSES["softmax"], negative.clone()))
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert found.negative_BK.data_ptr() == given.data_ptr()


def test_masked_scores_get_no_gradient_from_loss():
    found = ForwardLoss(lambda positive, negative, _: negative.abs().sum(1) - positive)(
        torch.zeros(1), torch.tensor([[MASKED, 2.0]]), None, MARGIN
    )
    assert found.negative_BK.tolist() == [[0.0, 1.0]]
