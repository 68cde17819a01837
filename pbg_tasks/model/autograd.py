"""Gradients by autograd, for parts that have only a forward function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


def differentiate(
    forward: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Apply a function, and return its output and gradients.

    Args:
        forward: takes ``inputs`` one by one.
        inputs: of floating point.
        grad: gradient of the output; None: ones, the gradient of the output's sum.

    Returns:
        The output and a gradient for every input, zero where the output does not depend on it; each in memory of its
        own, which may be changed in place.
    """
    leaves = [value.detach().requires_grad_() for value in inputs]
    with torch.enable_grad():
        out = forward(*leaves)
    if not out.requires_grad:
        return out, tuple(torch.zeros_like(value) for value in inputs)
    grads = torch.autograd.grad(out, leaves, torch.ones_like(out) if grad is None else grad, materialize_grads=True)
    # Copies, because autograd may return expanded tensors, or one tensor for two inputs.
    return out.detach(), tuple(value.clone(memory_format=torch.contiguous_format) for value in grads)
