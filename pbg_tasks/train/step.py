"""One side of one training step: scores of a batch's edges and negatives, the loss, and every gradient, without autograd.

A side is what is corrupted. With dynamic relations the operator works on the known end (a second set of operators serves
the other direction), in standard mode always on the right-hand end, known or corrupted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from pbg_tasks.model.losses import LOSSES
from pbg_tasks.model.negatives import MASKED, ChunkPlan, mask_own

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.model.comparators import Comparator
    from pbg_tasks.model.operators import Operator


@dataclass(frozen=True, slots=True)
class Relation:
    """An operator with its parameters as they are applied to N rows: shared, or gathered one a row."""

    operator: Operator
    params: dict[str, Tensor] = field(default_factory=dict)


class Rows(NamedTuple):
    """Embeddings on their way to the comparator, kept for the way back.

    Attributes:
        raw_ND: as looked up, global embedding added.
        applied_ND: after the operator.
        ready_ND: after the comparator's preparation.
    """

    raw_ND: Tensor
    applied_ND: Tensor
    ready_ND: Tensor


class SideScores(NamedTuple):
    """Scores of one side.

    Attributes:
        positive_B: of the edges.
        negative_BK: of their negatives, masked ones at -1e9.
    """

    positive_B: Tensor
    negative_BK: Tensor


class Scorer:
    """Comparator and loss of a config, applied to one side of a batch."""

    def __init__(self, config: ModelConfig, comparator: Comparator) -> None:
        self.comparator = comparator
        self._loss, self._margin = LOSSES[config.loss_fn], config.margin

    def ready(self, raw_ND: Tensor, relation: Relation | None) -> Rows:
        """Bring looked-up rows to the comparator."""
        applied = relation.operator.forward(raw_ND, relation.params) if relation else raw_ND
        return Rows(raw_ND, applied, self.comparator.prepare(applied))

    def back(self, rows: Rows, relation: Relation | None, grad_ND: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Turn a gradient at the comparator into those of the rows and of the operator's parameters."""
        grad = self.comparator.prepare_backward(rows.applied_ND, grad_ND)
        return (grad, {}) if relation is None else relation.operator.backward(rows.raw_ND, relation.params, grad)


@dataclass(slots=True)
class Side:
    """One corrupted side of a batch.

    Attributes:
        scorer: comparator and loss.
        plan: how the batch is cut into chunks.
        query_BD: prepared known ends.
        own_BD: prepared true ends on the corrupted side.
        drawn_KD: prepared drawn candidates, (C * U, D), or all rows of the table; None when there are none.
        true_B: offsets of the true ends, to mask them among all rows.
        negatives: whether this side has negatives at all.
    """

    scorer: Scorer
    plan: ChunkPlan
    query_BD: Tensor
    own_BD: Tensor
    drawn_KD: Tensor | None
    true_B: Tensor
    negatives: bool
    candidates_CKD: Tensor | None = None
    scores_CSK: Tensor | None = None
    positive_B: Tensor | None = None

    @property
    def _shares_own(self) -> bool:
        return self.plan.kind == "batch_uniform"

    def score(self) -> SideScores:
        """Score the edges and their negatives."""
        plan, comparator = self.plan, self.scorer.comparator
        self.positive_B = comparator.pairs(self.query_BD, self.own_BD)
        if not self.negatives:
            return SideScores(self.positive_B, self.positive_B.new_empty(plan.edges, 0))
        self.candidates_CKD = self._candidates()
        self.scores_CSK = comparator.all_pairs(plan.chunked(self.query_BD), self.candidates_CKD)
        scores = self.scores_CSK.clone() if comparator.needs_scores else self.scores_CSK
        if self._shares_own:
            mask_own(scores, plan)
        elif plan.kind == "all":
            scores[0].scatter_(1, self.true_B.unsqueeze(1), MASKED)
        return SideScores(self.positive_B, plan.flat(scores))

    def _candidates(self) -> Tensor:
        """Return the negatives of every chunk, (C, K, D)."""
        chunks, dimension = self.plan.chunks, self.query_BD.shape[1]
        drawn = None if self.drawn_KD is None else self.drawn_KD.view(chunks, -1, dimension)
        if not self._shares_own:
            if drawn is None:
                raise ValueError("negatives without candidates")
            return drawn
        own = self.plan.chunked(self.own_BD)
        return own if drawn is None else torch.cat((own, drawn), dim=1)

    def backward(self, grad_B: Tensor, grad_BK: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of query_BD, own_BD and drawn_KD from those of the scores."""
        comparator, plan = self.scorer.comparator, self.plan
        positive = self.positive_B if self.positive_B is not None else grad_B
        grad_query, grad_own = comparator.pairs_backward(self.query_BD, self.own_BD, positive, grad_B)
        if self.candidates_CKD is None:
            return grad_query, grad_own, None
        grad_CSK = plan.chunked(grad_BK)
        queries = plan.chunked(self.query_BD)
        scores = self.scores_CSK if comparator.needs_scores else None
        grad_queries, grad_candidates = comparator.all_pairs_backward(queries, self.candidates_CKD, scores, grad_CSK)
        grad_query = grad_query + plan.flat(grad_queries)
        size = plan.size if self._shares_own else 0
        if size:
            grad_own = grad_own + plan.flat(grad_candidates[:, :size])
        drawn = grad_candidates[:, size:]
        return grad_query, grad_own, drawn.reshape(-1, drawn.shape[2]) if drawn.shape[1] else None
