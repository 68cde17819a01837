"""Keys of a model that suits most graphs.

``api.train`` and ``pbg init`` use them as defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

OPERATOR = "complex_diagonal"
"""Operator of relations that name none."""

PRESET: dict[str, JsonValue] = {
    "comparator": "dot",
    "loss_fn": "softmax",
    "lr": 0.6,
    "lr_schedule": "linear",
    "regularizer": "N3",
    "regularization_coef": 0.03,
    "batch_size": 100,
    "num_batch_negs": 50,
    "num_uniform_negs": 500,
    "num_epochs": 30,
    "global_emb": False,
    "eval_fraction": 0.0,
}
"""Preset values where they differ from PBG's defaults. ``docs/quality.md`` compares them with configs that were tuned.
"""

_EDGES = 3_000_000
_LEAST, _MOST = 5, 60
_LARGE = 2_000_000


def of_size(edges: int) -> dict[str, int]:
    """Return the keys that follow from the number of edges.

    Small graphs need more epochs, and small batches.
    """
    epochs = min(max(round(_EDGES / max(edges, 1)), _LEAST), _MOST)
    return {"num_epochs": epochs, "batch_size": 100 if edges < _LARGE else 1000}


def takes_self_negatives(relation: Mapping[str, Any], entities: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether ``self_negatives`` helps a relation.

    It does where the relation leads from one type to the same, by an operator that treats the two ends differently.

    Args:
        relation: its keys.
        entities: keys of the types, by name.
    """
    if relation["lhs"] != relation["rhs"] or relation["operator"] == "none" or relation.get("all_negs"):
        return False
    return not entities.get(relation["lhs"], {}).get("featurized")
