"""Numbers that are not finite, found before anything counts that holds them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pbg_tasks.errors import TrainingDivergedError

if TYPE_CHECKING:
    from torch import Tensor

    from pbg_tasks.train.partitions import PartitionKey
    from pbg_tasks.train.tables import Table


def check_finite(what: str, values: Tensor) -> None:
    """Read all numbers of a tensor, on any device.

    Args:
        what: they are, for the error.
        values: float32.

    Raises:
        TrainingDivergedError: some are not finite.
    """
    # a sum is finite only if every number is (or all are so large that the next step's would not be)
    if not math.isfinite(float(values.sum())):
        raise TrainingDivergedError(f"{what}: some are not finite; try a smaller lr, or set max_norm")


def check_partition(key: PartitionKey, table: Table) -> None:
    """Read all numbers of a table that is about to be written: next to writing it, that costs nothing.

    Every file of a version is written through here, so none with a number that is not finite is ever committed.

    Raises:
        TrainingDivergedError: some are not finite.
    """
    where = f"of entity type {key.entity!r}, partition {key.partition}"
    check_finite(f"embeddings {where}", table.embeddings)
    check_finite(f"sums of squared gradients {where}", table.row_sums)
