"""Counts of candidates that an evaluation keeps for later nights.

The vectors of a release do not change, and most edges of its night's sample are asked again in the next one. So the
next night takes the release's counts from its own evaluation, and scores only what is different: candidates that came
or went since, and the known answers. Close scores are settled one by one (``ties.py``), so that a count does not depend
on the blocks in which candidates were read, and the ranks are those of counting anew.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pbg_tasks.errors import FormatError
from pbg_tasks.evaluate.ids import Triples
from pbg_tasks.evaluate.one_side import rank_sides
from pbg_tasks.evaluate.ranking import Ranks
from pbg_tasks.model.parameters import SIDES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pbg_tasks.evaluate.compared_model import ComparedModel, Types
    from pbg_tasks.evaluate.one_side import OfTypes, OneSide
    from pbg_tasks.evaluate.ranking import Model
    from pbg_tasks.evaluate.tables import EntityTable
    from pbg_tasks.model.parameters import Side

RULE = 1
"""Number of the rule by which candidates are counted. It rises where equal vectors could get other counts."""
MOST_SCORED = 0.5
"""Share of the candidates that may be scored for a correction; where it takes more of them, all are counted anew."""


@dataclass(frozen=True, slots=True)
class KeptCounts:
    """Counts of a model's own night, of N edges.

    Attributes:
        edges: with the model's numbers of entities and relations.
        no_worse: int64 (2, N), by side, number of candidates besides the true entity that are no worse than it.
        candidates: bool (M,) by type, whether each entity was one; None for a type all of whose entities were.
    """

    edges: Triples
    no_worse: np.ndarray
    candidates: Mapping[str, np.ndarray | None]

    def to_bytes(self) -> bytes:
        """Return NPY files in a row: edges, counts, candidates of each type."""
        file = io.BytesIO()
        listed = np.stack((self.edges.lhs, self.edges.rel, self.edges.rhs, *self.no_worse))
        np.save(file, listed.astype(np.int64, copy=False), allow_pickle=False)
        for _, flags in sorted(self.candidates.items()):
            np.save(file, np.empty(0, np.uint8) if flags is None else np.packbits(flags), allow_pickle=False)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, rows: Mapping[str, Sequence[int]], *, source: str) -> Self:
        """Read what ``to_bytes`` returned.

        Args:
            data: of the file.
            rows: the model's entities of each partition, by type.
            source: of the data, for messages.

        Raises:
            FormatError: these are no counts of such a model.
        """
        file = io.BytesIO(data)
        try:
            listed = np.load(file, allow_pickle=False)
            packed = {entity: np.load(file, allow_pickle=False) for entity in sorted(rows)}
        except (ValueError, EOFError, OSError) as error:
            raise FormatError(f"{source}: not a file of counts: {error}; remove it, nights do without it") from None
        sizes = {entity: sum(counts) for entity, counts in rows.items()}
        if (
            file.read(1)
            or listed.dtype != np.int64
            or listed.ndim != 2  # noqa: PLR2004
            or len(listed) != 3 + len(SIDES)
            or (listed < 0).any()
            or any(
                flags.dtype != np.uint8 or flags.shape not in {(0,), ((sizes[entity] + 7) // 8,)}
                for entity, flags in packed.items()
            )
        ):
            raise FormatError(f"{source}: has counts of another model; remove it, nights do without it")
        candidates = {
            entity: np.unpackbits(flags, count=sizes[entity]).astype(bool) if len(flags) else None
            for entity, flags in packed.items()
        }
        return cls(Triples(*listed[:3]), listed[3:], candidates)


class KeptRanker:
    """Ranker of another model by its kept counts.

    Args:
        kept: counts of the model's own night.
        compared: the model, whose entities have the places that they had.
        bases: number of each partition's first entity tonight, then the total, by type.
        groups: types of the two ends, rows of the held-out edges that have them.
        asked: all held-out edges.

    Attributes:
        found: number of sides of edges that were not counted anew.
    """

    def __init__(
        self,
        kept: KeptCounts,
        compared: ComparedModel,
        bases: Mapping[str, np.ndarray],
        groups: Iterable[tuple[Types, np.ndarray]],
        asked: Triples,
    ) -> None:
        self.found = 0
        moves = {entity: _Move.of(compared.rows[entity], bases[entity]) for entity in kept.candidates}
        self._counts = np.full((len(SIDES), len(asked)), -1, np.int64)
        for (lhs, rhs), rows in groups:
            edges = asked.select(rows)
            then = Triples(moves[lhs].back(edges.lhs), compared.relations[edges.rel], moves[rhs].back(edges.rhs))
            places = _places(kept.edges, then)
            known = places >= 0
            self._counts[:, rows[known]] = kept.no_worse[:, places[known]]
        self._then = {entity: moves[entity].forth(flags) for entity, flags in kept.candidates.items()}

    def rank(
        self,
        sides: Mapping[Side, OneSide],
        model: Model,
        tables: Mapping[str, EntityTable],
        groups: Sequence[tuple[Types, np.ndarray]],
    ) -> dict[Side, Ranks]:
        """Rank held-out edges of both sides as ``OneSide.rank`` does.

        Args:
            sides: questions.
            model: that was counted.
            tables: its embeddings by type, with tonight's candidates.
            groups: types of the two ends, rows of the held-out edges that have them.
        """
        corrected = {predict: self._corrected(predict, side, model, tables, groups) for predict, side in sides.items()}
        found = rank_sides(model, {predict: (sides[predict], anew) for predict, (anew, _, _) in corrected.items()})
        for predict, (_, again, counted) in corrected.items():
            kept = sides[predict].rank(model, again, counted)
            for _, _, own in again:
                found[predict].take(own, kept.select(own))
                self.found += len(own)
        return found

    def _corrected(
        self,
        predict: Side,
        side: OneSide,
        model: Model,
        tables: Mapping[str, EntityTable],
        groups: Sequence[tuple[Types, np.ndarray]],
    ) -> tuple[list[OfTypes], list[OfTypes], np.ndarray]:
        """Sort edges into those to count anew and those whose counts hold.

        Arguments are those of ``rank``, of one side.

        Returns:
            Both lists, and int64 (2, N), what ``Ranker.counted`` is for the second.
        """
        counts = self._counts[SIDES.index(predict)]
        counted = np.zeros((2, side.edges), np.int64)
        again: list[OfTypes] = []
        anew: list[OfTypes] = []
        for (lhs, rhs), rows in groups:
            is_kept = counts[rows] >= 0
            ends = tables[lhs], tables[rhs]
            correct = self._correction(predict, side, model, (lhs, rhs), tables, rows[is_kept])
            if correct is None:
                anew.append((*ends, rows))
                continue
            own, raw = rows[is_kept], counts[rows[is_kept]] + correct[0]
            filtered = raw - correct[1]
            holds = filtered >= 0  # otherwise rounding judged a candidate differently in the earlier night
            anew.append((*ends, np.concatenate((rows[~is_kept], own[~holds]))))
            own = own[holds]
            counted[:, own] = raw[holds], filtered[holds]
            again.append((*ends, own))
        return [each for each in anew if len(each[2])], again, counted

    def _correction(
        self,
        predict: Side,
        side: OneSide,
        model: Model,
        types: Types,
        tables: Mapping[str, EntityTable],
        rows: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return what tonight's candidates and answers change in kept counts.

        None is returned where that takes too many scores, or leaves close candidates unsettled.

        Returns:
            int64 (M,), number of candidates to add to each edge's count; and of known answers in the sum.
        """
        lhs, rhs = types
        entity = lhs if predict == "lhs" else rhs
        table, then = tables[entity], self._then[entity]
        now = np.zeros(len(then), bool)
        now[table.candidate_numbers()] = True
        answers = side.answers_of(rows)
        came, went = np.flatnonzero(now & ~then), np.flatnonzero(then & ~now)
        known = answers[now[answers]]
        if not len(rows) or len(came) + len(went) + len(known) > MOST_SCORED * table.candidates:
            return None

        def ranked(numbers: np.ndarray) -> Ranks:
            if not len(numbers):
                return Ranks(*np.ones((4, len(rows)), np.int64))
            only = table.among(numbers)
            ends = (only, tables[rhs]) if predict == "lhs" else (tables[lhs], only)
            return side.rank(model, [(*ends, rows)]).select(rows)

        before = len(model.unsettled)
        right = ranked(known)
        change = ranked(came).raw - ranked(went).raw
        if len(model.unsettled) > before:  # counting anew may settle what these candidates alone leave open
            return None
        return change, right.raw - right.filtered


@dataclass(frozen=True, slots=True)
class _Move:
    """Numbers of a type's entities in two nights.

    Their places are the same in both.

    Attributes:
        then: number of each partition's first entity in the earlier night, then the total.
        now: same, tonight.
    """

    then: np.ndarray
    now: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[int], bases: np.ndarray) -> Self:
        return cls(np.concatenate(([0], np.cumsum(rows))), bases)

    def back(self, numbers: np.ndarray) -> np.ndarray:
        """Return the earlier numbers of tonight's; -1 of newcomers."""
        part = np.searchsorted(self.now, numbers, side="right") - 1
        found = numbers - self.now[part] + self.then[part]
        return np.where(found < self.then[part + 1], found, -1)

    def forth(self, flags: np.ndarray | None) -> np.ndarray:
        """Return the flags of earlier entities by tonight's numbers.

        None stands for flags that are all set.
        """
        found = np.zeros(int(self.now[-1]), bool)
        for part, first in enumerate(self.now[:-1].tolist()):
            own = slice(*self.then[part : part + 2].tolist())
            found[first : first + own.stop - own.start] = True if flags is None else flags[own]
        return found


def _places(edges: Triples, asked: Triples) -> np.ndarray:
    """Return the row of each asked edge among others: int64 (N,).

    It is -1 where they lack the edge.
    """
    lhs, rel, rhs = (np.concatenate((getattr(edges, end), getattr(asked, end))) for end in ("lhs", "rel", "rhs"))
    _, pair = np.unique(lhs * (rhs.max(initial=0) + 1) + rhs, return_inverse=True)
    keys = rel * (pair.max(initial=0) + 1) + pair
    order = np.argsort(keys[: len(edges)], kind="stable")
    kept, wanted = keys[order], keys[len(edges) :]
    place = np.searchsorted(kept, wanted)
    found = np.minimum(place, len(kept) - 1)
    there = (asked.lhs >= 0) & (asked.rel >= 0) & (asked.rhs >= 0)
    return np.where(there & (kept[found] == wanted), order[found], -1) if len(kept) else np.full(len(wanted), -1)
