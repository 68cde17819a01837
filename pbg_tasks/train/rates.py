"""Learning rates over a training: warm-up, then constant, linear or cosine (Loshchilov and Hutter 2017) decay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pbg_tasks.config import ModelConfig


def rate_factor(config: ModelConfig, share: float) -> float:
    """Return what both learning rates are multiplied by when ``share`` (0 to 1) of all epochs is done.

    It is a function of the share alone, so a resumed training goes on where it stopped.
    """
    epochs = share * config.num_epochs
    warm = min(epochs / config.lr_warmup_epochs, 1.0) if config.lr_warmup_epochs else 1.0
    if config.lr_schedule == "constant":
        return warm
    left = 1 - share if config.lr_schedule == "linear" else (1 + math.cos(math.pi * share)) / 2
    return warm * (config.lr_final + (1 - config.lr_final) * left)
