"""Peers on FB15k.

DeepWalk is left out, since its walks know no relations, and PBG has the race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.speed import peers
from benchmarks.speed.workloads import FB15K, SPLITS, placed

if TYPE_CHECKING:
    from benchmarks.speed.harness import Tools
    from benchmarks.speed.measurement import Measurement


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:  # noqa: ARG001 - never quick
    """Train by PyG, where it can be installed, and by ours."""
    root = tools.directory / "graph"
    document = placed(FB15K | {"dimension": 200}, root, "train")
    task = peers.Task("FB15k", root, document, ours=3, pbg=0, pyg=10, loops=True)
    task.write({split: tools.fb15k() / f"{split}.tsv" for split in SPLITS})
    return list(peers.rows(task, peers.our_finishes(tools, task), peers.finish_of_pyg(tools, task)))
