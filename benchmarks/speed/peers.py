"""CPU seconds to equal quality, of other programs and of ours.

Each trains on the same edge file, by one thread. Their vectors are put into a checkpoint of ours, so that one evaluator
ranks the same held-out edges among the same candidates. Importing text, starting and evaluating do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from benchmarks.speed.borrowing import borrowing
from benchmarks.speed.measurement import Measurement
from benchmarks.speed.workloads import SPLITS, TRIPLES, placed
from pbg_tasks.config import ConfigSchema
from pbg_tasks.config.results import Metrics
from pbg_tasks.errors import ResourceError
from pbg_tasks.formats.directory import checkpoint_version_bytes
from pbg_tasks.formats.edges import EdgeList, edge_file_name, read_edges, write_edges
from pbg_tasks.formats.embeddings import embeddings_file_name, write_embeddings
from pbg_tasks.formats.entities import read_entity_count, read_relation_count
from pbg_tasks.formats.metadata import IterationInfo
from pbg_tasks.formats.model import ModelState, model_file_name, write_model
from pbg_tasks.progress import human_count, say
from pbg_tasks.tasks.directory.evaluate import evaluate_directory
from pbg_tasks.tasks.directory.importing import import_edges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.speed.harness import Tools
    from benchmarks.speed.workloads import Document

_PYG = "torch_geometric==2.8.1"
_RANKED = 10_000
_EQUAL = 0.99
"""Part of a figure from which on a quality counts as equal."""
_VERSION = 1


class Quality(NamedTuple):
    """Filtered figures of held-out edges, ranked on both sides."""

    mrr: float
    auc: float

    def equals(self, other: Self) -> bool:
        """Return whether both figures are as good as another's."""
        return all(mine >= _EQUAL * theirs for mine, theirs in zip(self, other, strict=True))


class Finish(NamedTuple):
    """CPU seconds of a training, and what came of it."""

    cpu: float
    quality: Quality


@dataclass(frozen=True, slots=True)
class Task:
    """A graph in files of PBG's formats, and its held-out edges.

    Attributes:
        name: for the reader.
        root: directory of its files: entities, and an edge path for each split, of which ``ranked`` is evaluated.
        document: config of our training and PBG's.
        ours: epochs of ours.
        pbg: epochs of PBG.
        pyg: same, of PyG.
        loops: whether an entity is a candidate for its own neighbour.
    """

    name: str
    root: Path
    document: Document
    ours: int
    pbg: int
    pyg: int
    loops: bool

    def write(self, files: Mapping[str, Path]) -> Self:
        """Import the splits of triples, and draw the edges to rank."""
        config = ConfigSchema(**self.document | placed({}, self.root, *SPLITS))
        import_edges(config, [str(files[split]) for split in SPLITS], TRIPLES)
        test = read_edges(self.root / "test" / edge_file_name(0, 0))
        drawn = np.sort(np.random.default_rng(0).permutation(len(test))[:_RANKED])
        self._put("ranked", test.select(drawn))
        rel, entity = np.divmod(np.arange(0 if self.loops else self.entities * self.relations), self.entities)
        self._put("loops", EdgeList(entity, entity, rel))
        return self

    def _put(self, name: str, edges: EdgeList) -> None:
        (self.root / name).mkdir()
        write_edges(self.root / name / edge_file_name(0, 0), edges)

    @property
    def edges(self) -> str:
        """File of the edges that train."""
        return str(self.root / "train" / edge_file_name(0, 0))

    @property
    def entities(self) -> int:
        """Number of entities."""
        return read_entity_count(self.root / "entities", "all", 0)

    @property
    def relations(self) -> int:
        """Number of relations."""
        return read_relation_count(self.root / "entities")

    def quality(self, document: Document) -> Quality:
        """Rank the drawn edges by a config's checkpoint.

        Loops are left out as other known edges are: PBG's models do not record which relations have them.
        """
        config = ConfigSchema(**document | {"edge_paths": [str(self.root / "ranked")]})
        known = [str(self.root / name) for name in (*SPLITS, "loops")]
        found = evaluate_directory(config, filtered=True, known=known, threads=1)
        figures = Metrics.model_validate(found).filtered.figures()
        return Quality(figures["mrr"], figures["auc"])

    def stored(self, peer: str, entities: np.ndarray, relations: np.ndarray | None) -> Document:
        """Write vectors as a checkpoint; return its config.

        Args:
            peer: name of its directory.
            entities: (n, d).
            relations: (r, d), complex numbers of ComplEx with real parts first; None: the score is the product of two
                entities, which ranks better than their cosine after DeepWalk.
        """
        document = self.document | {"checkpoint_path": str(self.root / peer)}
        params: dict[str, np.ndarray] = {}
        if relations is None:
            document |= {"relations": [document["relations"][0] | {"operator": "none"}]}
        else:
            real, imag = np.split(relations, 2, axis=1)
            # Re(l r conj(t)) is the product of l r and t, and that of l and t conj(r).
            for side, sign in (("lhs", 1), ("rhs", -1)):
                params |= {f"relations/0/operator/{side}/real": real, f"relations/0/operator/{side}/imag": sign * imag}
        config = ConfigSchema(**document)
        iteration = IterationInfo(1, 0, 1, 0, config.edge_paths[0], 1, 0)
        directory = Path(config.checkpoint_path)
        directory.mkdir()
        name = embeddings_file_name("all", 0, _VERSION)
        write_embeddings(directory / name, entities, None, lr=config.lr, iteration=iteration, config=config)
        write_model(directory / model_file_name(_VERSION), ModelState(params), config=config, iteration=iteration)
        (directory / "checkpoint_version.txt").write_bytes(checkpoint_version_bytes(_VERSION))
        return document


def our_finishes(tools: Tools, task: Task) -> list[Finish]:
    """Return seconds and quality after each epoch of the native engine."""
    found, cpu = list[Finish](), 0.0
    with tools.ours("benchmarks.speed.epochs:Ours", config=task.document) as ours:
        for epoch in range(1, task.ours + 1):
            cpu += ours("epoch").cpu
            found.append(Finish(cpu, task.quality(task.document)))
            say(f"peers: {task.name}, {epoch} of ours: {_shown(found[-1])}")
    return found


def finish_of_pbg(tools: Tools, task: Task) -> dict[str, Finish]:
    """Return PBG's finish by its name.

    There is none where it cannot be installed.
    """
    document = task.document | {"checkpoint_path": str(task.root / "pbg"), "num_epochs": task.pbg}
    try:
        with tools.theirs("WholeTraining", config=document) as pbg:
            cpu = pbg("train").cpu
    except ResourceError as error:
        say(f"peers: PBG is skipped: {error}")
        return {}
    return {f"PBG, the same config, {task.pbg} epochs": _finish(task, "PBG", cpu, document)}


def finish_of_deepwalk(tools: Tools, task: Task) -> dict[str, Finish]:
    """Return gensim's finish by its name.

    There is none where gensim is missing.
    """
    try:
        from benchmarks.speed.deepwalk_side import LENGTH, WALKS, WINDOW
    except ImportError as error:
        say(f"peers: DeepWalk is skipped: {error}; pip install gensim")
        return {}
    out = str(task.root / "deepwalk.npy")
    place, dimension = "benchmarks.speed.deepwalk_side:DeepWalk", task.document["dimension"]
    with tools.ours(place, edges=task.edges, entities=task.entities, dimension=dimension) as deepwalk:
        cpu = deepwalk("train", out=out).cpu
    document = task.stored("deepwalk", np.load(out), None)
    name = f"DeepWalk by gensim, {WALKS} walks of {LENGTH}, window {WINDOW}"
    return {name: _finish(task, "DeepWalk", cpu, document)}


def finish_of_pyg(tools: Tools, task: Task) -> dict[str, Finish]:
    """Return PyG's finish by its name.

    There is none where it cannot be installed.
    """
    python = borrowing(tools.cache / "pyg", _PYG)
    if python is None:
        return {}
    out = str(task.root / "pyg.npz")
    with tools.worker(
        python,
        "benchmarks.speed.pyg_side:Training",
        edges=task.edges,
        entities=task.entities,
        relations=task.relations,
        dimension=task.document["dimension"],
    ) as pyg:
        cpu = pyg("train", epochs=task.pyg, out=out).cpu
    with np.load(out) as arrays:
        document = task.stored("pyg", arrays["entities"], arrays["relations"])
    return {f"ComplEx by PyG, {task.pyg} epochs": _finish(task, "PyG", cpu, document)}


def _finish(task: Task, peer: str, cpu: float, document: Document) -> Finish:
    found = Finish(cpu, task.quality(document))
    say(f"peers: {task.name}, {peer}: {_shown(found)}")
    return found


def _shown(finish: Finish) -> str:
    return f"MRR {finish.quality.mrr:.4f}, AUC {finish.quality.auc:.4f} in {finish.cpu:.1f} CPU s"


def rows(task: Task, ours: Sequence[Finish], peers: Mapping[str, Finish]) -> Iterator[Measurement]:
    """Yield a row for each peer, and our end.

    A row has the first epoch of ours that is as good as the peer's end; without one it has our last, and no ratio.
    """
    keys = ("num_uniform_negs", "num_batch_negs", "lr", "batch_size")
    note = f"complex_diagonal, dot, softmax, dimension {task.document['dimension']}, " + ", ".join(
        f"{key} {task.document[key]}" for key in keys
    )
    candidates = f"{human_count(_RANKED)} held-out edges ranked on both sides among all entities"
    note += f"; {candidates}{'' if task.loops else ' but themselves'}; one training of each"
    note += f"; ours is the first epoch of which both figures are at least {_EQUAL} of theirs"
    for name, theirs in peers.items():
        equal = [at for at, each in enumerate(ours, 1) if each.quality.equals(theirs.quality)]
        epoch = equal[0] if equal else len(ours)
        mine = ours[epoch - 1]
        details = {"our epochs": epoch, **_figures("our", mine), **_figures("their", theirs)}
        ratios = (theirs.cpu / mine.cpu,) if equal else ()
        yield Measurement(f"{task.name}: {name}", "cpu-s", mine.cpu, theirs.cpu, ratios, note=note, details=details)
    last = {"our epochs": len(ours), **_figures("our", ours[-1])}
    yield Measurement(f"{task.name}: our last epoch", "cpu-s", ours[-1].cpu, note=note, details=last)


def _figures(whose: str, finish: Finish) -> dict[str, float]:
    return {f"{whose} MRR": finish.quality.mrr, f"{whose} AUC": finish.quality.auc}
