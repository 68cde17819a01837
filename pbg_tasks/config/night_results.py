"""Results of a night's tasks, each by its model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from pbg_tasks.config.results import (
    SHAPES,
    BucketResult,
    DriftResult,
    EvalResult,
    GateResult,
    PartitionResult,
    PlanResult,
    PreserveResult,
    PublishResult,
    TaskResult,
    TrainResult,
    ValidateResult,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pbg_tasks.config.results import VerdictDocument

NO_EDGES = "no_edges"
"""The check that a snapshot without an edge does not pass, whatever the limits."""


@dataclass(frozen=True, slots=True)
class NightResults:
    """Results of the finished tasks of a run; None for the others."""

    plan: PlanResult | None = None
    validate: ValidateResult | None = None
    partition: PartitionResult | None = None
    bucket: BucketResult | None = None
    train: TrainResult | None = None
    preserve: PreserveResult | None = None
    eval: EvalResult | None = None
    drift: DriftResult | None = None
    gate: GateResult | None = None
    publish: PublishResult | None = None

    @classmethod
    def of(cls, results: Iterable[TaskResult | None]) -> Self:
        """Return the night's results, given in any order."""
        found: dict[str, Any] = {result.TASK: result for result in results if result is not None}
        return cls(**found)

    @classmethod
    def parse(cls, documents: Mapping[str, object]) -> Self:
        """Return the night's results from stored documents.

        Args:
            documents: by task; None and empty ones belong to unfinished tasks.

        Raises:
            ValidationError: a key is missing or of another type.
        """
        return cls.of(SHAPES[task].model_validate(document) for task, document in documents.items() if document)

    @property
    def finished(self) -> dict[str, TaskResult]:
        """Results that exist, by task, in the order of the chain."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {task: result for task, result in found.items() if result is not None}

    @property
    def verdicts(self) -> dict[str, VerdictDocument]:
        """Verdicts of the gates by task, in the order of the chain."""
        found: dict[str, VerdictDocument | None] = {
            "validate": self.validate.data_gate if self.validate is not None else None,
            "partition": self.partition.data_gate if self.partition is not None else None,
            "gate": self.gate,
        }
        return {task: verdict for task, verdict in found.items() if verdict is not None}

    @property
    def times(self) -> dict[str, float]:
        """Seconds of the finished tasks, and of the longest part of ``eval``."""
        found: dict[str, float] = {}
        for task, result in self.finished.items():
            if isinstance(result, EvalResult) and result.parts is not None:
                found["eval_part"] = result.parts.seconds
            found[task] = result.seconds
        return found

    @property
    def seconds(self) -> float:
        """Seconds of all finished tasks together; parts of one run at once."""
        return sum(self.times.values())


def beyond_approval(verdict: VerdictDocument) -> list[str]:
    """Return the faults that no approval can excuse, a sentence each.

    With such a fault no reader could use the vectors.
    """
    failed = (check for check in verdict.checks if not check.passed)
    return [
        check.sentence for check in failed if check.name in {NO_EDGES, "finite"} or check.name.startswith("health of ")
    ]
