"""End of a training by a sample of the valid split.

An edge of the sample is ranked when its bucket has been trained for the epoch's last time, while both partitions are in
memory: nothing is read twice, and every rank ranks what it trains. The figures are part of the committed versions, so
each start and each rank comes to the same decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pbg_tasks.train.starting_point import seeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pbg_tasks.checkpoint import Iteration, Manifest
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.train.data.edge_files import EdgeFiles
    from pbg_tasks.train.schedule import Bucket

FEWEST = 400
"""Edges of a sample: fewer decide nothing, so training goes on to its last epoch.

With 200, a night of AS-733 stopped too early by chance and ranked a tenth worse.
"""
MOST = 20_000
"""Edges of a sample: MRR is known to some .002 with so many."""
CALL = 200
"""Edges that cost as much to rank as a bucket costs by itself."""


def affordable(trained: int, negatives: int) -> int:
    """Return how many edges 4 % of an epoch rank, or 0.

    The native engine trains an edge in 1 microsecond and 1 more for each 40 negatives, at dimension 100; ranking one
    takes some 50, with negatives or without.

    Args:
        trained: edges of an epoch.
        negatives: of an edge and side.
    """
    found = int(trained * (1 + negatives / 40) / 1250)
    return min(found, MOST) if found >= FEWEST else 0


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Rule that ends a training, and the sample that it asks.

    Attributes:
        patience: epochs in a row without a new best one, after which training ends.
        edges: the valid split.
        total: edges of it.
        trained: edges of an epoch, by bucket.
        negatives: of an edge and side.
        seed: of the run; draws the sample.
    """

    patience: int
    edges: EdgeFiles
    total: int
    trained: Mapping[Bucket, int]
    negatives: int
    seed: int
    _samples: dict[Bucket, EdgeList] = field(default_factory=dict, compare=False)

    @property
    def size(self) -> int:
        """Edges of the sample, at most; 0: no early stop."""
        size = min(self._affordable, len(self._chosen) * self.total // max(len(self.trained), 1))
        return size if size >= FEWEST else 0

    @property
    def _affordable(self) -> int:
        return affordable(sum(self.trained.values()), self.negatives)

    @property
    def _chosen(self) -> list[Bucket]:
        """The buckets to rank, few because each costs by itself."""
        affordable_edges = self._affordable
        each = max(self.total // max(len(self.trained), 1), CALL)
        count = max(affordable_edges // each, min(affordable_edges, 1))
        return sorted(self.trained, key=lambda bucket: (-self.trained[bucket], bucket))[:count]

    def sample(self, iteration: Iteration, bucket: Bucket) -> EdgeList | None:
        """Return the edges to rank after a bucket; the same each epoch.

        Returns:
            None where the bucket is trained again within the epoch, is not of the sample, or has no such edges.

        Raises:
            FormatError: the file of the bucket is damaged.
        """
        if not self.size or not ends_epoch(iteration) or bucket not in self._chosen:
            return None
        if bucket not in self._samples:
            count, wanted = self.edges.count(0, bucket), self._affordable // len(self._chosen)
            drawn = torch.randperm(count, generator=seeded(self.seed, "valid", *bucket))[:wanted].sort().values
            self._samples[bucket] = self.edges.read(0, bucket, 0, count).select(drawn.numpy())
        return self._samples[bucket] if len(self._samples[bucket]) else None

    def stops(self, manifest: Manifest | None) -> bool:
        """Return whether a version ends the training before its last epoch."""
        return manifest is not None and stops(manifest.valid, self.patience)

    def report(self, manifest: Manifest | None, epochs: int) -> dict[str, Any]:
        """Return what belongs into the result of a training.

        Args:
            manifest: of the newest version.
            epochs: that were planned.
        """
        valid = manifest.valid if manifest is not None else ()
        found: dict[str, Any] = {
            "patience": self.patience,
            "edges": self.size,
            "mrr": [round(each, 6) for each in valid],
        }
        if manifest is None or manifest.best_epoch is None:
            reason = (
                f"off: of {self.total} valid edges 4 % of an epoch's time can rank {self._affordable}, which is too few"
                if not self.size
                else "off: there was no valid edge to rank"
            )
            return found | {"stopped": False, "best_epoch": None, "version": None, "reason": reason}
        best, ran = manifest.best_epoch, len(valid)
        stopped = ran < epochs and self.stops(manifest)
        version = manifest.version if manifest.best is None else manifest.best.version
        return found | {
            "stopped": stopped,
            "best_epoch": best,
            "version": version,
            "reason": _reason(valid, best, epochs, stopped=stopped),
        }


def ends_epoch(iteration: Iteration) -> bool:
    """Return whether an iteration is the last of its epoch."""
    path, chunk = iteration.edge_path_idx, iteration.edge_chunk_idx
    return (path, chunk) == (iteration.num_edge_paths - 1, iteration.num_edge_chunks - 1)


def stops(valid: tuple[float, ...], patience: int) -> bool:
    """Return whether the last figures are no better than one before."""
    return bool(valid) and len(valid) - 1 - valid.index(max(valid)) >= patience


def _reason(valid: tuple[float, ...], best: int, epochs: int, *, stopped: bool) -> str:
    """Return a sentence on the end of a training.

    Args:
        valid: figures of the finished epochs.
        best: the epoch that is released, from 1.
        epochs: that were planned.
        stopped: whether the rule ended it.
    """
    ran = len(valid)
    figures = f"MRR of the valid sample {valid[best - 1]:.4f}, {valid[-1]:.4f} after epoch {ran}"
    if stopped:
        return f"stopped after epoch {ran} of {epochs}: epoch {best} is the best ({figures})"
    if best < ran:
        return f"all {epochs} epochs were trained, and epoch {best} is the best ({figures})"
    return f"all {epochs} epochs were trained, and the last is the best (MRR of the valid sample {valid[-1]:.4f})"
