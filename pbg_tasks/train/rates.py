"""Learning rates over a training.

After a warm-up they are constant, or decay linearly or by a cosine (Loshchilov and Hutter 2017).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig


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
