"""Walks through days: as a chain, or each night for itself.

Nights of a chain run one after the other, the others several at once.
"""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any

from benchmarks.nights.night import RELEASED, Night, run_nights
from benchmarks.nights.ranking import rank_coming
from pbg_tasks.config.results import PlanResult
from pbg_tasks.progress import say
from pbg_tasks.storage import open_store
from pbg_tasks.tasks.nightly.chain import run_task
from pbg_tasks.tasks.nightly.plan import plan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.nights.graph import Graph

UNTIL_TRAINED = ("validate", "partition", "bucket", "train")
RANDOM = "train.new_entities=random"


def walk_chain(graph: Graph, spec: Path, *, compare: bool = False) -> list[Night]:
    """Run the nights one after the other, each continuing the last.

    Args:
        graph: its days.
        spec: of a chain.
        compare: also train each night with new entities that start at random, and add ``newcomers`` to its figures.
    """
    nights = []
    for day in graph.days:
        (night,) = run_nights(spec, [day])
        if compare and night.figures.get("warm_start"):
            night.figures["newcomers"] = newcomers(graph, spec, night)
        nights.append(_reported("chain", night))
    return nights


def walk_independently(spec: Path, days: Sequence[str], *, at_once: int) -> list[Night]:
    """Run independent nights, ``at_once`` at a time.

    They are returned in the order of their days.
    """
    return [_reported("independent", night) for night in run_nights(spec, days, at_once=at_once)]


def newcomers(graph: Graph, spec: Path, night: Night) -> dict[str, Any]:
    """Rank coming edges of tonight's new entities, by two starts.

    They are ranked by the night itself, and by one that began its new entities at random.

    Returns:
        Number of ``edges``, and their MRR by the start of new entities; only the number where it is 0.
    """
    coming = graph.dated.coming(night.day)
    neighbours, edges = rank_coming(night.run, coming)
    if not edges:
        return {"edges": 0}
    url = train(spec, night.day, RANDOM)
    random, _ = rank_coming(url, coming)
    remove(url)
    return {"edges": edges, "neighbours": round(neighbours, 4), "random": round(random, 4)}


def train(spec: Path, day: str, *changes: str) -> str:
    """Train an unpublished night with a changed spec; return its URL."""
    with redirect_stderr(io.StringIO()):  # the night itself has reported everything
        url = PlanResult.model_validate(plan(spec, day, overrides=list(changes), publish=False)).run
        for task in UNTIL_TRAINED:
            run_task(task, url)
    return url


def remove(url: str) -> None:
    """Remove everything below a path."""
    store = open_store(url)
    for info in list(store.list()):
        store.delete(info.key)
    if not url.startswith("s3://"):
        shutil.rmtree(url, ignore_errors=True)


def failures(nights: Sequence[Night]) -> list[str]:
    """Return a sentence about each night that was not released."""
    return [f"{night.day}: {night.outcome}: {night.said}" for night in nights if night.outcome != RELEASED]


def _reported(walk: str, night: Night) -> Night:
    found = night.figures
    drift = found.get("drift")
    words = [
        f"{night.day} {walk}: {night.outcome}",
        f"{found['edges']:,} edges" if "edges" in found else "",
        f"MRR {found['mrr']:.4f}" if "mrr" in found else "",
        f"cosine to the night before {drift['cosine']:.3f}" if drift and "cosine" in drift else "",
        f"{found['cpu_seconds']:.1f} s of CPU" if "cpu_seconds" in found else "",
    ]
    say(", ".join(word for word in words if word))
    return night
