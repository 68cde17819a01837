"""Peak memory of training one graph in one and sixteen partitions.

Its cost in quality is measured too.

The graph has communities, so that there is something to learn, and as many edges an entity as Freebase has, on which
PBG's paper reports 88 % less memory. Both trainings have the same entities, edges and held-out edges. Two of sixteen
partitions are an eighth of the embeddings; that less than that stays of the whole is the edges' doing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.speed.measurement import Measurement
from benchmarks.speed.workloads import LIVEJOURNAL, Document, placed
from pbg_tasks.config import ConfigSchema
from pbg_tasks.config.results import MemoryDocument, Metrics
from pbg_tasks.formats.edges import EdgeList, edge_file_name, write_edges
from pbg_tasks.formats.entities import write_entity_count
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.training.train import train_directory

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools

MODEL = LIVEJOURNAL | {
    "dimension": 100,
    "comparator": "dot",
    "loss_fn": "softmax",
    "lr": 0.1,
    "batch_size": 5000,
    "num_batch_negs": 20,
    "num_uniform_negs": 5,
    "num_epochs": 2,
    "workers": 2,
    "hogwild_delay": 0.0,
}
PARTITIONS = 16
_BUFFERS = {2: 0.12, 4: None}  # PBG's, with its paper's figure, and the default
_CANDIDATES = 50_000
_COMMUNITY = 50
_LOYALTY = 0.9  # share of the edges that stay within a community
_HELD_OUT = 10_000


@dataclass(frozen=True, slots=True)
class Communities:
    """A graph whose edges mostly stay within communities of 50 entities.

    A process of its own writes it, because that takes more memory than any training.

    Attributes:
        entities: a multiple of the number of partitions.
        edges: for training.
    """

    entities: int
    edges: int

    def write(self, folder: str, partitions: int) -> Document:
        """Write the graph below a folder and return a config.

        Entity ``i`` is in partition ``i % partitions``.
        """
        root = Path(folder)
        for directory in ("entities", "edges", "held_out"):
            (root / directory).mkdir(parents=True)
        (entity,) = MODEL["entities"]
        for part in range(partitions):
            write_entity_count(root / "entities", entity, part, self.entities // partitions)
        lhs, rhs = self._ends(np.random.default_rng(0))
        for name, chosen in (("edges", slice(_HELD_OUT, None)), ("held_out", slice(_HELD_OUT))):
            _write_buckets(root / name, lhs[chosen], rhs[chosen], partitions)
        return placed(MODEL, root) | {"entities": {entity: {"num_partitions": partitions}}}

    def _ends(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        count = self.edges + _HELD_OUT
        lhs = rng.integers(self.entities, size=count, dtype=np.int32)
        rhs = lhs - lhs % _COMMUNITY + rng.integers(_COMMUNITY, size=count, dtype=np.int32)
        strays = np.flatnonzero(rng.random(count, dtype=np.float32) > _LOYALTY)
        rhs[strays] = rng.integers(self.entities, size=len(strays), dtype=np.int32)
        return lhs, np.minimum(rhs, self.entities - 1)


def _write_buckets(directory: Path, lhs: np.ndarray, rhs: np.ndarray, partitions: int) -> None:
    bucket = (lhs % partitions * partitions + rhs % partitions).astype(np.uint16)
    order = np.argsort(bucket, kind="stable")
    stops = np.cumsum(np.bincount(bucket, minlength=partitions**2))
    for number, piece in enumerate(np.split(order, stops[:-1])):
        left, right = ((side[piece] // partitions).astype(np.int64) for side in (lhs, rhs))
        path = directory / edge_file_name(*divmod(number, partitions))
        write_edges(path, EdgeList(left, right, np.zeros(len(piece), np.int64)))


class Ours:
    """``pbg train`` and ``pbg eval``.

    Args:
        config: of the graph.
    """

    def __init__(self, config: Document) -> None:
        self._config = config

    def train(self) -> dict[str, Any]:
        """Train, and return its report on memory."""
        return MemoryDocument.model_validate(train_directory(ConfigSchema(**self._config))["memory"]).document()

    def mrr(self) -> float:
        """Return the MRR of the held-out edges."""
        held_out = self._config | {"edge_paths": [str(Path(self._config["edge_paths"][0]).with_name("held_out"))]}
        result = evaluate_directory(ConfigSchema(**held_out), max_candidates=_CANDIDATES)
        return Metrics.model_validate(result).raw.figures()["mrr"]


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Train the graph in one partition, and in sixteen.

    Of sixteen, two or four are in memory.
    """
    graph = Communities(400_000, 9_000_000) if quick else Communities(4_000_000, 90_000_000)
    name = f"peak memory, {graph.entities / 1e6:g} M entities, {graph.edges / 1e6:g} M edges, dimension 100"
    whole = _trained(tools, graph, 1)
    found = [Measurement(f"{name}: 1 partition", "B", whole.peak, details=whole.details(whole.mrr))]
    for buffer, target in _BUFFERS.items():
        parted = _trained(tools, graph, PARTITIONS, buffer)
        found += _compared(f"{name}: {PARTITIONS} partitions, {buffer} in memory", parted, whole, target)
    return found


def _compared(name: str, parted: Trained, whole: Trained, target: float | None) -> list[Measurement]:
    whole_process = "of the whole process in 1 partition, with Python and torch"
    beyond = "without what the process held before, and what libraries take at first use by the forecast"
    alone = Measurement(
        f"{name}, of 1, the training alone", "share", parted.own / whole.own, target=target, at_most=True, note=beyond
    )
    return [
        Measurement(name, "B", parted.peak, details=parted.details(whole.mrr)),
        Measurement(
            f"{name}, of 1", "share", parted.peak / whole.peak, target=target, at_most=True, note=whole_process
        ),
        alone,
    ]


class Trained(NamedTuple):
    """Memory of a training, and its quality.

    Attributes:
        peak: measured, of the whole process.
        forecast: of the peak.
        base: memory of the process before, with the forecast's allowance for the first use of libraries.
        mrr: of the held-out edges.
    """

    peak: int
    forecast: int
    base: int
    mrr: float

    @property
    def own(self) -> int:
        """Bytes of the training alone: the measured peak beyond ``base``."""
        return self.peak - self.base

    def details(self, mrr_in_one: float) -> dict[str, float]:
        """Return the figures shown beside the peak."""
        return {
            "MRR": self.mrr,
            "MRR in 1 partition": mrr_in_one,
            "forecast": self.forecast,
            "forecast error": self.forecast / self.peak - 1,
        }


def _trained(tools: Tools, graph: Communities, partitions: int, buffer: int | None = None) -> Trained:
    """Train the graph, each step in a process of its own."""
    with tools.scratch() as root:
        with tools.ours(f"{__name__}:Communities", **asdict(graph)) as maker:
            config = maker("write", folder=str(root), partitions=partitions).value | {"partition_buffer": buffer}
        with tools.ours(f"{__name__}:Ours", config=config) as ours:
            memory = ours("train").value
        with tools.ours(f"{__name__}:Ours", config=config) as ours:
            mrr = ours("mrr").value
    return Trained(memory["measured_peak"], memory["peak"], memory["lines"]["process"], mrr)
