"""One night through the real ``pbg run``, and its outcome."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.nights.process import run_commands
from pbg_tasks.config.night_results import NightResults
from pbg_tasks.config.results import SHAPES
from pbg_tasks.errors import QualityGateError, UnusableError
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.context import RunContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from benchmarks.nights.process import Ended
    from pbg_tasks.config.results import Against, DriftResult, Figures

RELEASED = "released"
DATA_GATE = "stopped by the data gate"
QUALITY_GATE = "stopped by the quality gate"
_PLACE = re.compile(r"\S+/(?=snapshots/|runs/)")
_PLANNED = re.compile(r"; run (\S+)$", re.MULTILINE)
_ERROR = re.compile(r"^error: (\S+): (.*)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Night:
    """A night that ended.

    Attributes:
        day: key of its snapshot.
        outcome: ``RELEASED``, ``DATA_GATE``, ``QUALITY_GATE``, or the kind of the error that ended it.
        ``said``: the error's sentences.
        run: URL; empty when it ended before it was planned.
        seconds: wall time of the command.
        figures: measured; see ``figures``.
    """

    day: str
    outcome: str
    said: str
    run: str
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def manifest(self) -> str | None:
        """Hash of the release's manifest, which names every file with its hash."""
        return self.figures.get("manifest")

    def to_json(self) -> dict[str, Any]:
        """Return the results' entry, without paths of this machine."""
        return {
            "day": self.day,
            "outcome": self.outcome,
            "said": _PLACE.sub("", self.said),
            "seconds": round(self.seconds, 1),
            **self.figures,
        }


def run_nights(spec: Path, days: Iterable[str], *params: str, at_once: int = 1) -> Iterator[Night]:
    """Run each night by a ``pbg run``; yield them in order.

    Args:
        spec: the graph spec.
        days: keys of the snapshots.
        params: changes of the spec, ``key.path=value``.
        at_once: number of runs at the same time.
    """
    days = list(days)
    changes = [word for param in params for word in ("--param", param)]
    commands = [["run", str(spec), "--snapshot", day, "--publish", "--json", *changes] for day in days]
    for day, ended in zip(days, run_commands(commands, at_once=at_once), strict=True):
        yield _night(day, ended)


def _night(day: str, ended: Ended) -> Night:
    planned, error = _PLANNED.search(ended.errors), _ERROR.search(ended.errors)
    url = planned[1] if planned else ""
    kind, said = (error[1], error[2].strip()) if error else ("", ended.errors.rstrip().rpartition("\n")[2])
    return Night(
        day=day,
        outcome=RELEASED if ended.status == 0 else _outcome(kind, said, ended.status),
        said=said if ended.status else "",
        run=url,
        seconds=ended.seconds,
        figures=figures(url) if url else {},
    )


def _outcome(kind: str, said: str, status: int) -> str:
    if status in {QualityGateError.exit_code, UnusableError.exit_code}:
        return DATA_GATE if "gates.data" in said else QUALITY_GATE
    return kind or f"ended with status {status}"


def figures(url: str) -> dict[str, Any]:
    """Return the known figures of a run, finished or not.

    Returns:
        Edges and entities; ``mrr`` and the baseline ``popularity``; ``gate``: the checks; ``frozen``: MRR of the
        release ``before`` and of this night (``now``) on the same edges and candidates; ``drift``: mean cosine and
        overlap; ``warnings`` of the data gate; ``cpu_seconds`` of all tasks, without the start of Python, and of the
        training; ``edges_trained`` in how many ``epochs``; ``release``, ``published`` and ``manifest``.
    """
    run = RunContext.open(url)
    results = NightResults.of(run.find(shape) for shape in SHAPES.values())
    validated, evaluated, trained, published = results.validate, results.eval, results.train, results.publish
    used = {task: result.usage.cpu_seconds for task, result in results.finished.items() if result.usage is not None}
    warned = [
        check.sentence
        for task, verdict in results.verdicts.items()
        if task != "gate"
        for check in verdict.checks
        if check.warned
    ]
    found: dict[str, object] = {
        "edges": validated.edges if validated is not None else None,
        "entities": results.partition.entities.document() if results.partition is not None else None,
        "warm_start": trained.warm_start if trained is not None else None,
        "loss": trained.loss if trained is not None else None,
        "mrr": _mrr(evaluated.filtered) if evaluated is not None else None,
        "popularity": _mrr(evaluated.popularity) if evaluated is not None else None,
        "gate": {check.name: check.value for check in (results.gate.checks if results.gate is not None else ())},
        "frozen": _frozen(evaluated.against) if evaluated is not None and evaluated.against is not None else None,
        "drift": _drift(results.drift) if results.drift is not None else None,
        "train_cpu_seconds": round(used.get("train", 0), 2),
        "edges_trained": trained.edges_trained if trained is not None else None,
        "epochs": trained.epochs if trained is not None else None,
        "cpu_seconds": round(sum(used.values()), 2),
        "warnings": warned,
    }
    if published is not None and published.release and published.channel is not None:
        release = Channel(run.store, published.channel).release(published.release)
        found |= {
            "release": release.seq,
            "published": published.published,
            "manifest": release.manifest_sha256,
        }
    return {name: value for name, value in found.items() if value is not None}


def _mrr(ranked: Figures | None) -> float | None:
    return ranked.figure("mrr") if ranked is not None else None


def _frozen(against: Against) -> dict[str, float | None] | None:
    """Return the comparison with the release before.

    None where there was none to compare with.
    """
    mrr = {"before": _mrr(against.current.filtered), "now": _mrr(against.candidate.filtered)}
    return {"edges": against.edges, **mrr} if None not in mrr.values() else None


def _drift(result: DriftResult) -> dict[str, float] | None:
    """Return mean cosine and overlap of entities of both nights.

    None for a first night.
    """
    types = [each for each in result.types.values() if each.common]
    common = sum(each.common for each in types)
    if result.release is None or not common:
        return None
    means = {
        "cosine": [(each.cosine.mean, each.common) for each in types],
        "overlap": [(each.overlap.mean, each.common) for each in types],
    }
    known = {name: [(mean, count) for mean, count in found if mean is not None] for name, found in means.items()}
    return {
        name: round(sum(mean * count for mean, count in found) / common, 4)
        for name, found in known.items()
        if len(found) == len(types)
    }
