"""Drift of one partition's vectors, as a part stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.evaluate.drift import NEIGHBOURS, Nearest

if TYPE_CHECKING:
    from typing import BinaryIO


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
