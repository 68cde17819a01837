"""Masks for negatives that are training edges (``mask_known_negatives``, not PBG's).

A drawn entity, or the end of another edge, may complete an edge to one that is just as true. PBG trains against it
nevertheless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pbg_tasks.model.negatives import MASKED

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.model.negatives import ChunkPlan
    from pbg_tasks.model.parameters import Side


@dataclass(frozen=True, slots=True)
class _Answers:
    """Entities that complete (relation, known end), for one corrupted side.

    Attributes:
        questions: int64 (Q,), ``relation * span + known end``, ascending.
        starts: int64 (Q + 1,), index of each question's first answer.
        answers: int64 (M,), ascending within a question.
        span: a number above every offset.
    """

    questions: np.ndarray
    starts: np.ndarray
    answers: np.ndarray
    span: int

    @classmethod
    def of(cls, rel: np.ndarray, known: np.ndarray, asked: np.ndarray) -> _Answers:
        span = int(max(known.max(initial=0), asked.max(initial=0))) + 1
        keys = rel * span + known
        order = np.lexsort((asked, keys))
        questions, starts = np.unique(keys[order], return_index=True)
        return cls(questions, np.append(starts, len(keys)), asked[order], span)

    def ranges(self, rel: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return start and stop of the answers to training edges' questions."""
        place = np.searchsorted(self.questions, rel * self.span + known)
        return self.starts[place], self.starts[place + 1]


class KnownEdges:
    """Index of a bucket's edges, in which negatives are found.

    Args:
        edges: all that are trained; ends with features (id -1) answer no question.
    """

    def __init__(self, edges: EdgeList) -> None:
        edges = edges.select((edges.lhs >= 0) & (edges.rhs >= 0))
        self._answers: dict[Side, _Answers] = {
            "lhs": _Answers.of(edges.rel, edges.rhs, edges.lhs),
            "rhs": _Answers.of(edges.rel, edges.lhs, edges.rhs),
        }

    def mask(
        self,
        side: Side,
        score_BK: Tensor,
        plan: ChunkPlan,
        *,
        rel_B: np.ndarray,
        known_B: np.ndarray,
        own_B: np.ndarray,
        drawn: np.ndarray | None,
    ) -> None:
        """Mask the scores of negatives that are known edges, in place.

        Args:
            side: the corrupted side.
            score_BK: scores in the order of the candidates: the chunk's own entities, if the plan has them, then the
                drawn ones.
            plan: chunks of the batch.
            rel_B: relation ids.
            known_B: the other ends.
            own_B: the true ends.
            drawn: int64 (C * U,), None without drawn ones; not used where all entities are candidates.
        """
        found = self._answers[side]
        start, stop = found.ranges(rel_B, known_B)
        if plan.kind == "all":
            row, answer = _expanded(start, stop, found.answers)
            score_BK[torch.from_numpy(row), torch.from_numpy(answer)] = MASKED
            return
        candidates = self._candidates(plan, own_B, drawn)
        if not candidates.shape[1]:
            return
        few = stop - start <= candidates.shape[1]
        for rows, look_up in ((np.flatnonzero(few), _by_answer), (np.flatnonzero(~few), _by_candidate)):
            if len(rows):
                row, column = look_up(found, start[rows], stop[rows], candidates, rows // plan.size)
                score_BK[torch.from_numpy(rows[row]), torch.from_numpy(column)] = MASKED

    @staticmethod
    def _candidates(plan: ChunkPlan, own_B: np.ndarray, drawn: np.ndarray | None) -> np.ndarray:
        """Return the candidates of each chunk, int64 (C, K).

        Padding is -1, which is no entity.
        """
        parts = []
        if plan.kind == "batch_uniform":
            padded = np.concatenate((own_B, np.full(plan.padding, -1, np.int64)))
            parts.append(padded.reshape(plan.chunks, plan.size))
        if drawn is not None:
            parts.append(drawn.reshape(plan.chunks, -1))
        return np.concatenate(parts, axis=1) if parts else np.empty((plan.chunks, 0), np.int64)


def _expanded(start: np.ndarray, stop: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, answer) of every answer of every row's question."""
    sizes = stop - start
    row = np.repeat(np.arange(len(sizes)), sizes)
    within = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return row, answers[start[row] + within]


def _by_answer(
    found: _Answers, start: np.ndarray, stop: np.ndarray, candidates: np.ndarray, chunk: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find each answer among the candidates of its row's chunk.

    Returns:
        Row and column of the hits.
    """
    keys = (candidates + np.arange(len(candidates))[:, np.newaxis] * found.span).ravel()
    # No answer reaches the span, and such a candidate would have the key of one of a later chunk.
    keys[(candidates.ravel() < 0) | (candidates.ravel() >= found.span)] = -1
    order = np.argsort(keys, kind="stable")
    row, answer = _expanded(start, stop, found.answers)
    wanted = chunk[row] * found.span + answer
    ordered = keys[order]
    first, last = np.searchsorted(ordered, wanted), np.searchsorted(ordered, wanted, side="right")
    hit = np.flatnonzero(last > first)
    which, place = _expanded(first[hit], last[hit], order)
    return row[hit][which], place % candidates.shape[1]


def _by_candidate(
    found: _Answers, start: np.ndarray, stop: np.ndarray, candidates: np.ndarray, chunk: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find each candidate among its row's answers, where these are more.

    Returns:
        Row and column of the hits.
    """
    rows, columns = [], []
    for row, (begin, end) in enumerate(zip(start, stop, strict=True)):
        answers, asked = found.answers[begin:end], candidates[chunk[row]]
        place = np.minimum(np.searchsorted(answers, asked), len(answers) - 1)
        column = np.flatnonzero(answers[place] == asked)
        rows.append(np.full(len(column), row))
        columns.append(column)
    return np.concatenate(rows), np.concatenate(columns)
