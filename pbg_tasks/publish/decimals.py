"""Numbers to text, a block at a time: what ``"%.9f"`` gives, without a call for each number."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np

DECIMALS = 9
_LARGEST = 9.5  # beyond, a number may need two digits before the point
_BYTES = {"sign": "u1", "whole": "u1", "point": "u1", "high": "u4", "low": "u4", "last": "u1", "end": "u1"}
_CELL = np.dtype(list(_BYTES.items()))  # packed: the bytes of one number, in their order


def format_rows(block_ND: np.ndarray) -> list[str]:
    """Write each row's numbers with nine decimals, tabs between and a line break at the end.

    A float32 has 24 significant bits and 10**9 is 21 bits times a power of two, so their product in float64 is exact:
    rounding it is rounding the number itself, half to even as C does.

    Args:
        block_ND: float32 (N, D), D at least 1.
    """
    short = (np.abs(block_ND) < _LARGEST).all(axis=1)  # false for NaN too
    rows = iter(_short_rows(block_ND[short]))
    return [next(rows) if fits else _any_row(row) for fits, row in zip(short.tolist(), block_ND, strict=True)]


def _short_rows(block_ND: np.ndarray) -> list[str]:
    """Write rows of numbers with one digit before the point."""
    scaled = np.rint(np.abs(block_ND.astype(np.float64)) * 10**DECIMALS).astype(np.int64)
    whole, fraction = np.divmod(scaled, 10**DECIMALS)
    high, rest = np.divmod(fraction.astype(np.uint32), np.uint32(100_000))
    low, last = np.divmod(rest, np.uint32(10))
    cells = np.empty(block_ND.shape, _CELL)
    cells["sign"], cells["point"], cells["end"] = ord("-"), ord("."), ord("\t")
    cells["end"][:, -1] = ord("\n")
    cells["whole"], cells["last"] = whole + ord("0"), last + ord("0")
    cells["high"], cells["low"] = _four_digits()[high], _four_digits()[low]
    kept = np.ones((*block_ND.shape, _CELL.itemsize), bool)
    kept[..., 0] = np.signbit(block_ND)
    text = cells.view(np.uint8).reshape(kept.shape)[kept].tobytes().decode("ascii")
    stops = np.cumsum(kept.sum(axis=(1, 2))).tolist()
    return [text[start:stop] for start, stop in pairwise([0, *stops])]


def _any_row(row_D: np.ndarray) -> str:
    return "\t".join([f"{number:.{DECIMALS}f}" for number in row_D.tolist()]) + "\n"


@cache
def _four_digits() -> np.ndarray:
    """Return the four bytes of ``0000`` to ``9999``, each as one number."""
    return np.array([b"%04d" % number for number in range(10_000)]).view(np.uint32)
