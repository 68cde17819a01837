"""Edges of a batch against their negatives, on one corrupted side."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from pbg_tasks.model.negatives import MASKED, mask_own, mask_true

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.model.negatives import ChunkPlan
    from pbg_tasks.training.engine.rows import Rows


class _Block(NamedTuple):
    """Candidates of every chunk, with their scores.

    Attributes:
        rows: source of the candidates.
        candidate_CKD: candidates after operator and preparation.
        score_CSK: scores before masking.
    """

    rows: Rows
    candidate_CKD: Tensor
    score_CSK: Tensor


class CorruptedSide:
    """Scores of edges and of their negatives.

    Args:
        plan: chunks of the batch.
        query: known ends, (B, D).
        own: true ends of the corrupted side, (B, D).
        drawn: other candidates, (C * K, D).
        true_B: offsets of the true ends, to mask them when the candidates are all entities.
        negatives: whether this side has negatives.
        selves: the known ends as candidates, (B, D), each for its own edge only; None: not used.
        self_B: bool, edges for which they are candidates.

    Attributes:
        positive_B: scores of the edges.
        negative_BK: scores of their negatives, masked ones at -1e9; K may be 0.
    """

    def __init__(
        self,
        plan: ChunkPlan,
        query: Rows,
        own: Rows,
        drawn: Rows | None,
        true_B: Tensor,
        *,
        negatives: bool,
        selves: Rows | None = None,
        self_B: Tensor | None = None,
    ) -> None:
        self._plan, self._query = plan, query
        self._own = own
        self._comparator = query.comparator
        self.positive_B = self._comparator.pairs(query.ready_ND, own.ready_ND)
        self._query_CSD = plan.chunked(query.ready_ND)
        self._blocks: list[_Block] = []
        if negatives and plan.kind == "batch_uniform":
            self._compare(own, plan.chunked(own.ready_ND))
        if drawn is not None:
            self._compare(drawn, drawn.ready_ND.view(plan.chunks, -1, drawn.ready_ND.shape[1]))
        self._selves = selves if negatives else None
        if self._selves is not None:
            self._self_score_B = self._comparator.pairs(query.ready_ND, self._selves.ready_ND)
        self.negative_BK = self._masked(true_B, self_B) if self._blocks else self.positive_B.new_empty(plan.edges, 0)

    def _compare(self, rows: Rows, candidate_CKD: Tensor) -> None:
        self._blocks.append(_Block(rows, candidate_CKD, self._comparator.all_pairs(self._query_CSD, candidate_CKD)))

    def _masked(self, true_B: Tensor, self_B: Tensor | None) -> Tensor:
        plan, scores = self._plan, [block.score_CSK for block in self._blocks]
        if self._selves is not None and self_B is not None:
            score_B1 = self._self_score_B.masked_fill(~self_B, MASKED).unsqueeze(1)
            scores.append(plan.chunked(score_B1))
        score_CSK = torch.cat(scores, dim=2)
        if plan.kind == "batch_uniform":
            mask_own(score_CSK[:, :, : plan.size], plan)
        negative_BK = plan.flat(score_CSK)
        if plan.kind == "all":
            mask_true(negative_BK, true_B)
        return negative_BK

    def backward(self, grad_B: Tensor, grad_BK: Tensor, drawn_place: Tensor | None) -> None:
        """Add the gradients of the compared rows to their collections.

        Args:
            grad_B: gradient of ``positive_B``.
            grad_BK: gradient of ``negative_BK``.
            drawn_place: memory for the gradient of the drawn rows, (C * K, D).
        """
        plan = self._plan
        grad_query, grad_own = self._comparator.pairs_backward(
            self._query.ready_ND, self._own.ready_ND, self.positive_B, grad_B
        )
        self._query.add(grad_query)
        self._own.add(grad_own)
        if not self._blocks:
            return
        widths = [block.score_CSK.shape[2] for block in self._blocks]
        if self._selves is not None:
            self._send_to_selves(self._selves, grad_BK[:, -1])
            grad_BK = grad_BK[:, :-1]
        edge_chunks = torch.split_with_sizes(plan.chunked(grad_BK), widths, dim=2)
        for block, edge_chunk in zip(self._blocks, edge_chunks, strict=True):
            drawn = block.rows is not self._own
            place = drawn_place if drawn and drawn_place is not None else torch.empty_like(block.candidate_CKD)
            out = place.view(block.candidate_CKD.shape)
            grad_CSD = self._comparator.all_pairs_backward(
                self._query_CSD, block.candidate_CKD, block.score_CSK, edge_chunk.contiguous(), out
            )
            self._query.add(plan.flat(grad_CSD))
            block.rows.add(place if drawn else plan.flat(out))

    def _send_to_selves(self, selves: Rows, grad_B: Tensor) -> None:
        grad_query, grad_self = self._comparator.pairs_backward(
            self._query.ready_ND, selves.ready_ND, self._self_score_B, grad_B
        )
        self._query.add(grad_query)
        selves.add(grad_self)
