"""Real gangs on this machine, and simulations of their work."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.quality.commands import Clock, Pbg
from benchmarks.scaling.graphs import TIES, one_type
from benchmarks.scaling.links import Network
from benchmarks.scaling.simulate import Outcome, Work, simulate
from benchmarks.speed.workloads import LIVEJOURNAL, RandomGraph
from pbg_tasks.checkpoint.stats import FILE_NAME, IO_FILE_NAME
from pbg_tasks.training.data.partitions import partition_keys
from pbg_tasks.training.schedule import Bucket

if TYPE_CHECKING:
    from collections.abc import Mapping

GRAPH = RandomGraph(entities=80_000, edges=800_000, partitions=8)
IDLE_GRAPH = replace(GRAPH, edges=6_400)
"""The same with hardly any edges: its buckets take the time of their I/O."""
MODEL = LIVEJOURNAL | {"dimension": 100, "bucket_order": TIES, "distributed_tree_init_order": False}
_EPOCHS = 2  # the first iteration starts processes and threads, and does not count


@dataclass(frozen=True, slots=True)
class RealRun:
    """The last iteration of a real training.

    Attributes:
        ranks: processes that trained, one thread each.
        servers: ``num_partition_servers``.
        ahead: ``partitions_ahead``.
        seconds: it took, up to its commit.
        trained: rank-seconds of training.
        edges: of each bucket.
    """

    ranks: int
    servers: int
    ahead: bool
    seconds: float
    trained: float
    edges: Mapping[Bucket, int]

    @property
    def busy(self) -> float:
        """Share of the time in which a rank trains."""
        return self.trained / self.seconds / self.ranks

    @property
    def overhead(self) -> float:
        """Seconds a bucket takes beside its training.

        Measured in a run that hardly waits for leases.
        """
        return (self.seconds * self.ranks - self.trained) / len(self.edges)

    def simulated(self, overhead: float) -> Outcome:
        """Simulate the same buckets with ``overhead`` seconds of I/O.

        Each takes as long as it took, by its edges.
        """
        side = max(bucket.lhs for bucket in self.edges) + 1
        config = one_type(side, dimension=1)
        pace = self.trained / sum(self.edges.values())
        work = Work(
            config,
            {bucket: count * pace for bucket, count in self.edges.items()},
            dict.fromkeys(partition_keys(config), 1),
            row_bytes=1,
        )
        # moving takes the overhead, nothing more
        network = Network(link=math.inf, store=math.inf, store_total=math.inf, latency=overhead / 2, record=0.0)
        return simulate(work, self.ranks, network, servers=0, ahead=self.ahead)


def real_run(config: Mapping[str, Any], directory: Path, ranks: int, *, servers: int, ahead: bool = False) -> RealRun:
    """Train with ``pbg train --ranks``, a thread each.

    Args:
        config: PBG's, its graph in place.
        directory: for the checkpoint.
        ranks: processes; one of them trains alone, without a gang.
        servers: ``num_partition_servers``, 0 or -1.
        ahead: ``partitions_ahead``.

    Raises:
        PbgError: the command failed.
    """
    name = f"{ranks}-ranks-{servers}{'-ahead' * ahead}"
    document = dict(config) | {
        "checkpoint_path": str(directory / name),
        "num_epochs": _EPOCHS,
        "num_partition_servers": servers,
        "partitions_ahead": ahead,
    }
    path = directory / f"{name}.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    gang = ("--ranks", str(ranks)) if ranks > 1 else ()
    Pbg(directory, Clock())(name, "train", str(path), *gang)
    return parsed(Path(document["checkpoint_path"]), ranks, servers, ahead=ahead)


def parsed(checkpoint: Path, ranks: int, servers: int, *, ahead: bool = False) -> RealRun:
    """Read the last iteration out of a checkpoint's statistics."""
    texts = [(checkpoint / name).read_text(encoding="utf-8") for name in (FILE_NAME, IO_FILE_NAME)]
    entries = [json.loads(line) for text in texts for line in text.splitlines()]
    io, last = entries[-1]["io"], entries[-1]["epoch_idx"]
    edges: Counter[Bucket] = Counter()
    for entry in entries:
        if entry["epoch_idx"] == last and "lhs_partition" in entry:
            edges[Bucket(entry["lhs_partition"], entry["rhs_partition"])] += entry["stats"]["count"]
    # "waited" is the time in which the mean rank did not train
    return RealRun(ranks, servers, ahead, io["seconds"], (io["seconds"] - io["waited"]) * ranks, edges)
