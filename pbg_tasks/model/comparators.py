"""Comparators: similarity of two embeddings, higher for more similar ones.

An embedding is *prepared* once (normalised, for cos), then compared: row by row (``pairs``) or every query of an edge
chunk with every candidate of it (``all_pairs``). Gradients are analytic.

Shapes: C edge chunks, S queries a chunk, K candidates a chunk, D dimension, N any leading axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from pbg_tasks.config import comparators as facts_of_built_in
from pbg_tasks.model.autograd import differentiate

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_TINY = 1e-30  # PBG clamps squared distances here before the root


class Comparator:
    """Comparator with gradients from autograd; a subclass needs only ``all_pairs``.

    Attributes:
        facts: about it. Those of a package's comparator determine the assumed rounding of its scores.
    """

    facts = facts_of_built_in.UNKNOWN

    def prepare(self, x_ND: Tensor) -> Tensor:
        """Return prepared embeddings, (N, D)."""
        return x_ND

    def prepare_backward(self, x_ND: Tensor, ready_ND: Tensor, grad_ND: Tensor) -> Tensor:
        """Return the gradient of ``x_ND`` from that of ``ready_ND``.

        ``prepare`` made ``ready_ND`` of ``x_ND``.
        """
        del ready_ND
        if type(self).prepare is Comparator.prepare:
            return grad_ND
        _, (grad_x,) = differentiate(self.prepare, (x_ND,), grad_ND)
        return grad_x

    def pairs(self, a_ND: Tensor, b_ND: Tensor) -> Tensor:
        """Compare prepared embeddings row by row.

        (N, D) and (N, D) give (N).
        """
        return self.all_pairs(a_ND.unsqueeze(1), b_ND.unsqueeze(1)).reshape(len(a_ND))

    def pairs_backward(self, a_ND: Tensor, b_ND: Tensor, score_N: Tensor, grad_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both sides."""
        del score_N
        _, (grad_a, grad_b) = differentiate(self.pairs, (a_ND, b_ND), grad_N)
        return grad_a, grad_b

    def all_pairs(self, query_CSD: Tensor, candidate_CKD: Tensor) -> Tensor:
        """Compare all prepared embeddings with all.

        (C, S, D) and (C, K, D) give (C, S, K).
        """
        raise NotImplementedError

    def all_pairs_backward(
        self, query_CSD: Tensor, candidate_CKD: Tensor, score_CSK: Tensor, grad_CSK: Tensor, out_CKD: Tensor
    ) -> Tensor:
        """Return the gradient of the queries and write that of the candidates.

        Args:
            query_CSD: as compared.
            candidate_CKD: as compared.
            score_CSK: result of ``all_pairs``.
            grad_CSK: gradient of the scores.
            out_CKD: gets the gradient of the candidates; it may not share memory with the inputs.
        """
        del score_CSK
        _, (grad_CSD, grad_CKD) = differentiate(self.all_pairs, (query_CSD, candidate_CKD), grad_CSK)
        out_CKD.copy_(grad_CKD)
        return grad_CSD


class Product(Protocol):
    """Product of batches of matrices, as of ``torch.bmm``."""

    def __call__(self, a_CSD: Tensor, b_CDK: Tensor, /, *, out: Tensor | None = None) -> Tensor:
        """Return the product (C, S, K), in ``out`` if it is given."""
        ...


def bfloat16_product(a_CSD: Tensor, b_CDK: Tensor, /, *, out: Tensor | None = None) -> Tensor:
    """Multiply numbers rounded to bfloat16, summed in the original precision.

    A CPU converts the rounded numbers back before it multiplies them: the result is the same, but there is no gain in
    speed.
    """
    wide = a_CSD.dtype
    a_CSD, b_CDK = a_CSD.bfloat16(), b_CDK.bfloat16()
    if a_CSD.device.type == "cpu":
        return torch.bmm(a_CSD.to(wide), b_CDK.to(wide), out=out)
    product_CSK = torch.bmm(a_CSD, b_CDK, out_dtype=wide)
    return product_CSK if out is None else out.copy_(product_CSK)


class ForwardComparator(Comparator):
    """Comparator that is given as its ``all_pairs`` function."""

    def __init__(self, forward: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._forward = forward

    def all_pairs(self, query_CSD: Tensor, candidate_CKD: Tensor) -> Tensor:
        return self._forward(query_CSD, candidate_CKD)


class Dot(Comparator):
    """Inner product (``dot``).

    Args:
        product: multiplies batches of matrices.
    """

    facts = facts_of_built_in.DOT

    def __init__(self, product: Product = torch.bmm) -> None:
        self._product = product

    def pairs(self, a_ND: Tensor, b_ND: Tensor) -> Tensor:
        return (a_ND * b_ND).sum(-1)

    def pairs_backward(self, a_ND: Tensor, b_ND: Tensor, score_N: Tensor, grad_N: Tensor) -> tuple[Tensor, Tensor]:
        del score_N
        grad_N1 = grad_N.unsqueeze(-1)
        return grad_N1 * b_ND, grad_N1 * a_ND

    def all_pairs(self, query_CSD: Tensor, candidate_CKD: Tensor) -> Tensor:
        return self._product(query_CSD, candidate_CKD.transpose(1, 2))

    def all_pairs_backward(
        self, query_CSD: Tensor, candidate_CKD: Tensor, score_CSK: Tensor, grad_CSK: Tensor, out_CKD: Tensor
    ) -> Tensor:
        del score_CSK
        self._product(grad_CSK.transpose(1, 2), query_CSD, out=out_CKD)
        return self._product(grad_CSK, candidate_CKD)


class Cosine(Dot):
    """Inner product of normalised embeddings (``cos``).

    A zero vector has the score 0 with any other (PBG gives NaN).
    """

    facts = facts_of_built_in.COS

    def prepare(self, x_ND: Tensor) -> Tensor:
        return x_ND / self._norm(x_ND)

    def prepare_backward(self, x_ND: Tensor, ready_ND: Tensor, grad_ND: Tensor) -> Tensor:
        along_N1 = (grad_ND * ready_ND).sum(-1, keepdim=True)
        return torch.addcmul(grad_ND, ready_ND, along_N1, value=-1).div_(self._norm(x_ND))

    @staticmethod
    def _norm(x_ND: Tensor) -> Tensor:
        norm = x_ND.norm(dim=-1, keepdim=True)
        return torch.where(norm > 0, norm, torch.ones_like(norm))


class SquaredL2(Comparator):
    """Minus the squared distance (``squared_l2``)."""

    facts = facts_of_built_in.SQUARED_L2

    def pairs(self, a_ND: Tensor, b_ND: Tensor) -> Tensor:
        return -(a_ND - b_ND).square().sum(-1)

    def pairs_backward(self, a_ND: Tensor, b_ND: Tensor, score_N: Tensor, grad_N: Tensor) -> tuple[Tensor, Tensor]:
        del score_N
        grad_a = (-2 * grad_N).unsqueeze(-1) * (a_ND - b_ND)
        return grad_a, -grad_a

    def all_pairs(self, query_CSD: Tensor, candidate_CKD: Tensor) -> Tensor:
        return -self._squared_distances(query_CSD, candidate_CKD)

    def all_pairs_backward(
        self, query_CSD: Tensor, candidate_CKD: Tensor, score_CSK: Tensor, grad_CSK: Tensor, out_CKD: Tensor
    ) -> Tensor:
        del score_CSK
        grad_CSK = -2 * grad_CSK
        torch.mul(candidate_CKD, grad_CSK.sum(1).unsqueeze(-1), out=out_CKD)
        out_CKD.baddbmm_(grad_CSK.transpose(1, 2), query_CSD, alpha=-1)
        grad_query = query_CSD * grad_CSK.sum(2, keepdim=True)
        return grad_query.baddbmm_(grad_CSK, candidate_CKD, alpha=-1)

    @staticmethod
    def _squared_distances(query_CSD: Tensor, candidate_CKD: Tensor) -> Tensor:
        """Return |q|^2 - 2 q.c + |c|^2 for all pairs.

        It takes one matrix product.
        """
        squares_C1K = candidate_CKD.square().sum(-1).unsqueeze(1)
        products = torch.baddbmm(squares_C1K, query_CSD, candidate_CKD.transpose(1, 2), alpha=-2)
        return products.add_(query_CSD.square().sum(-1, keepdim=True))


class L2(SquaredL2):
    """Minus the distance (``l2``)."""

    facts = facts_of_built_in.L2

    def pairs(self, a_ND: Tensor, b_ND: Tensor) -> Tensor:
        return -(-super().pairs(a_ND, b_ND)).clamp_min(_TINY).sqrt()

    def pairs_backward(self, a_ND: Tensor, b_ND: Tensor, score_N: Tensor, grad_N: Tensor) -> tuple[Tensor, Tensor]:
        return super().pairs_backward(a_ND, b_ND, score_N, self._root_backward(score_N, grad_N))

    def all_pairs(self, query_CSD: Tensor, candidate_CKD: Tensor) -> Tensor:
        return self._squared_distances(query_CSD, candidate_CKD).clamp_min_(_TINY).sqrt_().neg_()

    def all_pairs_backward(
        self, query_CSD: Tensor, candidate_CKD: Tensor, score_CSK: Tensor, grad_CSK: Tensor, out_CKD: Tensor
    ) -> Tensor:
        grad = self._root_backward(score_CSK, grad_CSK)
        return super().all_pairs_backward(query_CSD, candidate_CKD, score_CSK, grad, out_CKD)

    @staticmethod
    def _root_backward(score: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient of -s from that of -sqrt(s).

        It is multiplied by one over twice the distance, and by 0 where the distance was clamped.
        """
        distance = -score
        return torch.where(distance > _TINY**0.5, grad / (2 * distance), torch.zeros_like(grad))


class Biased(Comparator):
    """Comparator with a bias (``bias``).

    Dimension 0 of both embeddings is added to the score, and the others are compared.
    """

    def __init__(self, base: Comparator) -> None:
        self._base = base

    def prepare(self, x_ND: Tensor) -> Tensor:
        return torch.cat((x_ND[..., :1], self._base.prepare(x_ND[..., 1:])), dim=-1)

    def prepare_backward(self, x_ND: Tensor, ready_ND: Tensor, grad_ND: Tensor) -> Tensor:
        rest = self._base.prepare_backward(x_ND[..., 1:], ready_ND[..., 1:], grad_ND[..., 1:])
        return torch.cat((grad_ND[..., :1], rest), dim=-1)

    def pairs(self, a_ND: Tensor, b_ND: Tensor) -> Tensor:
        return self._base.pairs(a_ND[..., 1:], b_ND[..., 1:]) + a_ND[..., 0] + b_ND[..., 0]

    def pairs_backward(self, a_ND: Tensor, b_ND: Tensor, score_N: Tensor, grad_N: Tensor) -> tuple[Tensor, Tensor]:
        score = score_N - a_ND[..., 0] - b_ND[..., 0]
        grads = self._base.pairs_backward(a_ND[..., 1:], b_ND[..., 1:], score, grad_N)
        first, second = (torch.cat((grad_N.unsqueeze(-1), grad), dim=-1) for grad in grads)
        return first, second

    def all_pairs(self, query_CSD: Tensor, candidate_CKD: Tensor) -> Tensor:
        scores = self._base.all_pairs(query_CSD[..., 1:].contiguous(), candidate_CKD[..., 1:].contiguous())
        return scores.add_(query_CSD[..., :1]).add_(candidate_CKD[..., 0].unsqueeze(1))

    def all_pairs_backward(
        self, query_CSD: Tensor, candidate_CKD: Tensor, score_CSK: Tensor, grad_CSK: Tensor, out_CKD: Tensor
    ) -> Tensor:
        score_CSK = score_CSK - query_CSD[..., :1] - candidate_CKD[..., 0].unsqueeze(1)
        out_CKD[..., 0] = grad_CSK.sum(1)
        rest = self._base.all_pairs_backward(
            query_CSD[..., 1:].contiguous(), candidate_CKD[..., 1:].contiguous(), score_CSK, grad_CSK, out_CKD[..., 1:]
        )
        return torch.cat((grad_CSK.sum(2, keepdim=True), rest), dim=-1)


COMPARATORS: dict[str, Comparator] = {
    "dot": Dot(),
    "cos": Cosine(),
    "l2": L2(),
    "squared_l2": SquaredL2(),
}
BFLOAT16: dict[str, Comparator] = {"dot": Dot(bfloat16_product), "cos": Cosine(bfloat16_product)}
