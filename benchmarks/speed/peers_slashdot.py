"""Peers on the links of Slashdot, a network without relations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.quality.data import SLASHDOT, obtain
from benchmarks.speed import peers
from benchmarks.speed.workloads import FB15K, SPLITS, placed
from pbg_tasks.errors import StorageError
from pbg_tasks.progress import say

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.speed.harness import Tools
    from benchmarks.speed.measurement import Measurement

_PARTS = (0.89, 0.90)
"""Ends of the training split and of the validation split."""


def measure(tools: Tools, *, quick: bool) -> list[Measurement]:  # noqa: ARG001 - never quick
    """Train by every program that is here.

    The reason is reported where there are no data or a program is missing.
    """
    try:
        source = obtain(SLASHDOT, tools.data, tools.cache) / "edges.tsv"
    except StorageError as error:
        say(f"peers_slashdot: skipped: {error}")
        return []
    root = tools.directory / "graph"
    document = placed(FB15K | {"dimension": 128, "num_uniform_negs": 50}, root, "train")
    task = peers.Task("Slashdot", root, document, ours=4, pbg=2, pyg=10, loops=False)
    task.write(split_links(source, tools.directory / "text"))
    ours = peers.our_finishes(tools, task)
    others = [finish(tools, task) for finish in (peers.finish_of_pbg, peers.finish_of_deepwalk, peers.finish_of_pyg)]
    return list(peers.rows(task, ours, {name: end for found in others for name, end in found.items()}))


def split_links(source: Path, folder: Path) -> dict[str, Path]:
    """Write links as triples of one relation, in three splits.

    Loops are left out; a tenth of the links, drawn, is the split of tests, and a hundredth that of validation.

    Returns:
        A file for each split.
    """
    links = np.loadtxt(source, np.int64, delimiter="\t")
    links = links[links[:, 0] != links[:, 1]]
    drawn = np.random.default_rng(0).random(len(links))
    parts = np.searchsorted(_PARTS, drawn, side="right")
    folder.mkdir()
    files = {split: folder / f"{split}.tsv" for split in SPLITS}
    for part, path in enumerate(files.values()):
        lines = (f"{lhs}\tlink\t{rhs}\n" for lhs, rhs in links[parts == part].tolist())
        path.write_text("".join(lines), encoding="ascii")
    return files
