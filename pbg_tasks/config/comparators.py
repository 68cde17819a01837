"""Facts about comparators, for modules that must not import torch.

The classes of ``model.comparators`` carry them. A comparator of another package may state its own in its attribute
``facts``, which are read when the model is loaded. Before that, no fact is known about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pbg_tasks.config.schema import ModelConfig


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about one comparator.

    Attributes:
        metric: by which a neighbour search finds the same entities, after ``normalized``; None: there is no such
            metric.
        normalized: whether embeddings are scaled to length 1 first, so that scores are between -1 and 1.
        squared: whether a distance is squared.
        bfloat16: whether its products may be of bfloat16 numbers. That is so where no difference of products is
            computed, which their rounding would spoil.
    """

    metric: Literal["inner_product", "l2"] | None = None
    normalized: bool = False
    squared: bool = False
    bfloat16: bool = False


UNKNOWN = Facts()
DOT = Facts("inner_product", bfloat16=True)
COS = Facts("inner_product", normalized=True, bfloat16=True)
L2 = Facts("l2")
SQUARED_L2 = Facts("l2", squared=True)
BUILT_IN = {"dot": DOT, "cos": COS, "l2": L2, "squared_l2": SQUARED_L2}
PRODUCTS = tuple(name for name, facts in BUILT_IN.items() if facts.metric == "inner_product")
"""Comparators whose scores are inner products of prepared embeddings, but for a bias."""


def facts_of(name: str) -> Facts:
    """Return facts by name; ``UNKNOWN`` for a package's comparator."""
    return BUILT_IN.get(name, UNKNOWN)


def is_product(config: ModelConfig) -> bool:
    """Whether a model's scores are inner products of prepared embeddings."""
    return config.comparator in PRODUCTS and not config.bias
