"""Sampled gradients (``gradient: sampled``), which PBG lacks.

Few negatives of an edge have most of its weight.

The loss of an edge has a slope p_k >= 0 in the score of each of its negatives. Slopes below a threshold t become t with
probability p_k / t, else 0; the others stay. So every slope has the expected value that it had, and most of them are 0:
the engine skips their part of the gradients, which are two of the three products of a step.

The variance of a slope is p_k (t - p_k) if it is below t, so that of all of them together is less than t times the sum
of all slopes. With

    t = v * sum p_k^2 / sum p_k

it is less than v * sum p_k^2, where v is ``gradient_variance``. The number of slopes that are left is expected to be at
most 2/v times (sum p_k)^2 / sum p_k^2, the number of negatives that count (Kish's effective sample size).

Random numbers are a hash of a number of the batch, the side, the edge and the column, so that both engines draw the
same ones, however they divide the work. ``pbg_tasks/native/sampling.inc`` is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_WORD = 0xFFFFFFFF
_AT_ONCE = 1 << 18  # slopes; random numbers take seven times their memory


def sample_slopes(slope_BK: Tensor, *, variance: float, key: int, side: int) -> None:
    """Sample the slopes of negatives, in place.

    Args:
        slope_BK: float32 (B, K), none negative.
        variance: v, largest variance of a row's slopes together, as a share of the sum of their squares.
        key: of the batch, below 2^63.
        side: 0 where the left-hand sides are corrupted, 1 where the right-hand sides are.
    """
    rows = max(_AT_ONCE // max(slope_BK.shape[1], 1), 1)
    seeds_B = row_seeds(key, side, torch.arange(len(slope_BK)))
    for begin in range(0, len(slope_BK), rows):
        part = slice(begin, begin + rows)
        _sample_rows(slope_BK[part], variance, seeds_B[part])


def _sample_rows(slope_BK: Tensor, variance: float, seed_B: Tensor) -> None:
    total_B1 = slope_BK.sum(1, keepdim=True)
    threshold_B1 = variance * (slope_BK.square().sum(1, keepdim=True) / total_B1)
    chance_BK = _uniform(seed_B, slope_BK.shape[1])
    kept_BK = torch.where(slope_BK > chance_BK * threshold_B1, threshold_B1, 0.0)
    sampled_BK = torch.where(slope_BK < threshold_B1, kept_BK, slope_BK)
    slope_BK.copy_(torch.where(total_B1 > 0, sampled_BK, slope_BK))


def row_seeds(key: int, side: int, rows_B: Tensor) -> Tensor:
    """Return a number of 32 bits for each row, by splitmix64.

    It is int64 (B,).
    """
    # int64 wraps as the unsigned numbers of the original do; a constant above 2^63 stands for itself minus 2^64.
    x_B = (2 * rows_B + side + 1) * -0x61C8864680B583EB + key
    x_B = (x_B ^ _shifted(x_B, 30)) * -0x40A7B892E31B1A47
    x_B = (x_B ^ _shifted(x_B, 27)) * -0x6B2FB644ECCEEE15
    return _shifted(x_B ^ _shifted(x_B, 31), 32)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Return int64 shifted to the right, with zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def scrambled(seed_B: Tensor, columns: int) -> Tensor:
    """Return a number of 32 bits for each row and column.

    They are int64 (B, K), made by the last steps of murmur3.
    """
    x_BK = (seed_B.unsqueeze(1) + torch.arange(columns) * 0x9E3779B9) & _WORD
    x_BK = ((x_BK ^ (x_BK >> 16)) * 0x85EBCA6B) & _WORD
    x_BK = ((x_BK ^ (x_BK >> 13)) * 0xC2B2AE35) & _WORD
    return x_BK ^ (x_BK >> 16)


def _uniform(seed_B: Tensor, columns: int) -> Tensor:
    """Return float32 (B, K), multiples of 2^-24 in [0, 1)."""
    return (scrambled(seed_B, columns) >> 8).float() * 2.0**-24
