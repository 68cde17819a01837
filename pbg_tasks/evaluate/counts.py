"""Counts of candidates that are no worse than true entities.

They add up over the partitions of the candidates, so that an evaluation may be split: each part counts the candidates
of its share, for every question that the whole may ask, and the merge adds these counts instead of reading vectors. The
parts ask the questions in the whole's batches and read the whole's blocks, so that the counts are the whole's to the
last one, whatever ties.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.errors import ConfigError, FormatError
from pbg_tasks.evaluate.one_side import rank_sides
from pbg_tasks.model.parameters import SIDES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pbg_tasks.evaluate.one_side import OfTypes, OneSide
    from pbg_tasks.evaluate.ranking import Model, Ranks
    from pbg_tasks.model.parameters import Side

TONIGHT = "tonight"
"""Name of the counts of tonight's model among all candidates."""
_PART = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Share:
    """Share of the candidates: every ``parts``-th partition.

    Attributes:
        number: from 1.
        parts: number of shares that make the whole.
    """

    number: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``i/n``.

        Raises:
            ConfigError: it is of another form, or i is above n.
        """
        found = _PART.fullmatch(text)
        if found is None or int(found[1]) > int(found[2]):
            raise ConfigError(f"--part: {text!r} is no part; write i/n with i from 1 to n, such as 1/4")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    def of(self, total: int) -> slice:
        """Return a slice of neighbours, in a list of ``total`` things."""
        return slice((self.number - 1) * total // self.parts, self.number * total // self.parts)

    def partitions(self, counts: Mapping[str, Sequence[int]]) -> dict[str, set[int]]:
        """Return the partitions of this share, by type.

        ``counts`` has the entities of each partition. The partitions of all types are dealt in turn.
        """
        places = [(entity, partition) for entity, listed in counts.items() for partition in range(len(listed))]
        own: dict[str, set[int]] = {entity: set() for entity in counts}
        for entity, partition in places[self.number - 1 :: self.parts]:
            own[entity].add(partition)
        return own


class Counting:
    """Count of all candidates at once.

    Attributes:
        share: partitions of the candidates that are counted, by type; all of a type that is missing.
        decides: whether the ranks are final, so that gates decide how many edges are asked.
    """

    share: Mapping[str, Collection[int]] = {}
    decides = True

    def begin(self, digest: str) -> None:
        """Note the hash of the questions and candidates."""

    def rank(
        self,
        name: str,  # noqa: ARG002 - for those that keep counts
        model: Model,
        sides: Mapping[Side, OneSide],
        of_types: Sequence[OfTypes],
    ) -> dict[Side, Ranks]:
        """Rank held-out edges, as ``OneSide.rank`` does.

        Args:
            name: of the model and the set of its candidates.
            model: that scores.
            sides: questions of both sides.
            of_types: see ``OneSide.rank``.
        """
        return rank_sides(model, {predict: (side, of_types) for predict, side in sides.items()})


class PartCounting(Counting):
    """Count of a share's candidates.

    Args:
        share: partitions of the share, by type.

    Attributes:
        found: int64 (2, sides, N) by name, what ``Ranker.counted`` is, of each side; zeros of edges that are not asked.
        asked: hash of the questions and candidates.
    """

    decides = False

    def __init__(self, share: Mapping[str, Collection[int]]) -> None:
        self.share = share
        self.found: dict[str, np.ndarray] = {}
        self.asked = ""

    def begin(self, digest: str) -> None:
        """Note the hash of the questions and candidates."""
        self.asked = digest

    def rank(
        self, name: str, model: Model, sides: Mapping[Side, OneSide], of_types: Sequence[OfTypes]
    ) -> dict[Side, Ranks]:
        """Rank among the share's candidates alone, and keep the counts."""
        found = super().rank(name, model, sides, of_types)
        own = 1  # the true entity
        for predict, ranks in found.items():
            counts = self.found.setdefault(name, np.zeros((2, len(SIDES), sides[predict].edges), np.int64))
            for _, _, rows in of_types:
                for kind, values in enumerate((ranks.raw, ranks.filtered)):
                    counts[kind, SIDES.index(predict), rows] = values[rows] - own
        return found


class MergedCounting(Counting):
    """Sum of the counts of all parts.

    Args:
        counts: as ``PartCounting.found``, summed over the parts.
        asked: hash that all parts had.
    """

    def __init__(self, counts: Mapping[str, np.ndarray], asked: str) -> None:
        self._counts, self._asked = counts, asked

    def begin(self, digest: str) -> None:
        """Compare the hash with the parts'.

        Raises:
            FormatError: the parts were asked other edges, or counted other candidates.
        """
        if digest != self._asked:
            raise FormatError(
                "the parts of the evaluation had other edges, candidates or releases than there are now; remove the "
                "results of all parts and count them again"
            )

    def rank(
        self, name: str, model: Model, sides: Mapping[Side, OneSide], of_types: Sequence[OfTypes]
    ) -> dict[Side, Ranks]:
        """Rank held-out edges by the parts' counts, without reading vectors."""
        counts = self._counts.get(name)
        if counts is None:
            raise FormatError(f"the parts of the evaluation have no counts of {name!r}; count them again")
        return {predict: side.rank(model, of_types, counts[:, SIDES.index(predict)]) for predict, side in sides.items()}


def to_bytes(found: Mapping[str, np.ndarray], names: Sequence[str]) -> bytes:
    """Return an NPY file of counts, in the order of ``names``."""
    file = io.BytesIO()
    np.save(file, np.stack([found[name] for name in names]), allow_pickle=False)
    return file.getvalue()


def from_bytes(data: bytes, names: Sequence[str], *, source: str) -> dict[str, np.ndarray]:
    """Read a file that ``to_bytes`` made.

    Raises:
        FormatError: it is another file.
    """
    try:
        stacked = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise FormatError(f"{source}: not a file of counts: {error}; remove it and count the part again") from None
    if stacked.dtype != np.int64 or stacked.ndim != 4 or stacked.shape[:3] != (len(names), 2, len(SIDES)):  # noqa: PLR2004
        raise FormatError(f"{source}: has other counts than its result names; remove both and count the part again")
    return dict(zip(names, stacked, strict=True))
