"""What an evaluation found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

TIES = "a candidate that scores as high as the true entity counts as better"


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
        sides: filtered, by predicted side.
        relations: filtered, by relation name.
    """

    split: str
    edges: int
    candidates: dict[str, int]
    sampled: bool
    raw: dict[str, float]
    filtered: dict[str, float]
    random: dict[str, float]
    sides: dict[str, dict[str, float]]
    relations: dict[str, dict[str, float]]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"ties": TIES}
