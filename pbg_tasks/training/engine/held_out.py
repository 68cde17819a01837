"""PBG's evaluation during training.

Some edges of each bucket are held out, and ranked before and after the bucket is trained. They depend on the seed, the
edge path, the chunk and the bucket alone, so that they are the same edges every epoch and are never trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.formats.directory import EvalStats
from pbg_tasks.memory.steps import held_out_batch
from pbg_tasks.model.negatives import MASKED

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.model.parameters import Side

HITS = (1, 10, 50)


def held_out_count(edges: int, fraction: float) -> int:
    """Return the number of an edge chunk's edges that are held out."""
    return int(edges * fraction)


def split_off(edges: EdgeList, fraction: float, generator: torch.Generator) -> tuple[EdgeList, EdgeList]:
    """Split edges into those to train and a ``fraction`` to evaluate.

    The fraction is rounded down. The two parts are disjoint and together have all edges.
    """
    count = held_out_count(len(edges), fraction)
    if not count:
        return edges, edges.select(np.empty(0, np.int64))
    held = torch.zeros(len(edges), dtype=torch.bool)
    held[torch.randperm(len(edges), generator=generator)[:count]] = True
    flags = held.numpy()
    return edges.select(~flags), edges.select(flags)


def evaluation_config(config: ModelConfig) -> ModelConfig:
    """Return the config with PBG's negatives of the evaluation.

    They are ``eval_num_*``, where null means those of training. So do two zeros, which are refused beside
    ``eval_fraction``: early stopping ranks its sample all the same. Batches are those of ``held_out_batch``.
    """
    trained = config.model_copy(update={"regularization_coef": 0.0, "self_negatives": False})
    own = {"num_batch_negs": config.eval_num_batch_negs, "num_uniform_negs": config.eval_num_uniform_negs}
    found = trained.model_copy(update={key: value for key, value in own.items() if value is not None})
    chosen = found if found.num_batch_negs or found.num_uniform_negs else trained
    return chosen.model_copy(update={"batch_size": held_out_batch(config, chosen.num_batch_negs)})


@dataclass(slots=True)
class Ranking:
    """Ranks of edges from the scores of a batch (PBG's RankingEvaluator).

    A negative that ties with its edge counts as better. AUC compares each edge with one random negative of its side. A
    side without negatives counts nothing.

    Attributes:
        generator: draws the negatives of the AUC.
        sums: float64, sums over all ranks: of the ranks, of 1 / rank, of ranks up to each of ``HITS``, of edges that
            score above their random negative, of ranks whose negatives are all masked; and the number of ranks.
    """

    generator: torch.Generator
    sums: Tensor

    @classmethod
    def start(cls, generator: torch.Generator) -> Ranking:
        """Return a ranking without ranks."""
        return cls(generator, torch.zeros(5 + len(HITS), dtype=torch.float64))

    def add(self, side: Side, positive_B: Tensor, negative_BK: Tensor) -> None:
        """Rank the edges of a batch on one side."""
        del side
        if not negative_BK.shape[1]:
            return
        rank_B = 1 + (negative_BK >= positive_B.unsqueeze(1)).sum(1)
        alone_B = negative_BK.amax(1) <= MASKED / 2
        beaten = positive_B.new_full((), len(positive_B))
        if not alone_B.all():
            beaten = (positive_B > self._drawn(negative_BK.flatten(), len(positive_B))).sum()
        hits = [(rank_B <= k).sum() for k in HITS]
        self.sums[:-1] += torch.stack([rank_B.sum(), (1 / rank_B).sum(), *hits, beaten, alone_B.sum()]).double().cpu()
        self.sums[-1] += len(positive_B)

    def _drawn(self, scores_N: Tensor, count: int) -> Tensor:
        """Draw scores that are not masked.

        Those that are masked are drawn again: to gather all others first takes longer than the ranking.
        """
        drawn = scores_N.new_full((count,), MASKED)
        while left := int((masked := drawn < MASKED / 2).sum()):
            places = torch.randint(len(scores_N), (left,), generator=self.generator)
            drawn[masked] = scores_N[places.to(scores_N.device)]
        return drawn

    def join(self, sums: Tensor) -> None:
        """Add the sums of another ranking."""
        self.sums += sums

    @property
    def alone(self) -> int:
        """Number of ranks without a negative, which are 1 as in PBG."""
        return int(self.sums[-2])

    def stats(self, count: int, loss: float) -> EvalStats:
        """Return the means over all ranks.

        ``loss`` is the sum over ``count`` edges.
        """
        pos_rank, mrr, r1, r10, r50, auc, _ = (self.sums[:-1] / self.sums[-1].clamp(min=1)).tolist()
        return EvalStats(count, loss / max(count, 1), pos_rank, mrr, r1, r10, r50, auc)
