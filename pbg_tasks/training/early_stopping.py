"""End of a training by a sample of the valid split.

An edge of the sample is ranked when its bucket was trained for the last time in the epoch, while both partitions are in
memory. So nothing is read twice, and every rank ranks the edges of its own buckets. The figures are part of the
committed versions, so each start and each rank comes to the same decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from pbg_tasks.progress import fraction
from pbg_tasks.training.iterations import ends_epoch
from pbg_tasks.training.starting_point import seeded
from pbg_tasks.training.valid_sample import FEWEST, affordable, ranked_buckets, ranked_in_bucket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from pbg_tasks.checkpoint import Iteration, Manifest
    from pbg_tasks.formats.edges import EdgeList
    from pbg_tasks.training.data.edge_files import EdgeFiles
    from pbg_tasks.training.schedule import Bucket


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Rule that ends a training, with its sample of valid edges.

    Attributes:
        patience: number of epochs in a row without a new best one, after which training ends.
        edges: the valid split.
        total: number of valid edges.
        trained: number of edges of an epoch, by bucket.
        negatives: number of negatives of an edge and side.
        dimension: of the embeddings.
        seed: seed of the run, from which the sample is drawn.
        all_negs: whether the negatives are all entities.
    """

    patience: int
    edges: EdgeFiles
    total: int
    trained: Mapping[Bucket, int]
    negatives: int
    dimension: int
    seed: int
    all_negs: bool = False
    _samples: dict[Bucket, EdgeList] = field(default_factory=dict, compare=False)

    @property
    def size(self) -> int:
        """Most edges of the sample; 0: no early stop."""
        size = min(self._affordable, len(self._chosen) * self.total // max(len(self.trained), 1))
        return size if size >= FEWEST else 0

    @property
    def _affordable(self) -> int:
        return affordable(sum(self.trained.values()), self.negatives, self.dimension, all_negs=self.all_negs)

    @property
    def of_bucket(self) -> int:
        """Most edges of the sample in one bucket; 0: there is none."""
        return ranked_in_bucket(self._affordable, self.total, len(self.trained))

    @property
    def _chosen(self) -> list[Bucket]:
        """Buckets to rank."""
        count = ranked_buckets(self._affordable, self.total, len(self.trained))
        return sorted(self.trained, key=lambda bucket: (-self.trained[bucket], bucket))[:count]

    def sample(self, iteration: Iteration, bucket: Bucket) -> EdgeList | None:
        """Return the edges to rank after a bucket; the same each epoch.

        Returns:
            None where the bucket is trained again within the epoch, is not part of the sample, or has no such edges.

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

    def report(self, manifest: Manifest | None, epochs: int) -> dict[str, JsonValue]:
        """Return the part of a training's result about early stopping.

        Args:
            manifest: of the newest version.
            epochs: number of planned epochs.
        """
        valid = manifest.valid if manifest is not None else ()
        found: dict[str, JsonValue] = {
            "patience": self.patience,
            "edges": self.size,
            "mrr": [round(each, 6) for each in valid],
        }
        if manifest is None or manifest.best_epoch is None:
            return found | {"stopped": False, "best_epoch": None, "version": None, "reason": self._why_off()}
        best, ran = manifest.best_epoch, len(valid)
        stopped = ran < epochs and self.stops(manifest)
        version = manifest.version if manifest.best is None else manifest.best.version
        return found | {
            "stopped": stopped,
            "best_epoch": best,
            "version": version,
            "reason": _reason(valid, best, epochs, stopped=stopped),
        }

    def _why_off(self) -> str:
        if self.total < FEWEST:
            return f"off, because {self.total} valid edges are too few to judge an epoch by; it takes {FEWEST}"
        if not self.size:
            return (
                f"off, because fewer than {FEWEST} of the {self.total} valid edges can be ranked in 4 % of an epoch's "
                "time, too few to judge an epoch by"
            )
        return "off, because there was no valid edge to rank, or an earlier version trained epochs without ranking any"


def stops(valid: tuple[float, ...], patience: int) -> bool:
    """Return whether the last ``patience`` figures improve on none before."""
    return bool(valid) and len(valid) - 1 - valid.index(max(valid)) >= patience


def _reason(valid: tuple[float, ...], best: int, epochs: int, *, stopped: bool) -> str:
    """Return a sentence on the end of a training.

    Args:
        valid: figures of the finished epochs.
        best: the epoch that is released, from 1.
        epochs: number of planned epochs.
        stopped: whether the rule ended it.
    """
    ran = len(valid)
    figures = f"MRR of the valid sample {fraction(valid[best - 1])}, {fraction(valid[-1])} after epoch {ran}"
    if stopped:
        return f"stopped after epoch {ran} of {epochs}: epoch {best} is the best ({figures})"
    if best < ran:
        return f"all {epochs} epochs were trained, and epoch {best} is the best ({figures})"
    return f"all {epochs} epochs were trained, and the last is the best (MRR of the valid sample {fraction(valid[-1])})"
