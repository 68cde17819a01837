"""One night through the real ``pbg run``, and its outcome."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.nights.process import run_commands
from pbg_tasks.errors import QualityGateError, UnusableError
from pbg_tasks.publish import Channel
from pbg_tasks.tasks.context import CHAIN, RunContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from benchmarks.nights.process import Ended

RELEASED = "released"
DATA_GATE = "stopped by the data gate"
QUALITY_GATE = "stopped by the quality gate"
_SIDES = {"before": "current", "now": "candidate"}
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
    commands = [["run", str(spec), "--snapshot", day, "--json", *changes] for day in days]
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
    results = {task: run.result(task) or {} for task in CHAIN}
    evaluated, published = results["eval"], results["publish"]
    verdicts = [results[task].get("data_gate", {}) for task in ("validate", "partition")]
    found = {
        "edges": results["validate"].get("edges"),
        "entities": results["partition"].get("entities"),
        "warm_start": results["train"].get("warm_start"),
        "loss": results["train"].get("loss"),
        "mrr": evaluated.get("filtered", {}).get("mrr"),
        "popularity": evaluated.get("popularity", {}).get("mrr"),
        "gate": {check["name"]: check["value"] for check in results["gate"].get("checks", [])},
        "frozen": _frozen(evaluated.get("against") or {}),
        "drift": _drift(results["drift"]),
        "train_cpu_seconds": round(results["train"].get("usage", {}).get("cpu_seconds", 0), 2),
        "edges_trained": results["train"].get("edges_trained"),
        "epochs": results["train"].get("epochs"),
        "cpu_seconds": round(sum(each.get("usage", {}).get("cpu_seconds", 0) for each in results.values()), 2),
        "warnings": [check["sentence"] for each in verdicts for check in each.get("checks", []) if check["warned"]],
    }
    if "release" in published:
        release = Channel(run.store, published["channel"]).release(published["release"])
        found |= {
            "release": release.seq,
            "published": published["published"],
            "manifest": release.manifest_sha256,
        }
    return {name: value for name, value in found.items() if value is not None}


def _frozen(against: dict[str, Any]) -> dict[str, Any] | None:
    """Return the comparison with the release before.

    None where there was none to compare with.
    """
    mrr = {name: against.get(side, {}).get("filtered", {}).get("mrr") for name, side in _SIDES.items()}
    return {"edges": against["edges"], **mrr} if None not in mrr.values() else None


def _drift(result: dict[str, Any]) -> dict[str, float] | None:
    """Return mean cosine and overlap of entities of both nights.

    None for a first night.
    """
    types = [each for each in result.get("types", {}).values() if each["common"]]
    common = sum(each["common"] for each in types)
    if result.get("release") is None or not common:
        return None
    return {
        name: round(sum(each[name]["mean"] * each["common"] for each in types) / common, 4)
        for name in ("cosine", "overlap")
        if all(each[name]["mean"] is not None for each in types)
    }
