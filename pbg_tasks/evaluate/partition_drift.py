"""Drift of one partition's vectors, as a part stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.evaluate.drift import BLOCK_ROWS, NEIGHBOURS, Nearest, cosines, in_step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from pbg_tasks.evaluate.drift import NeighbourSearch, View


@dataclass(frozen=True, slots=True)
class PartitionDrift:
    """Movement of the vectors of one partition.

    Attributes:
        cosine: float32 (C,), of the entities that both nights know, by number; (0,) where no rotation makes the vectors
            of the two nights comparable.
        now: nearest candidates of the partition tonight.
        before: same of the other night.
    """

    cosine: np.ndarray
    now: Nearest
    before: Nearest

    @classmethod
    def of(
        cls,
        now: View,
        before: View,
        searches: Sequence[NeighbourSearch],
        *,
        comparable: bool,
        rotation_DD: np.ndarray | None = None,
        among: np.ndarray | None = None,
    ) -> Self:
        """Compare the candidates of two views, in one pass over both.

        Args:
            now: tonight, with the candidates of one partition.
            before: the other night, with the same.
            searches: of neighbours, in both nights.
            comparable: whether cosines mean anything.
            rotation_DD: applied first to the vectors of ``before``.
            among: ascending numbers of the candidates that may be neighbours; None: all.
        """
        cosine = [np.empty(0, np.float32)]
        for search in searches:
            search.begin()
        for both in in_step(now.table.blocks(BLOCK_ROWS), before.table.blocks(BLOCK_ROWS)):
            if comparable:
                cosine.append(cosines(now, before, *both, rotation_DD))
            for search, block in zip(searches, both, strict=True):
                search.add(block if among is None else block.among(among))
        return cls(np.concatenate(cosine), *(search.nearest() for search in searches))

    def write(self, file: BinaryIO) -> None:
        """Append the arrays, each as an NPY file."""
        for array in (self.cosine, self.now.scores, self.now.numbers, self.before.scores, self.before.numbers):
            np.save(file, array, allow_pickle=False)

    @classmethod
    def read(cls, file: BinaryIO, *, known: int, queries: int, source: str) -> Self:
        """Read what ``write`` appended.

        Args:
            file: at the beginning of the partition.
            known: number of the partition's entities that both nights know.
            queries: number of the type's queries.
            source: of the file, for messages.

        Raises:
            FormatError: these are other arrays.
        """
        cosine = _array(file, np.float32, [(known,), (0,)], source)
        found = []
        for _ in range(2):
            scores = _array(file, np.float32, [(queries, NEIGHBOURS)], source)
            found.append(Nearest(scores, _array(file, np.int64, [(queries, NEIGHBOURS)], source)))
        return cls(cosine, *found)


def _array(file: BinaryIO, dtype: type[np.generic], shapes: list[tuple[int, ...]], source: str) -> np.ndarray:
    try:
        found = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise FormatError(f"{source}: not a file of drift: {error}; remove it and count the part again") from None
    if not isinstance(found, np.ndarray) or found.dtype != dtype or found.shape not in shapes:
        raise FormatError(f"{source}: has the drift of other entities; remove it and count the part again")
    return found
