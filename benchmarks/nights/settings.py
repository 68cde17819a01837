"""Settings of both walks, which valid edges decide between.

Independent nights choose a model and its epochs first, on the last night; the chain keeps that model and chooses how it
continues, on all nights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.nights.graph import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Setting = dict[str, Any]

OVERLAP = 0.9
"""Share of the ten nearest neighbours that a chain should keep from night to night."""
_COMPLEX = {"relations": [{**MODEL["relations"][0], "operator": "complex_diagonal"}]}
_WITHOUT = {"num_batch_negs": 0}
INDEPENDENT: dict[str, Setting] = {
    "15 epochs, lr .05": {"model": {"num_epochs": 15, "lr": 0.05}},
    "3 epochs, lr .05": {"model": {"num_epochs": 3, "lr": 0.05}},
    "10 epochs, lr .02": {"model": {"num_epochs": 10, "lr": 0.02}},
    "10 epochs, lr .02, no batch negatives": {"model": {"num_epochs": 10, "lr": 0.02, **_WITHOUT}},
    "10 epochs, lr .1, no batch negatives": {"model": {"num_epochs": 10, "lr": 0.1, **_WITHOUT}},
    "10 epochs, lr .1, bias": {"model": {"num_epochs": 10, "lr": 0.1, "bias": True}},
    "5 epochs, lr .02, complex_diagonal": {"model": {"num_epochs": 5, "lr": 0.02, **_COMPLEX}},
    "10 epochs, lr .1, complex_diagonal": {"model": {"num_epochs": 10, "lr": 0.1, **_COMPLEX}},
    "20 epochs, lr .1, complex_diagonal, no batch negatives": {
        "model": {"num_epochs": 20, "lr": 0.1, **_COMPLEX, **_WITHOUT}
    },
}
CHAIN: dict[str, Setting] = {
    "1 epoch": {"warm_epochs": 1},
    "1 epoch, shrink .85 / .5": {"warm_epochs": 1, "shrink": {"vectors": 0.85, "sums": 0.5}},
    "1 delta epoch, sample .1": {"warm_epochs": 1, "delta": {"sample": 0.1}},
}
"""Sections ``train`` beside the model of the independent nights."""
ON_VALID: Setting = {
    "eval": {"split": "valid"},
    "gates": {"min_over_popularity": {"warn": 1}, "min_over_start": {"warn": 1}},
}


def kept(results: Mapping[str, Any], name: str) -> tuple[Setting, Setting]:
    """Return the chosen sections of independent nights and of the chain.

    Args:
        results: as kept.
        name: of the data; where nothing was tuned, both are empty.
    """
    tuned = results.get("tuning", {}).get(name)
    if tuned is None:
        return {}, {}
    model = INDEPENDENT[tuned["chosen"]]
    chain = results.get("stories", {}).get(name, {}).get("compared", {}).get("chosen")
    return model, {**model, "train": CHAIN[chain]} if chain else model


def best_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the name of the setting with the best valid MRR.

    Args:
        rows: of one walk: ``name``, ``valid`` and ``overlap``. A setting that keeps fewer neighbours than ``OVERLAP``
            is chosen only where all do; an ``overlap`` of None asks for none.
    """
    found = list(rows)
    steady = [row for row in found if row["overlap"] is None or row["overlap"] >= OVERLAP]
    name: str = max(steady or found, key=lambda row: row["valid"])["name"]
    return name
