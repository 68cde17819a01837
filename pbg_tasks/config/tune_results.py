"""Stored documents of a search."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from pbg_tasks.config.base import Frozen
from pbg_tasks.config.tune import Metric

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
Epochs = Annotated[int, Field(ge=1)]


class TriedCandidate(Frozen):
    """Candidate of a search.

    Attributes:
        trial: its name.
        changes: values by key path.
    """

    trial: Id
    changes: dict[str, JsonValue]


class Search(Frozen):
    """Search as it was begun.

    Attributes:
        graph: its name.
        snapshot: that is trained.
        metric: by which candidates are compared.
        eta: one of so many candidates goes on to the next rung; None: there is one rung.
        epochs: at the end of each rung; None: ``model.num_epochs`` of each candidate.
        candidates: in the order of the space or of the draw.
    """

    format: Literal[1] = 1
    graph: str
    snapshot: str
    metric: Metric
    eta: Annotated[int, Field(ge=2)] | None
    epochs: Annotated[tuple[Epochs | None, ...], Field(min_length=1)]
    candidates: Annotated[tuple[TriedCandidate, ...], Field(min_length=1)]


class Outcome(Frozen):
    """Result of a candidate at the end of a rung.

    Attributes:
        trial: the candidate.
        epochs: that it has trained; None where it failed before that was known.
        status: ``missing`` where there was no result when the rung was decided.
        reason: of a failure.
        figures: of the filtered ranks of the valid split, by name.
        low: lower end of the 95 % interval of the MRR.
        high: upper end.
        seconds: that training and ranking took in this rung.
        continued: epochs that were trained in earlier rungs and not repeated.
        loss: of the last epoch.
    """

    format: Literal[1] = 1
    trial: Id
    epochs: Epochs | None = None
    status: Literal["finished", "failed", "missing"]
    reason: str | None = None
    figures: dict[str, float] = Field(default={})
    low: float | None = None
    high: float | None = None
    seconds: float = 0.0
    continued: int = 0
    loss: float | None = None


class Rung(Frozen):
    """Decision at the end of a rung.

    Attributes:
        rung: its number, from 0.
        ranking: of its candidates, the best first.
        kept: names of those that go on; in the last rung that of the best.
    """

    format: Literal[1] = 1
    rung: Annotated[int, Field(ge=0)]
    ranking: Annotated[tuple[Outcome, ...], Field(min_length=1)]
    kept: Annotated[tuple[Id, ...], Field(min_length=1)]
