"""Comparison of held-out edges with a tile of scores.

It counts the candidates that are no worse than the true entity. Most scores are only counted. The native library does
so in one pass while the tile is in the cache; the numpy version here is for machines without it, and gives the same
result. Where scores are inner products, the library needs no tile: it multiplies vectors rounded to integers, and
computes in float32 only what the rounding leaves open.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pbg_tasks.errors import ResourceError
from pbg_tasks.native import library
from pbg_tasks.native.abi import RankProducts, RankTile

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pbg_tasks.config.graph import DeviceName

GPU_THREADS = 4
"""Threads that read and prepare candidates for a GPU, which compares one block after another."""
GPU_BLOCK_ROWS = 1 << 16
"""Largest number of candidates that a GPU compares at a time."""
_STEP = 512  # edges that numpy compares at a time; for each, a row of scores is copied


@dataclass(frozen=True, slots=True)
class Asked:
    """N held-out edges that ask Q questions.

    A candidate is worse than the true entity when its score is below ``ties``; a score that is not a number never is.
    The candidate is *close* when its score is from ``ties`` to ``wins``, where rounding may have decided.

    Attributes:
        question: int64 (N,), row of the question each edge asks.
        ties: float32 (N,).
        wins: float32 (N,).
        own: int64 (N,), column of the true entity, which is not counted; -1 where it is not in the tile.
        answer_start: int64 (Q + 1,), position in ``answers`` at which the known answers of each question begin.
        answers: int64, columns.
    """

    question: np.ndarray
    ties: np.ndarray
    wins: np.ndarray
    own: np.ndarray
    answer_start: np.ndarray
    answers: np.ndarray

    def addresses(self, counts: np.ndarray, close: np.ndarray) -> dict[str, int]:
        """Return the fields of a structure of the library, with its results."""
        return {
            "edges": len(self.question),
            "question": _address(self.question, np.int64),
            "ties": _address(self.ties, np.float32),
            "wins": _address(self.wins, np.float32),
            "own": _address(self.own, np.int64),
            "answer_start": _address(self.answer_start, np.int64),
            "answers": _address(self.answers, np.int64),
            "counts": _address(counts, np.int64),
            "close": _address(close, np.int64),
            "capacity": len(close),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile(Asked):
    """Scores of questions against candidates, with the held-out edges.

    Attributes:
        scores: float32 (Q, K).
    """

    scores: np.ndarray


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing a tile.

    Attributes:
        no_worse: int64 (N,), number of candidates that are no worse than each edge's true entity, the close ones
            included.
        known: int64 (N,), number of known answers among them.
        close: int64 (M, 2), edge and column of every close candidate; None when there are too many.
    """

    no_worse: np.ndarray
    known: np.ndarray
    close: np.ndarray | None


def compare(tile: Tile, limit: int) -> Comparison:
    """Compare every candidate with every edge's true entity.

    The close candidates are listed if they are at most ``limit``.
    """
    native = library()
    return _with_numpy(tile, limit) if native is None else _natively(native, tile, limit)


def _natively(native: ctypes.CDLL, tile: Tile, limit: int) -> Comparison:
    counts, close = np.empty((len(tile.question), 2), np.int64), np.empty((limit, 2), np.int64)
    scores = np.ascontiguousarray(tile.scores, np.float32)
    argument = RankTile(scores=_address(scores, np.float32), columns=scores.shape[1], **tile.addresses(counts, close))
    found = native.pbg_rank(ctypes.byref(argument))
    return Comparison(counts[:, 0], counts[:, 1], close[:found] if found <= limit else None)


def compare_products(queries: np.ndarray, candidates: np.ndarray, asked: Asked, limit: int) -> Comparison | None:
    """Compare candidates whose scores are inner products.

    Args:
        queries: float32 (Q, D).
        candidates: float32 (K, D).
        asked: edges by ascending question.
        limit: largest number of close candidates that are listed.

    Returns:
        The same as ``compare`` of the scores; None where a tile of them is needed: without the library, and where the
        scores are too close to each other, or not finite.
    """
    native = library()
    if native is None:
        return None
    counts, close = np.empty((len(asked.question), 2), np.int64), np.empty((limit, 2), np.int64)
    queries, candidates = (np.ascontiguousarray(rows, np.float32) for rows in (queries, candidates))
    argument = RankProducts(
        queries=_address(queries, np.float32),
        candidates=_address(candidates, np.float32),
        questions=len(queries),
        columns=len(candidates),
        dimension=queries.shape[1],
        **asked.addresses(counts, close),
    )
    found = native.pbg_rank_products(ctypes.byref(argument))
    return Comparison(counts[:, 0], counts[:, 1], close[:found]) if 0 <= found <= limit else None


class Products(Protocol):
    """Comparison of candidates whose scores are inner products, as ``compare_products``."""

    def __call__(self, queries: np.ndarray, candidates: np.ndarray, asked: Asked, limit: int, /) -> Comparison | None:
        """Compare a block of candidates."""
        ...


def products_on(device: DeviceName) -> Products:
    """Return the comparison on a device.

    Args:
        device: ``cpu``, ``cuda``, or ``auto``: a GPU where torch finds one.

    Raises:
        ResourceError: there is no GPU.
    """
    if device == "cpu" or (device == "auto" and find_spec("torch") is None):
        return compare_products
    import torch

    if torch.cuda.is_available():
        from pbg_tasks.evaluate.on_gpu import GpuProducts

        return GpuProducts(torch.device("cuda"))
    if device == "auto":
        return compare_products
    from pbg_tasks.model.gpu import missing_gpu

    raise ResourceError(f"eval.device (--device): cuda: {missing_gpu()}; set it to cpu")


def _address(array: np.ndarray, dtype: DTypeLike) -> int:
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise ValueError(f"an array of {array.dtype} with strides {array.strides} where {dtype} in a row is needed")
    return array.ctypes.data


def _with_numpy(tile: Tile, limit: int) -> Comparison:
    no_worse, known = (np.empty(len(tile.question), np.int64) for _ in range(2))
    listed, left = [np.empty((0, 2), np.int64)], limit
    for first in range(0, len(no_worse), _STEP):
        here = slice(first, first + _STEP)
        scores = tile.scores[tile.question[here]]
        worse = scores < tile.ties[here, np.newaxis]
        close = scores <= tile.wins[here, np.newaxis]
        close &= ~worse
        present = np.flatnonzero(tile.own[here] >= 0)
        own = tile.own[here][present]
        worse[present, own], close[present, own] = True, False
        no_worse[here] = scores.shape[1] - _count_rows(worse)
        edge, answer = answers_by_edge(tile, tile.question[here])
        known[here] = np.bincount(edge[~worse[edge, answer]], minlength=len(scores))
        places = np.flatnonzero(close)  # ten times as fast as nonzero on a matrix
        left -= len(places)
        if left >= 0:
            edge, column = np.divmod(places, scores.shape[1])
            listed.append(np.stack((edge + first, column), axis=1))
    return Comparison(no_worse, known, np.concatenate(listed) if left >= 0 else None)


def answers_by_edge(asked: Asked, question: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (position in ``question``, column) of the known answers."""
    start = asked.answer_start[question]
    sizes = asked.answer_start[question + 1] - start
    edge = np.repeat(np.arange(len(sizes)), sizes)
    return edge, asked.answers[np.arange(len(edge)) + np.repeat(start - np.cumsum(sizes) + sizes, sizes)]


def _count_rows(flags: np.ndarray) -> np.ndarray:
    """Count the set flags of each row.

    numpy counts a flat row several times as fast as along an axis.
    """
    return np.fromiter((np.count_nonzero(row) for row in flags), np.int64, len(flags))
