"""Drift: the distance between the vectors of two nights.

It is measured by the cosine of each entity that both nights know, and summarised by degree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

if TYPE_CHECKING:
    from pbg_tasks.evaluate.tables import EntityTable
    from pbg_tasks.model.similarity import Similarity

BLOCK_ROWS = 1 << 14
ALIGNED_ROWS = 1 << 15
"""Number of rows of a type to which a rotation is fitted."""
_ROWS_PER_DIMENSION = 10
"""Least rows for each dimension: a rotation fitted to fewer would make different vectors look alike."""
_DECILES = 10


@dataclass(frozen=True, slots=True)
class View:
    """Embeddings of one type in one night.

    Attributes:
        table: of the entities that both nights know, numbered as tonight.
        similarity: compares them.
    """

    table: EntityTable
    similarity: Similarity


def aligned(now: View, before: View, known: np.ndarray, seed: int) -> torch.Tensor | None:
    """Return the rotation that brings the earlier vectors nearest to tonight's.

    It solves the orthogonal Procrustes problem (Schoenemann 1966) on unit vectors of a sample.

    Args:
        now: tonight.
        before: the other night.
        known: int64 (C,), ascending numbers of the entities that both know.
        seed: of the sample.

    Returns:
        float32 (D, D), or None where vectors have other dimensions or are too few for a fit.
    """
    rng = np.random.default_rng(seed)
    count = min(len(known), ALIGNED_ROWS)
    chosen = np.sort(rng.choice(known, size=count, replace=False)) if count < len(known) else known
    now_SD, before_SD = (
        torch.nn.functional.normalize(view.similarity.vectors(view.table.gather(chosen, BLOCK_ROWS)), dim=1)
        for view in (now, before)
    )
    dimension = now_SD.shape[1]
    if before_SD.shape[1] != dimension or count < _ROWS_PER_DIMENSION * dimension:
        return None
    left, _, right = torch.linalg.svd((before_SD.T @ now_SD).double())
    rotation_DD: torch.Tensor = (left @ right).float()
    return rotation_DD


def cosines(now: View, before: View, total: int, rotation_DD: torch.Tensor | None = None) -> np.ndarray:
    """Return the cosine between the vectors of each entity: float32 (N,).

    It is NaN for entities that only one night knows.

    Args:
        now: tonight.
        before: the other night.
        total: number of tonight's entities, N.
        rotation_DD: applied first to the vectors of ``before``.
    """
    found_N = np.full(total, np.nan, np.float32)
    for ours, theirs in zip(now.table.blocks(BLOCK_ROWS), before.table.blocks(BLOCK_ROWS), strict=True):
        now_KD, before_KD = (
            view.similarity.vectors(torch.from_numpy(block.rows)) for view, block in ((now, ours), (before, theirs))
        )
        if rotation_DD is not None:
            before_KD = before_KD @ rotation_DD
        found_N[ours.numbers] = torch.nn.functional.cosine_similarity(now_KD, before_KD).numpy()
    return found_N


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of figures; all None where there are none."""

    mean: float | None
    p01: float | None
    p05: float | None
    median: float | None

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Summarise figures, without those that are NaN."""
        values = values[~np.isnan(values)]
        if not len(values):
            return cls(None, None, None, None)
        low, lower, middle = np.quantile(values, (0.01, 0.05, 0.5)).tolist()
        return cls(*(round(float(value), 6) for value in (values.mean(dtype=np.float64), low, lower, middle)))


def mean(values: np.ndarray) -> float | None:
    """Return the mean of figures, without those that are NaN.

    None is returned where there is none.
    """
    return Spread.of(values).mean


def by_degree(degree: np.ndarray, cosine: np.ndarray, overlap: np.ndarray) -> list[dict[str, Any]]:
    """Summarise drift by deciles of degree.

    Entities of one degree are in one decile, that of their lowest rank, so some deciles may be empty: those are left
    out.

    Args:
        degree: int64 (C,), tonight's edges of each entity both nights know.
        cosine: float32 (C,), NaN where there is none.
        overlap: same.
    """
    decile = np.searchsorted(np.sort(degree), degree) * _DECILES // max(len(degree), 1)
    rows = []
    for number in np.unique(decile).tolist():
        own = decile == number
        rows.append(
            {
                "decile": number + 1,
                "min_degree": int(degree[own].min()),
                "max_degree": int(degree[own].max()),
                "entities": int(own.sum()),
                "cosine": mean(cosine[own]),
                "overlap": mean(overlap[own]),
            }
        )
    return rows
