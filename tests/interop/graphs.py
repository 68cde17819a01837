"""Small data sets as PBG's files, and configs of PBG 1.0.0."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pbg_tasks.config import ConfigSchema
from pbg_tasks.formats.arrow_numbers import text_column
from pbg_tasks.formats.edges import EdgeList, Features, edge_file_name, write_edges
from pbg_tasks.formats.entities import write_entity_columns, write_entity_count, write_relation_names

if TYPE_CHECKING:
    from collections.abc import Callable

    Counts = dict[str, tuple[int, ...]]
    Ends = Callable[[np.ndarray, np.random.Generator], np.ndarray]

OPERATORS = ("none", "diagonal", "translation", "linear", "affine", "complex_diagonal")
COMPARATORS = ("dot", "cos", "l2", "squared_l2")
LOSSES = ("softmax", "logistic", "ranking")
DYNAMIC_RELATIONS = 3
COUNTS: Counts = {"user": (31, 30), "item": (20,)}
EDGES_IN_BUCKET = 100
# Options assigned to the rows by turns; those of negatives are for types whose entities can be drawn.
_EXTRAS: tuple[dict[str, Any], ...] = (
    {"bias": True},
    {"max_norm": 0.8},
    {"eval_fraction": 0.1, "eval_num_batch_negs": 10, "eval_num_uniform_negs": 10},
    {"disable_lhs_negs": True},
    {"relation_lr": 0.02, "num_edge_chunks": 2},
)
_NEGATIVES: tuple[dict[str, Any], ...] = (
    {"num_batch_negs": 10, "num_uniform_negs": 5},
    {"num_batch_negs": 0, "num_uniform_negs": 7},
    {"num_batch_negs": 10, "all_negs": True},
)
# PBG shuffles, so its evaluation can be repeated only where all edges of a bucket are in one chunk and none is drawn.
IN_ONE_CHUNK: dict[str, Any] = {
    "batch_size": EDGES_IN_BUCKET,
    "num_batch_negs": EDGES_IN_BUCKET,
    "num_uniform_negs": 0,
}


@dataclass(frozen=True, slots=True)
class Row:
    """Kind of model, one row of the matrix."""

    number: int
    operator: str
    dynamic: bool
    featurized: bool

    def __str__(self) -> str:
        mode, ends = "dynamic" if self.dynamic else "standard", "featurized" if self.featurized else "ids"
        return f"{self.operator}-{mode}-{ends}"

    def document(self, root: Path) -> dict[str, Any]:
        """Return the config; comparators, losses and options differ between rows."""
        negatives = dict(_NEGATIVES[0 if self.featurized else self.number % len(_NEGATIVES)])
        relation = {"operator": self.operator, "all_negs": negatives.pop("all_negs", False)}
        ends = [("user", "item")] if self.dynamic else [("user", "item"), ("user", "user"), ("item", "user")]
        return {
            "entities": {
                "user": {"num_partitions": len(COUNTS["user"])},
                "item": {"num_partitions": len(COUNTS["item"]), "featurized": self.featurized},
            },
            "relations": [
                {"name": f"r{index}", "lhs": lhs, "rhs": rhs, "weight": 1.0 + index, **relation}
                for index, (lhs, rhs) in enumerate(ends)
            ],
            "dynamic_relations": self.dynamic,
            "global_emb": not self.dynamic,
            "comparator": COMPARATORS[self.number % len(COMPARATORS)],
            "loss_fn": LOSSES[self.number % len(LOSSES)],
            "num_epochs": 2,
            "batch_size": 20,
            "eval_fraction": 0.0,
            **paths(root),
            **COMMON,
            **negatives,
            **_EXTRAS[self.number % len(_EXTRAS)],
        }


ROWS = [Row(number, *kind) for number, kind in enumerate(product(OPERATORS, (False, True), (False, True)))]
COMMON: dict[str, Any] = {"dimension": 8, "init_scale": 0.3, "lr": 0.1, "workers": 1}


def paths(root: Path) -> dict[str, Any]:
    """Return the keys that name files, all below ``root``."""
    return {
        "entity_path": str(root / "entities"),
        "edge_paths": [str(root / "edges")],
        "checkpoint_path": str(root / "model"),
    }


def write_graph(document: dict[str, Any], counts: Counts = COUNTS) -> ConfigSchema:
    """Write entities, relations, edges and held-out edges of a config.

    The config has the types of ``Row``, and is returned.
    """
    config = ConfigSchema(**document)
    write_entities(config, counts)
    names = [f"r{index}" for index in range(DYNAMIC_RELATIONS if config.dynamic_relations else len(config.relations))]
    write_relation_names(Path(config.entity_path), names, dynamic=config.dynamic_relations)
    rng = np.random.default_rng(0)
    for directory, make in ((Path(config.edge_paths[0]), _random_ends), (held_out(config), _distinct_ends)):
        directory.mkdir()
        for lhs, rhs in product(range(config.partitions("lhs")), range(config.partitions("rhs"))):
            edges = _bucket(config, counts, (lhs, rhs), make, rng)
            write_edges(directory / edge_file_name(lhs, rhs), edges, checksums=config.checksums)
    return config


def held_out(config: ConfigSchema) -> Path:
    """Return the edge path of held-out edges.

    No entity occurs twice in a bucket's column, and no bag of features: as a negative it would tie with the true one,
    and equal scores that PBG computes in two ways differ in their last bits.
    """
    return Path(config.edge_paths[0]).with_name("held-out")


def write_entities(config: ConfigSchema, counts: Counts) -> None:
    """Write counts and names."""
    directory = Path(config.entity_path)
    directory.mkdir()
    for entity, sizes in counts.items():
        for partition, count in enumerate(sizes):
            write_entity_count(directory, entity, partition, count)
            names = text_column(f"{entity} {partition}.{n} é" for n in range(count))
            write_entity_columns(directory, entity, partition, [names])


def _bucket(
    config: ConfigSchema, counts: Counts, bucket: tuple[int, int], make: Ends, rng: np.random.Generator
) -> EdgeList:
    count = EDGES_IN_BUCKET if make is _random_ends else min(map(min, counts.values()))
    rel = rng.integers(0, DYNAMIC_RELATIONS if config.dynamic_relations else len(config.relations), count)
    types = [config.relations[0 if config.dynamic_relations else index] for index in rel]
    ends: dict[str, np.ndarray] = {}
    features: dict[str, Features | None] = {}
    for side, partition in zip(("lhs", "rhs"), bucket, strict=True):
        entities = [getattr(relation, side) for relation in types]
        bags = [config.entities[entity].featurized for entity in entities]
        sizes = np.array([counts[entity][partition if len(counts[entity]) > 1 else 0] for entity in entities])
        rows = make(sizes, rng)
        ends[side] = np.where(bags, -1, rows[:, 0])
        lists = [sorted(set(row)) if bag else [] for row, bag in zip(rows.tolist(), bags, strict=True)]
        features[side] = Features.of(lists) if any(bags) else None
    return EdgeList(ends["lhs"], ends["rhs"], rel, None, features["lhs"], features["rhs"])


def _random_ends(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, sizes[:, np.newaxis], (len(sizes), 3))


def _distinct_ends(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    first = rng.permutation(len(sizes))
    return np.stack([first, (first + 1) % sizes, (first + 2) % sizes], axis=1)
