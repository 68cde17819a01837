"""Link prediction by commands: import, train, and rank held-out edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pbg_tasks.tasks.directory.configs import load_config_from

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.quality.commands import Pbg, Result
    from pbg_tasks.config import ConfigSchema

_TRIPLES = ("--lhs-col", "0", "--rel-col", "1", "--rhs-col", "2")
FIGURES = ("mrr", "hits1", "hits10", "mr", "auc")


class Splits(NamedTuple):
    """The three edge paths of a config, in its order."""

    train: str
    valid: str
    test: str


@dataclass(frozen=True, slots=True)
class Training:
    """A config in use, in the directory of its relative paths.

    Attributes:
        pbg: runs the command there.
        path: of the config.
        config: its contents, with the changes of ``params``.
        params: ``key=value``, for every command.
        seed: of every random choice.
    """

    pbg: Pbg
    path: Path
    config: ConfigSchema
    params: tuple[str, ...]
    seed: int

    @classmethod
    def of(cls, pbg: Pbg, path: Path, params: Sequence[str], seed: int) -> Training:
        """Read the config."""
        return cls(pbg, path, load_config_from(str(path), params), tuple(params), seed)

    def _options(self, *more: str) -> list[str]:
        return [option for param in (*self.params, *more) for option in ("-p", param)]

    def fill(self, files: Sequence[Path], columns: Sequence[str]) -> None:
        """Import one file for each edge path.

        ``columns`` are the options that name the columns of ends and relation.
        """
        self.pbg("import", "import", "tsv", str(self.path), *map(str, files), *columns, *self._options())

    def train(self, edges: str, interval: int) -> Result:
        """Train on one edge path, keeping the checkpoint of every ``interval``-th epoch."""
        params = self._options(f"edge_paths={edges}", f"checkpoint_preservation_interval={interval}")
        return self.pbg("train", "train", str(self.path), *params, "--seed", str(self.seed))

    def evaluate(self, edges: str, known: Sequence[str], *, what: str, checkpoint: str | None = None) -> Result:
        """Rank the edges of one edge path among all entities.

        Figures are given with and without the edges known to be right.
        """
        params = self._options(f"edge_paths={edges}", *([f"checkpoint_path={checkpoint}"] if checkpoint else []))
        filters = [option for path in known for option in ("--known", path)]
        return self.pbg(what, "eval", str(self.path), *params, "--filtered", *filters)

    def preserved(self, interval: int) -> list[tuple[int, str]]:
        """Return (epochs trained, checkpoint directory) of each preserved version."""
        epochs = range(interval, self.config.num_epochs + 1, interval)
        return [(epoch, f"{self.config.checkpoint_path}/epoch_{epoch}") for epoch in epochs]


def init_config(pbg: Pbg, data: Path, params: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """Write a config by ``pbg init``; return it with changes.

    The only changes are one partition, which these data sets get in any case, and one worker, so that the same seed
    gives the same bits.
    """
    path = pbg.directory / "graph.yaml"
    pbg("import", "init", str(path), *(str(data / f"{split}.tsv") for split in Splits._fields), *_TRIPLES)
    return path, ("entities.entity.num_partitions=1", "workers=1", *params)


def predict_links(training: Training, data: Path, interval: int) -> Result:
    """Import a data set, train, and rank its test edges.

    It trains on the train split. Its valid edges are ranked as training goes on.

    Args:
        training: its config has three edge paths: train, valid, test.
        data: directory with ``train.tsv``, ``valid.tsv`` and ``test.tsv``.
        interval: epochs between two points of the curve.
    """
    splits = Splits(*training.config.edge_paths)
    training.fill([data / f"{split}.tsv" for split in Splits._fields], _TRIPLES)
    trained = training.train(splits.train, interval)
    curve = []
    for epoch, checkpoint in training.preserved(interval):
        known = (splits.train, splits.test)
        found = training.evaluate(splits.valid, known, what="curve", checkpoint=checkpoint)
        curve.append([epoch, found["filtered"]["mrr"]])
    found = training.evaluate(splits.test, (splits.train, splits.valid), what="eval")
    return {
        "figures": ranking_figures(found),
        "curves": {"loss": loss_curve(trained), "quality": curve},
        "training": training_figures(trained),
    }


def ranking_figures(found: Result) -> dict[str, float]:
    """Return the filtered figures, and the raw ones under names with ``raw_``."""
    filtered = {name: round(found["filtered"][name], 6) for name in FIGURES}
    return filtered | {f"raw_{name}": round(found["raw"][name], 6) for name in FIGURES}


def loss_curve(trained: Result) -> list[list[float]]:
    """Return (epochs, mean loss of an edge in the last of them)."""
    return [[epoch, loss] for epoch, loss in enumerate(trained["curve"], 1)]


def training_figures(trained: Result) -> Result:
    """Return the figures of a training beside its losses."""
    return {name: trained[name] for name in ("epochs", "engine", "workers", "edges_per_second")}
