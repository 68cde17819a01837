"""Kill ranks of a real gang at random moments, repeatedly.

Each time the remaining state is checked.

    python -m tests.kill_ranks --ranks 4 --rounds 20 --seed 1

A gang of real processes trains FB15k-237 while its ranks, rank 0 as well, are killed with SIGKILL, one in each round.
Every other rank has to end by itself within a minute, the next gang has to go on, no committed version may be lost and
no object that counts may change. At the end every edge was trained once an epoch, or the ledger has the repetitions,
and the vectors are as good as those of an undisturbed gang. Prints a table; ends with 1 on any breach.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.quality.data import FB15K_237, cache_directory, obtain
from examples.stack.processes import Identity
from pbg_tasks.checkpoint import open_committed
from pbg_tasks.formats.edges import EdgeList, edge_file_name, write_edges
from pbg_tasks.progress import aligned
from pbg_tasks.storage import open_store
from pbg_tasks.storage.staging import Scratch
from pbg_tasks.training.ranks.transport.certificates import make_certificates

IN_TRAINING = 0.85
"""Share of kills that wait until the gang trains; the others come while it forms."""
END_SECONDS = 60.0
"""Seconds within which all ranks of a gang have to end after one was killed."""
WORSE = 0.1
"""Relative fall of the MRR that is no breach: seeds alone differ by a few per cent."""
MODEL: dict[str, Any] = {
    "batch_size": 500,
    "lr": 0.1,
    "eval_fraction": 0.0,
    "workers": 1,
    "global_emb": False,
    "store_interval": 1.0,
}


@dataclass
class Graph:
    """A data set in PBG's layout, with config and checkpoint.

    Attributes:
        directory: of everything.
        total: edges of an epoch.
        epochs: to train.
        model: name of the checkpoint's directory.
    """

    directory: Path
    total: int
    epochs: int
    model: str = "model"

    @classmethod
    def random(
        cls, directory: Path, *, edges: int, epochs: int, partitions: int = 4, rows: int = 2_000, **keys: object
    ) -> Graph:
        """Write a graph of random clusters with equally large buckets.

        ``keys`` are more of its config.
        """
        (directory / "entities").mkdir(parents=True)
        (directory / "train").mkdir()
        generator = np.random.default_rng(0)
        for partition in range(partitions):
            (directory / "entities" / f"entity_count_n_{partition}.txt").write_text(f"{rows}\n")
            for other in range(partitions):
                cluster = generator.integers(0, 20, edges) * (rows // 20)
                ends = (cluster + generator.integers(0, rows // 20, edges) for _ in range(2))
                path = directory / "train" / edge_file_name(partition, other)
                write_edges(path, EdgeList(*ends, np.zeros(edges, np.int64)))
        graph = cls(directory, edges * partitions**2, epochs)
        graph.configure(
            entities={"n": {"num_partitions": partitions}},
            relations=[{"name": "r", "lhs": "n", "rhs": "n", "operator": "translation"}],
            dimension=32,
            **keys,
        )
        return graph

    @classmethod
    def imported(
        cls, directory: Path, data: Path, *, epochs: int, servers: int, ahead: bool, tls: bool = False
    ) -> Graph:
        """Import FB15k-237 from files ``train.tsv``, ``valid.tsv`` and ``test.tsv``."""
        directory.mkdir(parents=True)
        graph = cls(directory, 0, epochs)
        graph.configure(
            entities={"all": {"num_partitions": 8}},
            relations=[{"name": "all", "lhs": "all", "rhs": "all", "operator": "complex_diagonal"}],
            dynamic_relations=True,
            dimension=64,
            comparator="dot",
            loss_fn="softmax",
            num_uniform_negs=100,
            num_partition_servers=servers,
            partitions_ahead=ahead,
            rank_tls=tls,
        )
        files = [str(data / f"{split}.tsv") for split in ("train", "valid", "test")]
        edge_paths = [str(directory / split) for split in ("train", "valid", "test")]
        columns = ("--lhs-col", "0", "--rel-col", "1", "--rhs-col", "2")
        graph.run("import", "tsv", str(graph.config), *files, *columns, "-p", f"edge_paths={json.dumps(edge_paths)}")
        graph.total = sum(1 for _ in (data / "train.tsv").open())
        return graph

    @property
    def config(self) -> Path:
        """Its config."""
        return self.directory / "config.json"

    @property
    def checkpoint(self) -> Path:
        """Path of the trained checkpoint."""
        return self.directory / self.model

    def secrets(self) -> dict[str, str]:
        """Return a new gang's token, and certificates with rank_tls."""
        token = {"PBG_RUN_TOKEN": secrets.token_hex(32)}
        if not json.loads(self.config.read_text()).get("rank_tls"):
            return token
        return {**token, **make_certificates(dt.timedelta(hours=1)).environment()}

    def configure(self, **keys: object) -> None:
        """Write the config."""
        paths = {
            "entity_path": str(self.directory / "entities"),
            "edge_paths": [str(self.directory / "train")],
            "checkpoint_path": str(self.checkpoint),
        }
        self.config.write_text(
            json.dumps(MODEL | {"num_partition_servers": 0, "num_epochs": self.epochs} | paths | keys)
        )

    def run(self, *arguments: str) -> dict[str, Any]:
        """Run a command of ``pbg``; return its output."""
        with (self.directory / "log").open("ab") as log:
            command = [sys.executable, "-m", "pbg_tasks", *arguments, "--json"]
            found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=-1, stderr=log).stdout)
            return found

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``pbg train``."""
        command = [sys.executable, "-m", "pbg_tasks", "train", str(self.config), "--json", *arguments]
        command += ["-p", f"checkpoint_path={self.checkpoint}"]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def quality(self) -> float:
        """Return the filtered MRR of the test edges."""
        known = [option for split in ("train", "valid") for option in ("--known", str(self.directory / split))]
        places = ("-p", f"edge_paths={self.directory / 'test'}", "-p", f"checkpoint_path={self.checkpoint}")
        return float(self.run("eval", str(self.config), *places, "--filtered", *known)["filtered"]["mrr"])

    def head(self) -> dict[str, Any]:
        """Return HEAD.json as it is now."""
        try:
            head: dict[str, Any] = json.loads((self.checkpoint / "HEAD.json").read_text())
        except (OSError, ValueError):
            return {"version": 0, "writer_epoch": 0}
        return head

    def check(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Verify every object of the newest version, and return the ledger."""
        manifest, files = open_committed(open_store(str(self.checkpoint)), "")
        with Scratch() as scratch:
            files.fetch_all(manifest.objects, scratch.path)
        return manifest.edges, manifest.retrained


@dataclass
class Findings:
    """Results of the kills.

    Attributes:
        kills: by rank.
        retrained: of each epoch, edges that may have been trained more than once.
        ended: seconds that the others took to end, for each kill.
        problems: outcomes that must not happen.
    """

    kills: Counter[int] = field(default_factory=Counter)
    retrained: tuple[int, ...] = ()
    ended: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return a summary."""
        worst = max(self.ended, default=0.0)
        return (
            f"{sum(self.kills.values())} kills {dict(sorted(self.kills.items()))}; the others ended after at most "
            f"{worst:.1f} s (mean {sum(self.ended) / max(len(self.ended), 1):.1f}); {len(self.problems)} problems"
        )


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
    launcher = graph.start("--ranks", str(ranks), "--max-restarts", str(10 * times), "--seed", str(seed))
    version = 0
    try:
        while sum(findings.kills.values()) < times and launcher.poll() is None:
            gang = _wait_for_gang(launcher, ranks)
            if chance.random() < IN_TRAINING:
                _wait_for_record(graph, launcher)
            time.sleep(chance.uniform(0.0, longest))
            victim = chance.randrange(ranks)
            if launcher.poll() is not None or not gang or Identity.of(gang[victim]) is None:
                continue
            os.kill(gang[victim], signal.SIGKILL)
            killed = time.monotonic()
            findings.kills[victim] += 1
            while any(map(Identity.of, gang.values())) and time.monotonic() - killed < END_SECONDS:
                time.sleep(0.05)
            findings.ended.append(time.monotonic() - killed)
            if any(map(Identity.of, gang.values())):
                findings.problems.append(f"after {END_SECONDS:.0f} s ranks of the gang were still there")
            version = _check_version(graph, version, findings)
            print(f"{sum(findings.kills.values())}: rank {victim}, version {version}, {findings.line()}", flush=True)
        status = launcher.wait(600)
        if status:
            findings.problems.append(f"the training ended with status {status}")
    finally:
        launcher.kill()
    edges, findings.retrained = graph.check()
    if edges != (graph.total,) * graph.epochs:
        findings.problems.append(f"ledger: {edges}, not {graph.epochs} x {graph.total}")
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
    version = int(graph.head()["version"])
    if version < before:
        findings.problems.append(f"version {before} was committed and is lost: HEAD.json names {version}")
    if version:
        graph.check()
    return version


def compare(graph: Graph, findings: Findings, *, ranks: int, seed: int) -> tuple[float, float]:
    """Return the MRR of the disturbed and an undisturbed training."""
    disturbed = graph.quality()
    graph.model = "undisturbed"
    if status := graph.start("--ranks", str(ranks), "--seed", str(seed)).wait(1800):
        findings.problems.append(f"the undisturbed training ended with status {status}")
        return disturbed, float("nan")
    calm = graph.quality()
    if disturbed < (1 - WORSE) * calm:
        findings.problems.append(f"MRR {disturbed:.4f}, undisturbed {calm:.4f}")
    return disturbed, calm


def table(graph: Graph, findings: Findings, mrr: tuple[float, float]) -> str:
    """Return the results as text."""
    rows = [
        ("kills", f"{sum(findings.kills.values())}, by rank {dict(sorted(findings.kills.items()))}"),
        ("seconds until the others had ended", f"mean {np.mean(findings.ended):.1f}, most {max(findings.ended):.1f}"),
        ("epochs", f"{graph.epochs} of {graph.total} edges each, all objects verified"),
        ("edges that may have been trained twice", f"{sum(findings.retrained)}: {list(findings.retrained)}"),
        ("filtered MRR", f"{mrr[0]:.4f}, of an undisturbed gang {mrr[1]:.4f}"),
        *(("BREACH", problem) for problem in findings.problems),
    ]
    return "\n".join(aligned(rows))


def main(
    rounds: Annotated[int, typer.Option(help="Kills.")] = 20,
    ranks: Annotated[int, typer.Option(help="Of a gang.")] = 4,
    servers: Annotated[int, typer.Option(help="num_partition_servers: 0 or -1.")] = 0,
    *,
    ahead: Annotated[bool, typer.Option("--ahead", help="partitions_ahead.")] = False,
    tls: Annotated[bool, typer.Option("--tls", help="rank_tls.")] = False,
    epochs: Annotated[int, typer.Option(help="Of the training.")] = 8,
    seed: Annotated[int, typer.Option(help="Of moments, victims and the training.")] = 0,
    longest: Annotated[float, typer.Option(help="Seconds until the kill, at most.")] = 2.0,
    data: Annotated[Path, typer.Option(help="Folder with the data sets.")] = Path("../shared/data"),
) -> None:
    """Kill, resume, and check."""
    with tempfile.TemporaryDirectory() as directory:
        files = obtain(FB15K_237, data, cache_directory())
        graph = Graph.imported(Path(directory) / "graph", files, epochs=epochs, servers=servers, ahead=ahead, tls=tls)
        findings = kill_often(graph, ranks=ranks, times=rounds, seed=seed, longest=longest)
        print(table(graph, findings, compare(graph, findings, ranks=ranks, seed=seed)))
        if findings.problems:
            print((graph.directory / "log").read_text()[-4000:])
    raise typer.Exit(bool(findings.problems))


if __name__ == "__main__":
    typer.run(main)
