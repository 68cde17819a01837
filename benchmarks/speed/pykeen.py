"""Our step on FB15k beside PyKEEN's, where installed.

The mathematics differs, the model is the same.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.speed.borrowing import borrowing
from benchmarks.speed.engines import available
from benchmarks.speed.measurement import Measurement, in_turns
from benchmarks.speed.workloads import fb15k
from pbg_tasks.formats.edges import edge_file_name
from pbg_tasks.formats.entities import read_entity_count, read_relation_count

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools

_REQUIREMENT = "pykeen==1.11.1"
_NOTE = (
    "ComplEx, equal dimension, batches of 1000 edges and one thread; PyKEEN trains by LCWA: each edge against all "
    "14,951 entities on its right, we against 1,050 on either side"
)


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:
    """Compare steps.

    Nothing is measured, and the reason is reported, where PyKEEN cannot be installed.
    """
    python = borrowing(tools.cache / "pykeen", _REQUIREMENT)
    if python is None:
        return []
    config = fb15k(tools.fb15k(), tools.directory / "fb15k")
    entities, variant = Path(config["entity_path"]), ("native" if "native" in available(config) else "torch")
    theirs = tools.worker(
        python,
        "benchmarks.speed.pykeen_side:Training",
        edges=str(Path(config["edge_paths"][0]) / edge_file_name(0, 0)),
        entities=read_entity_count(entities, "all", 0),
        relations=read_relation_count(entities),
        dimension=config["dimension"],
    )
    with tools.ours("benchmarks.speed.steps:Ours", config=config, variants=[variant], workers=1) as ours, theirs:
        sides = {
            "ours": partial(ours, "train", variant=variant, edges=5_000 if quick else 20_000),
            "theirs": partial(theirs, "train", edges=1_000 if quick else 5_000),
        }
        rounds = in_turns(tools.pairs, sides)
    title = f"FB step, {variant}, against PyKEEN"
    return [Measurement.rate(title, "edges/cpu-s", rounds["ours"], rounds["theirs"], note=_NOTE)]
