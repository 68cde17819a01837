"""Rounding of embeddings to bfloat16 (``embedding_precision: bf16``), which PBG lacks.

bfloat16 is float32 without its last 16 bits. Most steps of Adagrad are smaller than a unit in the last place, so to
round to the nearest number would lose them. A number x between two neighbours a < b becomes b with probability
(x - a) / (b - a), else a; so its expected value is x. To that end 16 random bits are added to the last ones before
these are cut off. What bfloat16 can represent stays as it is, and so does what is not finite.

Random bits are a hash of a number of the batch, the side of the table, the row and the column, so that both engines
draw the same ones, however they divide the work. ``pbg_tasks/native/stored.inc`` is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pbg_tasks.training.engine.sampling import row_seeds, scrambled

if TYPE_CHECKING:
    from torch import Tensor

_SALT = 0x2545F4914F6CDD1D  # so that its bits are not those of sampled gradients
_PAIRS = 16  # columns d and d + 16 of a block of 32 have the two halves of one random number
_LAST = 0xFFFF
_AT_ONCE = 1 << 18  # numbers; their random bits take seven times their memory


@dataclass(frozen=True, slots=True)
class Rounding:
    """Source of random bits for the rows of a table.

    Attributes:
        key: of the batch, below 2^63.
        side: 1 for the right-hand table where that is another one than the left-hand, else 0.
    """

    key: int
    side: int

    def rounded(self, value_KD: Tensor, rows_K: Tensor) -> Tensor:
        """Return float32 (K, D) as bfloat16, rounded by chance.

        The numbers of a row depend on its number in ``rows_K``.
        """
        step = max(1, _AT_ONCE // max(1, value_KD.shape[1]))
        parts = [slice(start, start + step) for start in range(0, max(1, len(rows_K)), step)]
        found = [self._rounded(value_KD[part], rows_K[part]) for part in parts]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _rounded(self, value_KD: Tensor, rows_K: Tensor) -> Tensor:
        random_KD = self._random(rows_K, value_KD.shape[1])
        bits_KD = value_KD.view(torch.int32).long() + random_KD
        return torch.where(value_KD.isnan(), value_KD.bfloat16(), _cut(bits_KD))

    def _random(self, rows_K: Tensor, columns: int) -> Tensor:
        blocks = -(-columns // (2 * _PAIRS))
        pairs = scrambled(row_seeds(self.key ^ _SALT, self.side, rows_K), blocks * _PAIRS).view(-1, blocks, _PAIRS)
        return torch.cat([pairs & _LAST, pairs >> 16], dim=2).flatten(1)[:, :columns]


def truncated(value_KD: Tensor) -> Tensor:
    """Return float32 (K, D) as bfloat16, rounded toward 0."""
    return _cut(value_KD.view(torch.int32).long())


def _cut(bits_KD: Tensor) -> Tensor:
    """Return bfloat16 with the upper 16 of 32 bits."""
    return (bits_KD >> 16).to(torch.int16).view(torch.bfloat16)
