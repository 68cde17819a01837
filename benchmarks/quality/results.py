"""``results.json``: every run, the source of ``docs/quality.md``.

Every number of the document comes from it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from pbg_tasks.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from benchmarks.quality.experiments import Experiment

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Run:
    """One experiment with one seed.

    Attributes:
        experiment: its name.
        seed: of the training.
        recipe: hash of everything that decides the figures except the code: see ``recipe``.
        date: when it ended, UTC.
        environment: circumstances that figures of speed depend on.
        figures: of quality, by name.
        curves: ``loss`` and ``quality``, points (epochs, value) each.
        training: epochs, engine, workers, edges a second.
        seconds: wall and CPU seconds of import, train, curve and eval.
    """

    experiment: str
    seed: int
    recipe: str
    date: str
    environment: Mapping[str, str | int | float]
    figures: Mapping[str, float]
    curves: Mapping[str, list[list[float]]]
    training: Mapping[str, Any]
    seconds: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Results:
    """All runs, one for each experiment and seed."""

    runs: dict[tuple[str, int], Run] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the results written before; none when there is no file.

        Raises:
            FormatError: the file holds something else.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise FormatError(f"{path}: format {content['format']}, expected {_FORMAT}; remove it to start over")
            runs = [Run(**run) for run in content["runs"]]
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path}: holds no results ({error}); remove it to start over") from None
        return cls({(run.experiment, run.seed): run for run in runs})

    def write(self, path: Path) -> None:
        """Write all runs, in order, replacing the file at once."""
        runs = [asdict(run) for _, run in sorted(self.runs.items())]
        partial = path.with_name(f"{path.name}.part")
        partial.write_text(json.dumps({"format": _FORMAT, "runs": runs}, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    def add(self, run: Run) -> None:
        """Add a run and replace an older one of its kind."""
        self.runs[run.experiment, run.seed] = run

    def has(self, experiment: str, seed: int, recipe: str) -> bool:
        """Return whether a run was made by the same recipe."""
        run = self.runs.get((experiment, seed))
        return run is not None and run.recipe == recipe

    def of(self, experiment: str) -> list[Run]:
        """Return the runs of an experiment by seed."""
        return [run for (name, _), run in sorted(self.runs.items()) if name == experiment]


def recipe(experiment: Experiment, config: bytes, params: Iterable[str]) -> str:
    """Hash everything that decides an experiment's figures.

    It is the config, its changes, the data, and the evaluation.
    """
    parts = [experiment.kind, str(experiment.interval), *sorted(experiment.data.digests.values()), *params]
    return hashlib.sha256(config + "\n".join(parts).encode()).hexdigest()


def means(runs: list[Run]) -> dict[str, float]:
    """Return the mean of each figure over runs."""
    if not runs:
        return {}
    return {name: sum(run.figures[name] for run in runs) / len(runs) for name in runs[0].figures}


def missed(experiment: Experiment, runs: list[Run]) -> list[str]:
    """Return a sentence for each target that was missed.

    A target is missed when the mean of the runs does not reach it.
    """
    reached = means(runs)
    return [
        f"{experiment.name}: {name} is {reached[name]:.4f}, below the target {target:.4g}"
        for name, target in experiment.targets.items()
        if reached and reached[name] < target
    ]
