"""A graph with the chosen days as snapshots.

It has a store, and the spec that its nights follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.nights.days import find, read_dated_edges, write_snapshot
from pbg_tasks.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.nights.days import DatedEdges, Edge
    from pbg_tasks.config.nights import Walk

FIRST_EPOCHS, EPOCHS = 15, 1
MODEL: dict[str, Any] = {
    "entities": {"node": {"num_partitions": 1}},
    "relations": [{"name": "edge", "lhs": "node", "rhs": "node", "operator": "translation"}],
    "dynamic_relations": True,
    "dimension": 100,
    "global_emb": False,
    "comparator": "dot",
    "loss_fn": "softmax",
    "regularizer": "N3",
    "regularization_coef": 0.01,
    "lr": 0.05,
    "num_epochs": FIRST_EPOCHS,
    "batch_size": 500,
    "num_batch_negs": 50,
    "num_uniform_negs": 1000,
}
SPLIT = {"valid": 0.1, "test": 0.15}
# No night here may rank a third worse than the one before, on some hundred held-out edges.
# The walks themselves are compared.
_LENIENT: dict[str, Any] = {
    "max_mrr_drop": 0.33,
    "max_trend_drop": {"warn": 0.33},
    "min_over_popularity": {"warn": 1},
    "min_over_start": {"warn": 1},
}
GATES: dict[str, Any] = {**_LENIENT, "data": {"max_removed_edges": {"block": 0.3}}}
WINDOW_GATES = _LENIENT  # as many edges as the window loses in a day may be removed


@dataclass(frozen=True, slots=True)
class Graph:
    """Written snapshots, and the constants of all walks through them.

    Attributes:
        name: of the data.
        place: folder or ``s3://`` prefix of the snapshots and of each walk's store.
        specs: local folder for the specs.
        days: keys of the snapshots.
        dated: edges they were made of.
        window: number of days of each; None: all so far.
    """

    name: str
    place: str
    specs: Path
    days: list[str]
    dated: DatedEdges
    window: int | None

    @classmethod
    def write(
        cls,
        data: str,
        source: Path,
        *,
        place: str,
        specs: Path,
        count: int,
        first: str | None = None,
        window: int | None = None,
        every: int = 1,
    ) -> Graph:
        """Write the snapshots of some days below ``place``.

        Args:
            data: name of a data set, or a path.
            source: folder of data sets.
            place: folder or ``s3://`` prefix.
            specs: local folder.
            count: number of days.
            first: of them; see ``DatedEdges.chosen``.
            window: see ``DatedEdges.snapshots``.
            every: see ``DatedEdges.chosen``.

        Raises:
            InputError: there is no such data, or it has not so many days.
        """
        name, path = find(data, source)
        dated, store = read_dated_edges(path), open_store(place)
        days = dated.chosen(count, first, every)
        for day, edges in dated.snapshots(days, window):
            write_snapshot(store, day, edges)
        return cls(name, store.url, specs, days, dated, window)

    @property
    def gates(self) -> dict[str, Any]:
        """Gates of the nights: the defaults where the data loses edges."""
        if self.dated.signed:
            return {}
        return GATES if self.window is None else WINDOW_GATES

    def day_after(self) -> tuple[str, list[Edge]]:
        """Return the day after the last with the edges known then.

        Its snapshot is not written.

        Raises:
            InputError: the data ends before.
        """
        _, after = self.dated.chosen(2, self.days[-1])
        ((_, edges),) = self.dated.snapshots([after], self.window)
        return after, edges

    def spec(self, walk: Walk, **sections: Any) -> Path:  # noqa: ANN401 - parts of a spec
        """Write the spec of a walk and return its file.

        The store is named after the walk.

        Args:
            walk: to be run.
            sections: keys that replace the spec's own, one by one.
        """
        document = {
            "graph": self.name,
            "store": f"{self.place}/{walk}",
            "snapshots": {"location": f"{self.place}/snapshots/{{snapshot}}/*.parquet"},
            "model": MODEL,
            "split": SPLIT,
            "train": {"warm_epochs": EPOCHS},
            "gates": self.gates,
            "resources": {"memory_gb": 1, "threads": 1},
            "nights": {"walk": "chain", "first": self.days[0]} if walk == "chain" else {"walk": walk},
        }
        document = merged(document, sections)
        path = self.specs / f"{walk}.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        return path


def merged(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a document with some keys changed, at every level."""
    found = dict(document)
    for key, value in changes.items():
        below = found.get(key)
        found[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return found
