"""Comparison of held-out edges with candidates on a GPU.

Scores are inner products in float32, whose error the range of close scores allows for. Close candidates are settled in
float64 by the host, so the counts are those of the CPU, to the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.errors import ResourceError
from pbg_tasks.evaluate.comparison import Comparison, answers_by_edge

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.evaluate.comparison import Asked

_SCORES = 1 << 26  # computed at a time: 256 MiB


class GpuProducts:
    """Comparison of the form of ``compare_products`` on a device.

    Args:
        device: any device of torch; the CPU serves in tests of the code for others.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.backends.cuda.matmul.fp32_precision = "ieee"  # the range of close scores is float32's

    def __call__(self, queries: np.ndarray, candidates: np.ndarray, asked: Asked, limit: int) -> Comparison | None:
        """Compare candidates whose scores are inner products; see ``compare_products``.

        Raises:
            ResourceError: the GPU has not enough memory for a block of candidates.
        """
        try:
            return self._compare(queries, candidates, asked, limit)
        except torch.OutOfMemoryError as error:
            raise ResourceError(
                "the GPU has not enough memory to rank a block of candidates; lower resources.memory_gb (--memory-gb), "
                "whose blocks are copied to it, or set eval.device (--device) to cpu"
            ) from error

    def _compare(self, queries: np.ndarray, candidates: np.ndarray, asked: Asked, limit: int) -> Comparison | None:
        query_QD, candidate_KD, ties_N, wins_N, own_N = map(
            self._put, (queries, candidates, asked.ties, asked.wins, asked.own)
        )
        counts, listed = np.empty((2, len(asked.question)), np.int64), [np.empty((0, 2), np.int64)]
        step, left = max(_SCORES // len(candidates), 1), limit
        for first in range(0, len(asked.question), step):
            here = slice(first, first + step)
            question = asked.question[here]
            rows, of_edge = np.unique(question, return_inverse=True)
            score_NK = (query_QD[self._put(rows)] @ candidate_KD.T)[self._put(of_edge)]
            worse_NK = score_NK < ties_N[here, None]
            close_NK = (score_NK <= wins_N[here, None]) & ~worse_NK
            column_N1 = own_N[here, None].clamp_min(0)
            present_N1 = own_N[here, None] >= 0
            worse_NK.scatter_(1, column_N1, worse_NK.gather(1, column_N1) | present_N1)
            close_NK.scatter_(1, column_N1, close_NK.gather(1, column_N1) & ~present_N1)
            counts[0, here] = len(candidates) - worse_NK.sum(1).cpu().numpy()
            edge, answer = answers_by_edge(asked, question)
            answer_is_worse = worse_NK[self._put(edge), self._put(answer)].cpu().numpy()
            counts[1, here] = np.bincount(edge[~answer_is_worse], minlength=len(question))
            left -= int(close_NK.count_nonzero())
            if left < 0:
                return None
            listed.append(close_NK.nonzero().cpu().numpy() + np.array((first, 0)))
        return Comparison(counts[0], counts[1], np.concatenate(listed))

    def _put(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self._device)
