"""Candidates: the entities against which a true entity is ranked.

They are all entities of its type, or a sample that is drawn once and kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.formats.entity_sets import EntitySet

if TYPE_CHECKING:
    from collections.abc import Mapping


_ENOUGH = 0.5
"""Share of a whole sample that has to be left, after its hidden entities, for the sample to be used again."""


class Candidates(EntitySet):
    """Sample of candidates that stays the same from night to night."""

    __slots__ = ()

    @property
    def drawn_with(self) -> int:
        """The limit with which the sample was drawn.

        For a sample without a record of it, it is the size of its largest type.
        """
        return max(map(len, self.partition.values())) if self.limit is None else self.limit

    @classmethod
    def draw(
        cls,
        counts: Mapping[str, list[int]],
        limit: int,
        seed: int,
        *,
        kept: Candidates | None = None,
        hidden: EntitySet | None = None,
    ) -> Candidates | None:
        """Draw ``limit`` entities of each larger type, without replacement.

        Where entities come and go, all of a sample are hidden at last: a type is drawn anew before that.

        Args:
            counts: entities of each partition, by type.
            limit: largest number of candidates of a type.
            seed: of the choice.
            kept: a sample whose types are not drawn again while enough of it is left.
            hidden: entities that are no candidates; None: there are none.

        Returns:
            The sample of all such types; None where there is none.
        """
        kept, hidden = kept or cls({}, {}), hidden or EntitySet({}, {})
        partition, offset = dict(kept.partition), dict(kept.offset)
        for entity, listed in counts.items():
            bases = np.concatenate(([0], np.cumsum(listed)))
            own, gone = kept.numbers(entity, bases), hidden.numbers(entity, bases)
            total = int(bases[-1]) - (0 if gone is None else len(gone))
            size = min(limit, total)
            left = own if own is None or gone is None else np.setdiff1d(own, gone, assume_unique=True)
            if bases[-1] <= limit or (left is not None and (gone is None or len(left) >= _ENOUGH * size)):
                continue
            rng = np.random.default_rng([seed, *entity.encode()])
            numbers = np.sort(rng.choice(total, size=size, replace=False, shuffle=False))
            if gone is not None:  # they were numbered without those
                numbers += np.searchsorted(gone - np.arange(len(gone)), numbers, side="right")
            partition[entity] = np.searchsorted(bases, numbers, side="right") - 1
            offset[entity] = numbers - bases[partition[entity]]
        return cls(partition, offset, limit) if partition else None


def eligible(total: int, sample: np.ndarray | None, hidden: np.ndarray | None) -> np.ndarray | None:
    """Return the candidates of a type.

    Args:
        total: number of its entities.
        sample: ascending numbers of the sample, None for all entities.
        hidden: ascending numbers of entities that are no candidates, None where there are none.

    Returns:
        Ascending numbers; None for all entities.
    """
    if hidden is None:
        return sample
    return np.setdiff1d(np.arange(total) if sample is None else sample, hidden, assume_unique=True)
