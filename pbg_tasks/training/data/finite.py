"""Checks for numbers that are not finite, before they are stored."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pbg_tasks.errors import TrainingDivergedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pbg_tasks.config import ModelConfig
    from pbg_tasks.training.data.parameters import SharedParameters
    from pbg_tasks.training.data.partitions import PartitionKey
    from pbg_tasks.training.data.tables import Table

_SURE_STEP = 1e20  # bound of one step's change: far below what could overflow, and above that of any training


def check_finite(what: str, values: Tensor) -> None:
    """Check all numbers of a tensor, on any device.

    Args:
        what: name of the numbers in the error.
        values: float32 or bfloat16.

    Raises:
        TrainingDivergedError: a number is not finite.
    """
    # A sum is finite only if every number is, or if all are so large that those of the next step would not be. With a
    # dtype, torch would make a copy of bfloat16 in float32.
    if not math.isfinite(float(values.sum())):
        raise TrainingDivergedError(f"{what}: some are not finite; try a smaller lr, or set max_norm")


def check_partition(key: PartitionKey, table: Table) -> None:
    """Check all numbers of a table that is about to be written.

    Compared with writing the table, the check costs nothing.

    Every file of a version is written through here, so none with a number that is not finite is ever committed.

    Raises:
        TrainingDivergedError: a number is not finite.
    """
    where = f"of entity type {key.entity!r}, partition {key.partition}"
    check_finite(f"embeddings {where}", table.embeddings)
    check_finite(f"sums of squared gradients {where}", table.row_sums)


def check_trained(config: ModelConfig, shared: SharedParameters, *sides: Mapping[str, Table]) -> None:
    """Check the tables of a bucket without reading their embeddings.

    A row's sum of squared gradients shows whether the row has diverged.

    A gradient that is not finite, or whose square overflows, makes the sum not finite, and it stays so. Any other
    gradient moves a number by no more than lr * sqrt(dimension), because |g| <= sqrt(dimension * mean(g^2)). Added to
    a finite float32, such a step overflows only from 2^103 on, and ``max_norm`` shrinks numbers. So rows that began
    finite still are. Starting values are checked when they are read, and all values when they are written
    (``check_partition``). The latter also finds a sum that one of several workers hid by overwriting it with its own.

    Args:
        config: the model.
        shared: parameters of the model.
        sides: tables by entity type.

    Raises:
        TrainingDivergedError: a number is not finite.
    """
    for path, value in shared.values.items():
        check_finite(f"parameter {path!r}", value)
        check_finite(f"sums of squared gradients of parameter {path!r}", shared.sums[path])
    for entity, table in {id(table): (name, table) for side in sides for name, table in side.items()}.values():
        if config.lr * math.sqrt(table.embeddings.shape[1]) > _SURE_STEP:
            check_finite(f"embeddings of entity type {entity!r}", table.embeddings)
        check_finite(f"sums of squared gradients of entity type {entity!r}", table.row_sums)
