"""Settings of both walks, which valid edges decide between.

Independent nights choose a model and its epochs first; the chain keeps that model and chooses how it continues, on all
nights.
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
    "10 epochs, lr .02": {"model": {"num_epochs": 10, "lr": 0.02}},
    "10 epochs, lr .1": {"model": {"num_epochs": 10, "lr": 0.1}},
    "10 epochs, lr .02, no batch negatives": {"model": {"num_epochs": 10, "lr": 0.02, **_WITHOUT}},
    "10 epochs, lr .05, no batch negatives": {"model": {"num_epochs": 10, "lr": 0.05, **_WITHOUT}},
    "10 epochs, lr .1, no batch negatives": {"model": {"num_epochs": 10, "lr": 0.1, **_WITHOUT}},
    "10 epochs, lr .2, no batch negatives": {"model": {"num_epochs": 10, "lr": 0.2, **_WITHOUT}},
    "10 epochs, lr .4, no batch negatives": {"model": {"num_epochs": 10, "lr": 0.4, **_WITHOUT}},
    "5 epochs, lr .05, no batch negatives": {"model": {"num_epochs": 5, "lr": 0.05, **_WITHOUT}},
    "20 epochs, lr .02, no batch negatives": {"model": {"num_epochs": 20, "lr": 0.02, **_WITHOUT}},
    "20 epochs, lr .2, no batch negatives": {"model": {"num_epochs": 20, "lr": 0.2, **_WITHOUT}},
    "10 epochs, lr .1, complex_diagonal, no batch negatives": {
        "model": {"num_epochs": 10, "lr": 0.1, **_COMPLEX, **_WITHOUT}
    },
}
PLAIN = "1 epoch"
CHAIN: dict[str, Setting] = {
    PLAIN: {"warm_epochs": 1},
    "1 epoch, anchor .5": {"warm_epochs": 1, "anchor": 0.5},
    "1 epoch, anchor 2": {"warm_epochs": 1, "anchor": 2},
    "2 epochs, anchor 2": {"warm_epochs": 2, "anchor": 2},
    "1 epoch, shrink .85 / .5": {"warm_epochs": 1, "shrink": {"vectors": 0.85, "sums": 0.5}},
    "1 epoch, shrink .9 / .5": {"warm_epochs": 1, "shrink": {"vectors": 0.9, "sums": 0.5}},
    "2 epochs, shrink .9 / .7": {"warm_epochs": 2, "shrink": {"vectors": 0.9, "sums": 0.7}},
    "1 delta epoch, sample .1": {"warm_epochs": 1, "delta": {"sample": 0.1}},
    "1 delta epoch, sample .1, anchor 2": {"warm_epochs": 1, "delta": {"sample": 0.1}, "anchor": 2},
    "1 delta epoch, sample .3, anchor 2": {"warm_epochs": 1, "delta": {"sample": 0.3}, "anchor": 2},
}
"""Sections ``train`` beside the model of the independent nights."""
ON_VALID: Setting = {
    "eval": {"split": "valid"},
    "gates": {
        "max_mrr_drop": 1.0,
        "max_trend_drop": {"warn": 1},
        "min_over_popularity": {"warn": 1},
        "min_over_start": {"warn": 1},
    },
}
"""Nights judge by valid edges, and nothing but a bad snapshot stops them."""


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
    name: str = max(_steady(found) or found, key=lambda row: row["valid"])["name"]
    return name


def cheapest_of(rows: Iterable[Mapping[str, Any]], valid: float) -> str | None:
    """Return the setting that trains fewest edges; None without one.

    Args:
        rows: as for ``best_of``, with ``edges_trained``; those that keep fewer neighbours than ``OVERLAP`` are left
            out.
        valid: MRR on valid edges that it has to reach.
    """
    found = [row for row in _steady(rows) if row["valid"] >= valid]
    if not found:
        return None
    name: str = min(found, key=lambda row: (row["edges_trained"], -row["valid"]))["name"]
    return name


def _steady(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["overlap"] is None or row["overlap"] >= OVERLAP]
