"""Extent and learning rate of a bucket's training.

After a warm-up, rates are constant, or decay linearly or by a cosine (Loshchilov and Hutter 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable  # noqa: TC003 - a NamedTuple's fields
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig


class Position(NamedTuple):
    """Part of a bucket that is trained: its first batches.

    The order of the batches depends on the generator alone.

    Attributes:
        batches: number of trained batches.
        edges: number of edges in them.
        drawn: state of the generator after them, in base64, where a single worker drew from it; else empty.
    """

    batches: int
    edges: int
    drawn: str = ""


NOTHING = Position(0, 0)


class Pace(NamedTuple):
    """Learning rate and start of the workers for a bucket.

    Attributes:
        rate: factor of the learning rates as a function of the trained share of the bucket, from 0 to 1; None: always
            1.
        delay: seconds by which every worker but the first starts later.
    """

    rate: Callable[[float], float] | None = None
    delay: float = 0.0


STEADY = Pace()


class Limits(NamedTuple):
    """Limits of a bucket's training.

    All batches after ``begun`` are trained, until ``stop`` returns True.
    """

    begun: Position
    stop: Callable[[], bool] | None


def rate_factor(config: ModelConfig, share: float) -> float:
    """Return the factor of both learning rates.

    The factor depends on the share alone, so that a resumed training continues with the same rates.

    Args:
        config: schedule of the rates.
        share: finished share of all epochs, 0 to 1.
    """
    epochs = share * config.num_epochs
    warm = min(epochs / config.lr_warmup_epochs, 1.0) if config.lr_warmup_epochs else 1.0
    if config.lr_schedule == "constant":
        return warm
    left = 1 - share if config.lr_schedule == "linear" else (1 + math.cos(math.pi * share)) / 2
    return warm * (config.lr_final + (1 - config.lr_final) * left)
