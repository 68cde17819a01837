"""Cost of a cold and a warm night, task by task.

CPU, wall time, memory and traffic of each task are measured in a directory and on an S3 server. In the directory, the
nights are done three times, in turns: on a shared host the CPU time of one training differs by a third from the next.
There, the warm night is also done in few tasks, as ``airflow.few_tasks`` does it. Each night begins with an empty page
cache, where the system permits it: to reclaim a full one costs up to a second of CPU time for 400 MB that a task
writes, whatever night filled it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.speed.measurement import Measurement
from benchmarks.speed.usage import MemoryWatch
from benchmarks.speed.worker import ROOT
from examples.stack.object_store import ObjectStore
from pbg_tasks.errors import PbgError
from pbg_tasks.progress import say
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.context import CHAIN
from pbg_tasks.tasks.nightly.chain import TASKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.speed.harness import Tools

_EDGES, _QUICK_EDGES = 3_000_000, 100_000
_COLD, _WARM = "d1", "d2"
_FEW = "few tasks"
_NIGHTS = {_COLD: ("cold night", "", 1.8), _WARM: ("warm night", "", 1.6), _FEW: ("warm night", f", {_FEW}", 1.6)}
"""Words of each night before and after what is measured, and the most of its training it may take."""
_FEW_TASKS = ("plan", "prepare", "train", "finish")
_CHANGED = 0.02
_FILES = 4
_RELATIONS = 8
_NEW_EVERY = 50  # of the changed edges, one in so many begins at a new entity
_NOTE = (
    "CPU seconds of all tasks, with the start and imports of their processes, over those of train, from an empty page "
    "cache; "
)
_PAGE_CACHE = Path("/proc/sys/vm/drop_caches")
_ROUNDS = 3
MODEL: dict[str, Any] = {
    "entities": {"node": {"num_partitions": 4}},
    "relations": [{"name": "edge", "lhs": "node", "rhs": "node", "operator": "translation"}],
    "dynamic_relations": True,
    "dimension": 100,
    "global_emb": False,
    "comparator": "dot",
    "loss_fn": "softmax",
    "lr": 0.1,
    "num_epochs": 5,
    "workers": 1,
}


@dataclass(frozen=True, slots=True)
class Task:
    """Cost of one task of a night.

    Attributes:
        cpu: seconds of its process and all it started.
        wall: seconds.
        memory: most bytes they used together.
        read: bytes from the store.
        written: bytes to it.
    """

    cpu: float
    wall: float
    memory: float
    read: float
    written: float

    @classmethod
    def median(cls, rounds: Sequence[Task]) -> Task:
        """Return the median of each figure."""
        return cls(*(statistics.median(getattr(task, each.name) for task in rounds) for each in fields(cls)))


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of one snapshot.

    Attributes:
        lhs: int64 (N,), numbers of the left ends.
        rel: int64 (N,).
        rhs: int64 (N,).
    """

    lhs: np.ndarray
    rel: np.ndarray
    rhs: np.ndarray

    @classmethod
    def drawn(cls, edges: int, seed: int = 0) -> Edges:
        """Draw a graph with a third as many entities as edges.

        Each entity is the left end of three edges. A relation leads to an entity near one that it fixes, most often
        the nearest: a model can learn that.
        """
        rng, entities = np.random.default_rng(seed), max(edges // 3, 1)
        lhs, rel = np.arange(edges) % entities, rng.integers(_RELATIONS, size=edges)
        apart = (rng.random(edges) ** 4 * 100).astype(np.int64)
        return cls(lhs, rel, (lhs // 20 * 20 + rel * (entities // _RELATIONS) + apart) % entities)

    def changed(self, share: float = _CHANGED, seed: int = 1) -> Edges:
        """Return the edges with a share of them changed.

        Some of the changed ones begin at new entities.
        """
        rng = np.random.default_rng(seed)
        places = rng.choice(len(self.lhs), size=int(len(self.lhs) * share), replace=False)
        lhs, rhs = self.lhs.copy(), self.rhs.copy()
        rhs[places] = rng.permutation(rhs[places])
        new = places[::_NEW_EVERY]
        lhs[new] = lhs.max() + 1 + np.arange(len(new))
        return Edges(lhs, self.rel, rhs)

    def write(self, directory: Path) -> list[Path]:
        """Write Parquet files of names, and return their paths."""
        directory.mkdir(parents=True)
        paths = [directory / f"part-{part}.parquet" for part in range(_FILES)]
        cuts = np.linspace(0, len(self.lhs), _FILES + 1).astype(int)
        for path, (first, stop) in zip(paths, pairwise(cuts.tolist()), strict=True):
            columns = (("lhs", "n", self.lhs), ("rel", "r", self.rel), ("rhs", "n", self.rhs))
            table = {name: np.char.add(letter, ids[first:stop].astype(str)) for name, letter, ids in columns}
            pq.write_table(pa.table(table), path)
        return paths


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Measure both nights in a directory and on an S3 server.

    Raises:
        PbgError: a task failed.
    """
    edges = tools.edges or (_QUICK_EDGES if quick else _EDGES)
    cold = Edges.drawn(edges)
    snapshots = {day: each.write(tools.directory / day) for day, each in ((_COLD, cold), (_WARM, cold.changed()))}
    local = []
    for _ in range(1 if quick else _ROUNDS):
        local.append(_nights(tools.directory, str(tools.directory / "store"), snapshots, {}, again=True))
        shutil.rmtree(tools.directory / "store")
    with ObjectStore(tools.directory / "s3") as server:
        server.create_bucket("bench")
        remote = _nights(tools.directory, "s3://bench/nights", snapshots, server.environment(), again=False)
    return [*_measurements(local, ""), *_measurements([remote], ", S3")]


def _nights(
    directory: Path, place: str, snapshots: Mapping[str, list[Path]], environment: Mapping[str, str], *, again: bool
) -> dict[str, dict[str, Task]]:
    """Return the cost of each task, by night.

    With ``again``, the store is a directory, which is put back for the warm night in few tasks.
    """
    os.environ.update(environment)
    try:
        store = open_store(place)
        for day, paths in snapshots.items():
            for path in paths:
                store.put(f"snapshots/{day}/{path.name}", path)
        spec = directory / "graph.json"  # a YAML file, too
        spec.write_text(
            json.dumps(
                {
                    "graph": "night",
                    "store": f"{place}/graph",
                    "snapshots": {"location": f"{place}/snapshots/{{snapshot}}/*.parquet"},
                    "model": MODEL,
                }
            )
        )
        night = partial(_night, spec, log=directory / "task.log", environment=_compiled(directory / "bytecode"))
        found, before = {_COLD: night(_COLD, CHAIN)}, directory / "before"
        if again:
            shutil.copytree(place, before)
        found[_WARM] = night(_WARM, CHAIN)
        if again:
            shutil.rmtree(place)
            before.rename(place)
            found[_FEW] = night(_WARM, _FEW_TASKS)
        return found
    finally:
        for name in environment:
            del os.environ[name]


def _compiled(directory: Path) -> dict[str, str]:
    """Return an environment with compiled sources, as in an image.

    Where packages were installed without bytecode, and none may be written, each process spends seconds on that.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(directory)
    modules = ("cli", "tasks.nightly.plan", *(f"tasks.{module}" for module in TASKS.values()), "storage.s3")
    loaded = ", ".join(f"pbg_tasks.{module}" for module in modules)
    subprocess.run([sys.executable, "-c", f"import {loaded}"], cwd=ROOT, env=environment, check=True)
    return environment


def _night(spec: Path, day: str, tasks: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> dict[str, Task]:
    found: dict[str, Task] = {}
    run = str(spec)
    _empty_page_cache()
    for task in tasks:
        options = ("--snapshot", day) if task == "plan" else ()
        result, found[task] = _task([task, run, *options], log, environment)
        run = result["run"]
        say(f"{_NIGHTS[day][0]}, {task}: {found[task].cpu:.1f} CPU seconds, {found[task].wall:.1f} seconds")
    return found


def _empty_page_cache() -> None:
    """Drop what files hold of the memory, as far as permitted."""
    os.sync()
    with contextlib.suppress(OSError):
        _PAGE_CACHE.write_text("1")


def _task(words: list[str], log: Path, environment: Mapping[str, str]) -> tuple[dict[str, Any], Task]:
    """Run one command; return its result and its cost."""
    out = log.with_suffix(".json")
    with log.open("w") as errors, out.open("w") as answer:
        started = time.monotonic()
        command = [sys.executable, "-m", "pbg_tasks", *words, "--json"]
        process = subprocess.Popen(command, cwd=ROOT, env=dict(environment), stdout=answer, stderr=errors)
        with MemoryWatch(process.pid) as watch:
            _, status, used = os.wait4(process.pid, 0)  # unlike ``wait``, with the time of all that it waited for
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise PbgError(f"pbg {' '.join(words)}: {log.read_text(encoding='utf-8', errors='replace')[-2000:].strip()}")
    result = json.loads(out.read_text())
    # The result of several tasks has those of all; that of plan has the size of the snapshot.
    results = result.get("tasks", {words[0]: result}).values()
    usages = [each.get("usage", {"store_bytes_read": each.get("bytes", 0)}) for each in results]
    traffic = [sum(usage.get(f"store_bytes_{way}", 0) for usage in usages) for way in ("read", "written")]
    return result, Task(used.ru_utime + used.ru_stime, time.monotonic() - started, watch.peak, *traffic)


def _measurements(rounds: Sequence[Mapping[str, Mapping[str, Task]]], place: str) -> list[Measurement]:
    """Return the median of the rounds, by night and task."""
    found = []
    note = _NOTE + ("one round" if len(rounds) == 1 else f"median of {len(rounds)} rounds")
    for key in rounds[0]:
        night, way, most = _NIGHTS[key]
        nights = [each[key] for each in rounds]
        shares = [_cpu(tasks) / tasks["train"].cpu for tasks in nights]
        totals = {
            "CPU seconds": statistics.median(map(_cpu, nights)),
            "seconds": statistics.median(sum(task.wall for task in tasks.values()) for tasks in nights),
            "largest peak memory, bytes": max(task.memory for tasks in nights for task in tasks.values()),
            "bytes read": sum(task.read for task in nights[0].values()),
            "bytes written": sum(task.written for task in nights[0].values()),
        } | ({"least": min(shares), "largest": max(shares)} if len(rounds) > 1 else {})
        title, share = f"{night} of its training{way}{place}", statistics.median(shares)
        found.append(Measurement(title, "times", share, target=most, at_most=True, note=note, details=totals))
        for name in nights[0]:
            task = Task.median([tasks[name] for tasks in nights])
            details = {
                "seconds": task.wall,
                "peak memory, bytes": task.memory,
                "bytes read": task.read,
                "bytes written": task.written,
            }
            found.append(Measurement(f"{night}, {name}{way}{place}", "cpu-s", task.cpu, details=details))
    return found


def _cpu(tasks: Mapping[str, Task]) -> float:
    return sum(task.cpu for task in tasks.values())
