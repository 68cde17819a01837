"""What an evaluation found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pbg_tasks.evaluate.metrics import figures, random_scorer
from pbg_tasks.evaluate.ranking import Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pbg_tasks.evaluate.one_side import SideRanks
    from pbg_tasks.evaluate.questions import Side

TIES = "a candidate that scores as high as the true entity, within rounding, counts as better"

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Figures of held-out edges (``metrics.figures`` each).

    Attributes:
        split: which held-out edges.
        edges: how many; each is asked twice, once a side.
        candidates: most entities an edge was ranked among, by type.
        sampled: whether they are a sample.
        raw: over all queries, against all candidates.
        filtered: same, without other entities known to be right.
        random: what a scorer that knows nothing is expected to reach, filtered.
        popularity: what ranking by frequency in training reaches, filtered; None when training edges were not given.
        sides: by predicted side, ``raw`` and ``filtered``.
        relations: by relation name, ``raw`` and ``filtered``.
    """

    split: str
    edges: int
    candidates: dict[str, int]
    sampled: bool
    raw: Figures
    filtered: Figures
    random: Figures
    popularity: Figures | None
    sides: dict[str, dict[str, Figures]]
    relations: dict[str, dict[str, Figures]]

    @classmethod
    def of(
        cls,
        found: Mapping[Side, SideRanks],
        rel: np.ndarray,
        relation_names: Sequence[str],
        *,
        split: str,
        candidates: dict[str, int],
        sampled: bool,
    ) -> Self:
        """Summarise ranks.

        Args:
            found: of all edges, by side.
            rel: int64 (N,), relation of each edge.
            relation_names: by relation id.
            split: see the attributes.
            candidates: same.
            sampled: same.
        """
        sides = {side: result.ranks for side, result in found.items()}
        everything = Ranks.joined(list(sides.values()))
        both = np.tile(rel, len(sides))
        popular = [result.popular for result in found.values() if result.popular is not None]
        return cls(
            split=split,
            edges=len(rel),
            candidates=candidates,
            sampled=sampled,
            raw=figures(everything.raw, everything.raw_candidates),
            filtered=figures(everything.filtered, everything.filtered_candidates),
            random=random_scorer(everything.filtered_candidates),
            popularity=figures(np.concatenate(popular), everything.filtered_candidates) if popular else None,
            sides={str(side): _both(ranks) for side, ranks in sides.items()},
            relations={
                relation_names[number]: _both(everything.select(np.flatnonzero(both == number)))
                for number in np.unique(rel)
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, all of them finite; what was not measured is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None} | {"ties": TIES}


def _both(ranks: Ranks) -> dict[str, Figures]:
    return {
        "raw": figures(ranks.raw, ranks.raw_candidates),
        "filtered": figures(ranks.filtered, ranks.filtered_candidates),
    }
