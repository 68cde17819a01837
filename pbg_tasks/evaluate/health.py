"""Health of a table of embeddings.

It finds rows that are not numbers, rows of zeros, and a collapse to one direction.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import JsonValue

COLLAPSE = 0.99
SAMPLE_ROWS = 1024
_ROWS = 512


@dataclass(frozen=True, slots=True)
class Health:
    """Health of the embeddings of one entity type.

    Figures that need a usable row are None without one.

    Attributes:
        rows: number of rows.
        non_finite: rows with a NaN or an infinity.
        zero: rows of zeros.
        cosine: mean cosine between the usable rows of a sample, 1 when all point the same way.
        norm_min: smallest norm of the finite rows.
        norm_median: median norm of the finite rows.
        norm_max: largest norm of the finite rows.
    """

    rows: int
    non_finite: int
    zero: int
    cosine: float | None
    norm_min: float | None
    norm_median: float | None
    norm_max: float | None

    @classmethod
    def of(cls, blocks: Iterable[np.ndarray], *, seed: int = 0) -> Self:
        """Inspect embeddings, one block at a time.

        Besides the block, one number a row is kept in memory.

        Args:
            blocks: float32 (<= K, D) each. ``formats.embeddings.iter_blocks`` gives those of a file, but itself refuses
                one with rows that are not finite.
            seed: of the sample.
        """
        norms, reservoir = [np.empty(0)], _Sample(seed)
        for block in blocks:
            # In pieces that stay in the cache; float32 would overflow.
            pieces = (block[start : start + _ROWS] for start in range(0, max(len(block), 1), _ROWS))
            norm = np.sqrt(np.concatenate([np.square(piece, dtype=np.float64).sum(axis=1) for piece in pieces]))
            norms.append(norm)
            usable = np.isfinite(norm) & (norm > 0)
            reservoir.add(block, norm, np.flatnonzero(usable))
        every = np.concatenate(norms)
        finite = every[np.isfinite(every)]
        low, median, high = np.quantile(finite, (0, 0.5, 1)).tolist() if len(finite) else (None, None, None)
        return cls(
            len(every), len(every) - len(finite), int((finite == 0).sum()), reservoir.cosine(), low, median, high
        )

    def problems(self) -> list[str]:
        """Return a sentence for each problem."""
        found = []
        if self.non_finite:
            found.append(f"{self.non_finite} of {self.rows} embeddings are not finite")
        if self.zero:
            found.append(f"{self.zero} of {self.rows} embeddings are zero")
        if self.cosine is not None and self.cosine > COLLAPSE:
            found.append(f"the embeddings have collapsed: their mean cosine is {self.cosine:.4f}")
        return found

    def to_json(self) -> dict[str, JsonValue]:
        """Return plain JSON values."""
        rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return rounded | {"problems": self.problems()}


class _Sample:
    """Uniform sample of a stream of unit vectors.

    It has the vectors with the smallest of random marks.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._marks, self._rows = np.empty(0), np.empty((0, 0))

    def add(self, block: np.ndarray, norm: np.ndarray, usable: np.ndarray) -> None:
        """Add the usable rows of a block.

        Only those that stay are made unit vectors.

        Args:
            block: float32 (K, D).
            norm: float64 (K,), of its rows.
            usable: int64, its usable rows.
        """
        before = len(self._rows)
        drawn = self._rng.random(len(usable))
        if before == SAMPLE_ROWS:  # a mark above all of these is not kept
            low = np.flatnonzero(drawn < self._marks[-1])
            drawn, usable = drawn[low], usable[low]
        marks = np.concatenate((self._marks, drawn))
        kept = np.argsort(marks)[:SAMPLE_ROWS]
        rows, old = np.empty((len(kept), block.shape[1])), kept < before
        new = usable[kept[~old] - before]
        rows[~old] = block[new] / norm[new, np.newaxis]
        if before:
            rows[old] = self._rows[kept[old]]
        self._marks, self._rows = marks[kept], rows

    def cosine(self) -> float | None:
        """Return the mean cosine over all pairs; None without a pair.

        It follows from the length of the vectors' sum.
        """
        count = len(self._rows)
        if count < 2:  # noqa: PLR2004 - a pair
            return None
        return float((np.square(self._rows.sum(axis=0)).sum() - count) / (count * (count - 1)))
