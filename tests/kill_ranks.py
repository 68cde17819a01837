"""Kill ranks of a real gang at random moments, over and over, and check what is left each time.

    python -m tests.kill_ranks --times 100 --ranks 3

A gang of real processes trains a small graph while its ranks, rank 0 as well, are killed with SIGKILL. After each kill
every other rank has to end by itself within a minute, the next gang has to go on, no committed version may be lost and
no object that counts may change. At the end every edge was trained once an epoch, or the ledger says how often more.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from pbg_tasks.checkpoint import open_committed
from pbg_tasks.formats.edges import EdgeList, edge_file_name, write_edges
from pbg_tasks.storage import open_store
from pbg_tasks.storage.staging import Scratch

IN_TRAINING = 0.85
"""Share of kills that wait until the gang trains; the others come while it forms."""
END_SECONDS = 60.0
"""In which all ranks of a gang have to have ended after one was killed."""


@dataclass
class Graph:
    """A small data set and its PBG config.

    Attributes:
        directory: of everything.
        partitions: of its one entity type.
        edges: in each bucket.
        epochs: to train.
        servers: ``num_partition_servers``, 0 or -1.
    """

    directory: Path
    partitions: int = 4
    edges: int = 20_000
    epochs: int = 3
    servers: int = 0
    rows: int = 2_000

    @property
    def config(self) -> Path:
        """Its config."""
        return self.directory / "config.json"

    @property
    def total(self) -> int:
        """Edges of an epoch."""
        return self.edges * self.partitions**2

    def write(self) -> Graph:
        """Write it."""
        (self.directory / "entities").mkdir(parents=True)
        (self.directory / "edges").mkdir()
        generator = np.random.default_rng(0)
        for partition in range(self.partitions):
            (self.directory / "entities" / f"entity_count_n_{partition}.txt").write_text(f"{self.rows}\n")
            for other in range(self.partitions):
                cluster = generator.integers(0, 20, self.edges) * (self.rows // 20)
                ends = (cluster + generator.integers(0, self.rows // 20, self.edges) for _ in range(2))
                path = self.directory / "edges" / edge_file_name(partition, other)
                write_edges(path, EdgeList(*ends, np.zeros(self.edges, np.int64)))
        config = {
            "entities": {"n": {"num_partitions": self.partitions}},
            "relations": [{"name": "r", "lhs": "n", "rhs": "n", "operator": "translation"}],
            "dimension": 32,
            "num_epochs": self.epochs,
            "batch_size": 500,
            "lr": 0.1,
            "eval_fraction": 0.0,
            "workers": 1,
            "global_emb": False,
            "num_partition_servers": self.servers,
            "store_interval": 1.0,
            "entity_path": str(self.directory / "entities"),
            "edge_paths": [str(self.directory / "edges")],
            "checkpoint_path": str(self.directory / "model"),
        }
        self.config.write_text(json.dumps(config))
        return self

    def head(self) -> dict[str, object]:
        """Return HEAD.json as it is now."""
        try:
            return json.loads((self.directory / "model" / "HEAD.json").read_text())
        except (OSError, ValueError):
            return {"version": 0, "writer_epoch": 0}

    def check(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Verify every object of the newest version, and return the ledger."""
        manifest, files = open_committed(open_store(str(self.directory / "model")), "")
        with Scratch() as scratch:
            files.fetch_all(manifest.objects, scratch.path)
        return manifest.edges, manifest.retrained


@dataclass
class Findings:
    """What happened.

    Attributes:
        kills: by rank.
        ended: seconds that the others took to end, of each kill.
        problems: what must not happen.
    """

    kills: Counter[int] = field(default_factory=Counter)
    ended: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return a summary."""
        worst = max(self.ended, default=0.0)
        return (
            f"{sum(self.kills.values())} kills {dict(sorted(self.kills.items()))}; the others ended after at most "
            f"{worst:.1f} s (mean {sum(self.ended) / max(len(self.ended), 1):.1f}); {len(self.problems)} problems"
        )


def start(graph: Graph, *arguments: str) -> subprocess.Popen[bytes]:
    """Start ``pbg train`` on a graph."""
    log = (graph.directory / "log").open("ab")
    command = [sys.executable, "-m", "pbg_tasks", "train", str(graph.config), "--json", *arguments]
    return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)


def ranks_of(launcher: int) -> dict[int, int]:
    """Return the process ids of a launcher's ranks."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if stat[0] == "Z" or int(stat[1]) != launcher:
                continue
            variables = dict(
                item.split("=", 1) for item in (entry / "environ").read_bytes().decode().split("\0") if "=" in item
            )
        except (OSError, ValueError):
            continue
        if "RANK" in variables:
            found[int(variables["RANK"])] = int(entry.name)
    return found


def alive(pid: int) -> bool:
    """Tell whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_often(graph: Graph, *, ranks: int, times: int, seed: int, longest: float = 2.0) -> Findings:
    """Kill a random rank again and again, then let the training end.

    Args:
        graph: that is trained; its epochs have to last.
        ranks: of the gang.
        times: kills.
        seed: of moments and ranks.
        longest: seconds until the kill, from the gang's start or its first record.
    """
    findings, chance = Findings(), random.Random(seed)
    launcher = start(graph, "--ranks", str(ranks), "--max-restarts", str(10 * times))
    version = 0
    try:
        while sum(findings.kills.values()) < times and launcher.poll() is None:
            gang = _wait_for_gang(launcher, ranks)
            if chance.random() < IN_TRAINING:
                _wait_for_record(graph, launcher)
            time.sleep(chance.uniform(0.0, longest))
            victim = chance.randrange(ranks)
            if launcher.poll() is not None or not gang or not alive(gang[victim]):
                continue
            os.kill(gang[victim], signal.SIGKILL)
            killed = time.monotonic()
            findings.kills[victim] += 1
            while any(alive(pid) for pid in gang.values()) and time.monotonic() - killed < END_SECONDS:
                time.sleep(0.05)
            findings.ended.append(time.monotonic() - killed)
            if any(alive(pid) for pid in gang.values()):
                findings.problems.append(f"after {END_SECONDS:.0f} s ranks of the gang were still there")
            version = _check_version(graph, version, findings)
            print(f"{sum(findings.kills.values())}: rank {victim}, version {version}, {findings.line()}", flush=True)
        status = launcher.wait(600)
        if status:
            findings.problems.append(f"the training ended with status {status}")
    finally:
        launcher.kill()
    edges, retrained = graph.check()
    if edges != (graph.total,) * graph.epochs:
        findings.problems.append(f"ledger: {edges}, not {graph.epochs} x {graph.total}")
    print(f"edges of each epoch {edges}, of them trained more than once or perhaps {retrained}")
    return findings


def _wait_for_gang(launcher: subprocess.Popen[bytes], ranks: int) -> dict[int, int]:
    end = time.monotonic() + END_SECONDS
    while launcher.poll() is None and time.monotonic() < end:
        gang = ranks_of(launcher.pid)
        if len(gang) == ranks:
            return gang
        time.sleep(0.05)
    return {}


def _wait_for_record(graph: Graph, launcher: subprocess.Popen[bytes]) -> None:
    """Wait until the gang that is there now has recorded a bucket."""
    epoch, end = graph.head()["writer_epoch"], time.monotonic() + END_SECONDS
    while launcher.poll() is None and time.monotonic() < end:
        head = graph.head()
        if head.get("progress") and head["writer_epoch"] != epoch:
            return
        time.sleep(0.02)


def _check_version(graph: Graph, before: int, findings: Findings) -> int:
    version = int(str(graph.head()["version"]))
    if version < before:
        findings.problems.append(f"version {before} was committed and is lost: HEAD.json names {version}")
    if version:
        graph.check()
    return version


def main(
    times: Annotated[int, typer.Option(help="Kills.")] = 100,
    ranks: Annotated[int, typer.Option(help="Of a gang.")] = 3,
    servers: Annotated[int, typer.Option(help="num_partition_servers: 0 or -1.")] = 0,
    epochs: Annotated[int, typer.Option(help="Of the training.")] = 40,
    seed: Annotated[int, typer.Option(help="Of moments and victims.")] = 0,
    longest: Annotated[float, typer.Option(help="Seconds until the kill, at most.")] = 2.0,
) -> None:
    """Kill and count."""
    with tempfile.TemporaryDirectory() as directory:
        graph = Graph(Path(directory) / "graph", epochs=epochs, servers=servers).write()
        findings = kill_often(graph, ranks=ranks, times=times, seed=seed, longest=longest)
        print(findings.line())
        for problem in findings.problems:
            print(f"PROBLEM: {problem}")
        if findings.problems:
            print((graph.directory / "log").read_text()[-4000:])
    raise typer.Exit(bool(findings.problems))


if __name__ == "__main__":
    typer.run(main)
