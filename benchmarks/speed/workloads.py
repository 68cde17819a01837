"""Graphs and configs of the steps, in files of PBG's formats.

Both sides read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.arrow_numbers import text_column
from pbg_tasks.formats.edges import EdgeList, edge_file_name, write_edges
from pbg_tasks.formats.entities import write_entity_columns, write_entity_count
from pbg_tasks.tasks.directory.importing import EdgeLists, import_edges
from pbg_tasks.tasks.training.train import train_directory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Document = dict[str, Any]
"""A config as a dict that PBG 1.0.0 reads: no key that came after it."""

TRIPLES = EdgeLists("tsv", lhs="0", rel="1", rhs="2")
SPLITS = ("train", "valid", "test")

# PBG's own example without the N3 regularizer, which came after 1.0.0.
FB15K: Document = {
    "entities": {"all": {"num_partitions": 1}},
    "relations": [{"name": "all_edges", "lhs": "all", "rhs": "all", "operator": "complex_diagonal"}],
    "dynamic_relations": True,
    "dimension": 400,
    "global_emb": False,
    "comparator": "dot",
    "loss_fn": "softmax",
    "batch_size": 1000,
    "num_batch_negs": 50,
    "num_uniform_negs": 1000,
    "lr": 0.1,
    "eval_fraction": 0.0,
    "workers": 1,
}
LIVEJOURNAL: Document = {
    "entities": {"user_id": {"num_partitions": 1}},
    "relations": [{"name": "follow", "lhs": "user_id", "rhs": "user_id", "operator": "none"}],
    "dimension": 1024,
    "global_emb": False,
    "comparator": "cos",
    "loss_fn": "ranking",
    "margin": 0.1,
    "batch_size": 1000,
    "num_batch_negs": 50,
    "num_uniform_negs": 50,
    "lr": 0.001,
    "eval_fraction": 0.0,
    "workers": 1,
}


def placed(document: Mapping[str, Any], root: Path, *edges: str) -> Document:
    """Return a config whose files are below ``root``."""
    return {
        **document,
        "entity_path": str(root / "entities"),
        "edge_paths": [str(root / name) for name in edges or ("edges",)],
        "checkpoint_path": str(root / "model"),
    }


def fb15k(data: Path, root: Path) -> Document:
    """Import FB15k's three splits and return its config.

    The config's edges are the train split.
    """
    document = placed(FB15K, root, *SPLITS)
    import_edges(ConfigSchema(**document), [str(data / f"{split}.tsv") for split in SPLITS], TRIPLES)
    return placed(FB15K, root, "train")


def trained_fb15k(data: Path, root: Path) -> Document:
    """Import FB15k, train briefly, and return its config.

    It is trained for one short epoch on its valid split; the config's edges are the test split.
    """
    fb15k(data, root)
    train_directory(ConfigSchema(**placed(FB15K, root, "valid")))
    return placed(FB15K, root, "test")


@dataclass(frozen=True, slots=True)
class RandomGraph:
    """A graph of one entity type and one relation.

    Its edges are drawn uniformly.

    Attributes:
        entities: number of them.
        edges: number of them.
        partitions: of the entities, in equal parts.
        names: whether files of names are written too; only an export reads them.
    """

    entities: int
    edges: int
    partitions: int = 1
    names: bool = False

    def write(self, document: Mapping[str, Any], root: Path) -> Document:
        """Write its files below ``root`` and return a config with these partitions.

        Args:
            document: a config with one entity type and a listed relation.
            root: made when it is missing.
        """
        (entity,) = document["entities"]
        placed_document = placed(document, root) | {"entities": {entity: {"num_partitions": self.partitions}}}
        counts = [len(range(part, self.entities, self.partitions)) for part in range(self.partitions)]
        for directory in ("entities", "edges"):
            (root / directory).mkdir(parents=True)
        for part, count in enumerate(counts):
            write_entity_count(root / "entities", entity, part, count)
            if self.names:
                names = text_column(f"{part}.{row}" for row in range(count))
                write_entity_columns(root / "entities", entity, part, [names])
        rng = np.random.default_rng(0)
        share = np.outer(counts, counts).ravel() / self.entities**2
        for bucket, size in enumerate(rng.multinomial(self.edges, share)):
            lhs, rhs = divmod(bucket, self.partitions)
            left, right = (rng.integers(counts[part], size=size) for part in (lhs, rhs))
            edges = EdgeList(left, right, np.zeros(size, np.int64))
            write_edges(root / "edges" / edge_file_name(lhs, rhs), edges)
        return placed_document
