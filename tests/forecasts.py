"""Forecasts of nights beside what the nights took.

    python -m tests.forecasts --nights 5 [--graph wn18rr]

Each task of each night is a process of its own. Three graphs are walked through: AS-733 and ICEWS14 day by day, and
WN18RR with a fiftieth of its edges changed each night. From the second night on, the CPU seconds of the night must be
within 25 % of the forecast, and no task may hold more memory than its forecast at most. CPU seconds, as the clock
counts the machine's other users. Prints a table; the last line counts, and the exit status is 1 if there is
a problem.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from benchmarks import program
from benchmarks.nights.days import find, read_dated_edges
from examples.data.archives import read_rows, unpack
from pbg_tasks.errors import PbgError
from pbg_tasks.progress import aligned, say
from pbg_tasks.tasks.context import CHAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.nights.days import Edge

    Days = Iterator[tuple[str, list[Edge]]]

OFF = 0.25
"""Share by which a forecast may be off."""
DATED = ("as733", "icews14")
CHANGING = "wn18rr"
GRAPHS = (CHANGING, *DATED)
_CHANGED = 0.02
_BOUNDED = dict.fromkeys(("validate", "partition", "bucket"), "preparation") | {"train": "train", "eval": "eval"}
"""Tasks whose memory has a limit, and the name of its forecast."""
_TENTH = 0.1  # what a training holds is worked out to that, others at most (docs/operations.md)
MODEL = {
    "entities": {"node": {"num_partitions": 1}},
    "relations": [{"name": "edge", "lhs": "node", "rhs": "node", "operator": "translation"}],
    "dynamic_relations": True,
    "global_emb": False,
    "dimension": 100,
    "comparator": "dot",
    "loss_fn": "softmax",
    "lr": 0.1,
    "num_epochs": 10,
    "workers": 1,
}


@dataclass(frozen=True, slots=True)
class Night:
    """Figures of a night.

    Attributes:
        day: key of its snapshot.
        forecast: CPU seconds of all tasks.
        took: same.
        limits: bytes that a task holds at most, by task.
        memory: bytes that it held.
        by_task: forecast and actual CPU seconds, by task.
    """

    day: str
    forecast: float
    took: float
    limits: dict[str, float]
    memory: dict[str, float]
    by_task: dict[str, tuple[float, float]]

    @property
    def ratio(self) -> float:
        """Actual to forecast CPU seconds."""
        return self.took / self.forecast

    @property
    def beyond(self) -> list[str]:
        """Tasks that held more than their forecast at most."""
        return [task for task, limit in self.limits.items() if self.memory[task] > limit]

    @property
    def off(self) -> bool:
        """Whether the forecast is off by more than it may be."""
        return not 1 - OFF <= self.ratio <= 1 + OFF


def days_of(graph: str, data: Path, nights: int) -> Days:
    """Yield the snapshots of a graph.

    Raises:
        InputError: the data set is not there.
    """
    if graph in DATED:
        dated = read_dated_edges(find(graph, data)[1])
        yield from dated.snapshots(dated.chosen(nights))
        return
    _, path = find(graph, data)
    with tempfile.TemporaryDirectory() as scratch:
        unpack(path, Path(scratch))
        (source,) = Path(scratch).rglob("train.tsv")
        every = [(row[0], row[1], row[2]) for row in read_rows(source, columns=(3,))]
    yield from changing(every, nights)


def changing(edges: list[Edge], nights: int) -> Days:
    """Yield snapshots that each lack another part of the edges."""
    rng = random.Random(0)
    away = set(rng.sample(range(len(edges)), int(len(edges) * _CHANGED)))
    for number in range(nights):
        yield f"2026-01-{number + 1:02}", [edge for at, edge in enumerate(edges) if at not in away]
        back = set(rng.sample(sorted(away), len(away) // 2))
        away = (away - back) | set(rng.sample(range(len(edges)), len(back)))


def walk(root: Path, days: Days, model: dict[str, Any] | None = None) -> Iterator[Night]:
    """Do the nights of a graph, and yield their figures."""
    spec = root / "graph.yaml"
    document = {
        "graph": "forecast",
        "store": str(root / "store"),
        "snapshots": {"location": f"{root}/snapshots/{{snapshot}}.tsv", "format": "tsv"},
        "model": MODEL | (model or {}),
        "split": {"valid": 0.01, "test": 0.1},
        "train": {"warm_epochs": 3},
        "gates": {"max_mrr_drop": 1.0, "max_trend_drop": {}, "min_over_popularity": {}, "min_over_start": {}},
        "resources": {"memory_gb": 1, "threads": 1},
    }
    (root / "snapshots").mkdir(parents=True)
    spec.write_text(yaml.safe_dump(document), encoding="utf-8")
    for day, edges in days:
        lines = ("\t".join(edge) for edge in [("lhs", "rel", "rhs"), *edges])
        (root / "snapshots" / f"{day}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        night = _night(spec, day)
        say(f"{day}: {night.forecast:.2f} CPU seconds forecast, {night.took:.2f} taken")
        yield night


def _night(spec: Path, day: str) -> Night:
    planned = command("plan", str(spec), "--snapshot", day)
    forecast = planned["forecast"]
    results = {task: command(task, planned["run"]) for task in CHAIN[1:]}
    taken = {task: result["usage"]["cpu_seconds"] for task, result in results.items()}
    by_task = {task: (forecast["tasks"][task]["cpu_seconds"], taken[task]) for task in results}
    return Night(
        day,
        sum(each for each, _ in by_task.values()),
        sum(taken.values()),
        {task: planned["memory"][name]["peak"] * (1 + _TENTH * (task == "train")) for task, name in _BOUNDED.items()},
        {task: result["usage"]["memory_bytes"] for task, result in results.items()},
        by_task,
    )


def command(*words: str) -> dict[str, Any]:
    """Run a command of this package, and return its result.

    Raises:
        PbgError: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pbg_tasks", *words, "--json"], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise PbgError(f"pbg {' '.join(words)}: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(nights: list[tuple[str, Night]]) -> str:
    """Return the nights in columns."""
    rows = [("graph", "night", "CPU forecast", "taken", "ratio", "memory, nearest to its limit")]
    for graph, night in nights:
        nearest = max(_BOUNDED, key=lambda task: night.memory[task] / night.limits[task])
        held, limit = night.memory[nearest] / 1e6, night.limits[nearest] / 1e6
        cells = (f"{night.forecast:.2f} s", f"{night.took:.2f} s", f"{night.ratio:.2f}")
        rows.append((graph, night.day, *cells, f"{nearest} {held:.0f} of {limit:.0f} MB"))
    return "\n".join(aligned(rows))


def main(
    nights: Annotated[int, typer.Option(min=2, help="How many nights of each graph.")] = 5,
    graph: Annotated[list[str] | None, typer.Option(help=f"Only this one; of {', '.join(GRAPHS)}.")] = None,
    data: Annotated[Path, typer.Option(help="Folder with the data sets.")] = Path("../shared/data"),
    tasks: Annotated[bool, typer.Option("--tasks", help="Show each task, too.")] = False,  # noqa: FBT002 - an option
) -> None:
    """Walk through nights and compare."""
    found = list[tuple[str, Night]]()
    for name in graph or GRAPHS:
        with tempfile.TemporaryDirectory(prefix="pbg-forecasts-") as scratch:
            found += [(name, night) for night in walk(Path(scratch) / "graph", days_of(name, data, nights))]
    print(table(found))
    if tasks:
        for name, night in found:
            cells = (f"{task} {planned:.2f}/{took:.2f}" for task, (planned, took) in night.by_task.items())
            print(f"{name} {night.day}: {', '.join(cells)}")
    firsts = {name: next(night for each, night in found if each == name) for name, _ in found}
    off = sum(night.off for name, night in found if night is not firsts[name])
    beyond = sum(bool(night.beyond) for _, night in found)
    later = len(found) - len(firsts)
    print(f"{later} nights after the first: {off} forecasts off by more than {OFF:.0%}; {beyond} limits exceeded")
    sys.exit(int(bool(off or beyond)))


if __name__ == "__main__":
    program.run(main)
