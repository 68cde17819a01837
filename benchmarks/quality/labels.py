"""Node classification with embeddings trained on the edges alone.

A classifier is then trained with some of the labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.quality.classification import LabelledNodes, f1_by_share
from benchmarks.quality.links import loss_curve, training_figures
from pbg_tasks import Model

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.quality.commands import Result
    from benchmarks.quality.links import Training

_PAIRS = ("--lhs-col", "0", "--rhs-col", "1")
SHARES = (0.1, 0.5, 0.9)
SPLITS = 10
_CURVE_SHARE = 0.5
_CURVE_SPLITS = 2


def predict_labels(training: Training, data: Path, interval: int) -> Result:
    """Import ``edges.tsv``, train on it, and classify the nodes of ``labels.tsv``.

    Args:
        training: its config has one edge path, and one entity type of the nodes.
        data: directory with both files.
        interval: epochs between two points of the curve, which is micro-F1 with half of the nodes labelled.
    """
    (edges,) = training.config.edge_paths
    training.fill([data / "edges.tsv"], _PAIRS)
    trained = training.train(edges, interval)
    nodes = LabelledNodes.read(data / "labels.tsv")
    curve = []
    for epoch, checkpoint in training.preserved(interval):
        vectors = _unit_vectors(training, checkpoint, nodes.names)
        found = f1_by_share(vectors, nodes.labels_NL, shares=(_CURVE_SHARE,), splits=_CURVE_SPLITS)
        curve.append([epoch, round(found[f"{_CURVE_SHARE:.0%}"]["micro_f1"] / 100, 5)])
    vectors = _unit_vectors(training, training.config.checkpoint_path, nodes.names)
    by_share = f1_by_share(vectors, nodes.labels_NL, shares=SHARES, splits=SPLITS)
    return {
        "figures": {f"{name}_{share}": value for share, found in by_share.items() for name, value in found.items()},
        "curves": {"loss": loss_curve(trained), "quality": curve},
        "training": training_figures(trained),
    }


def _unit_vectors(training: Training, checkpoint: str, names: list[str]) -> np.ndarray:
    """Return the nodes' embeddings, scaled to length 1, float32 (N, D)."""
    directory = training.pbg.directory
    with Model.open(directory / checkpoint, entity_path=directory / training.config.entity_path) as model:
        vectors_ND = np.array(model.embedding(names))
    length_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    unit_ND: np.ndarray = vectors_ND / np.maximum(length_N1, np.finfo(np.float32).tiny)
    return unit_ND
