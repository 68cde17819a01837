"""A graph spec that is small and complete, also as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path


def small_spec(place: Path | str, graph: str) -> dict[str, Any]:
    """Return a spec with snapshots and store below ``place``."""
    return {
        "graph": graph,
        "store": f"{place}/store/{graph}",
        "snapshots": {"location": f"{place}/snapshots/{{snapshot}}/*.parquet"},
        "model": {
            "entities": {"node": {"num_partitions": 2}},
            "relations": [{"name": "likes", "lhs": "node", "rhs": "node", "operator": "translation"}],
            "dimension": 16,
            "comparator": "dot",
            "loss_fn": "softmax",
            "global_emb": False,
            "num_epochs": 2,
            "batch_size": 100,
            "lr": 0.1,
        },
        "split": {"valid": 0.05, "test": 0.1},
        "train": {"warm_epochs": 1},
        "gates": {
            "max_mrr_drop": 1.0,
            "min_common_edges": 1,
            "max_trend_drop": {},
            "min_over_popularity": {},
            "min_over_start": {},
        },
        "resources": {"memory_gb": 1, "threads": 1},
    }


def spec_file(folder: Path, place: Path | str, graph: str, **sections: object) -> Path:
    """Write a small spec with other sections; return its path."""
    path = folder / f"{graph}.yaml"
    path.write_text(yaml.safe_dump(small_spec(place, graph) | sections))
    return path
