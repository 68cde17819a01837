"""Conversion of numbers to text, a block at a time.

The text is that of ``"%.9f"``, without a call for each number. The native library does it in one pass; the numpy
version here is for machines without it, and gives the same text.
"""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from pbg_tasks.native import library
from pbg_tasks.native.abi import Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

DECIMALS = 9
_ROWS = 128  # a block's temporaries stay in a core's cache
_WIDEST = 51  # bytes: a tab, a sign, 39 digits, the point and the decimals
_LARGEST = 9.5  # above it, a number may need two digits before the point
_HALF = 100_000  # numbers of five digits: the ten digits of a number are written five at a time
_WORD = np.dtype("<u8")  # a number takes two: sign and "d.dddd", "ddddd" and its end; other bytes are zero
_MINUS = _WORD.type(ord("-"))
_LINE_END = _WORD.type((ord("\t") ^ ord("\n")) << 40)
_SHORT = len("d.ddddddddd\t")


def write_lines(out: BinaryIO, heads: Sequence[str], block_ND: np.ndarray) -> None:
    """Write a line for each row: a text, then the numbers.

    Numbers have nine decimals and tabs in between.

    Args:
        out: file to write to.
        heads: N texts.
        block_ND: float32 (N, D), D at least 1.

    Raises:
        ValueError: there are more or fewer heads than rows.
    """
    if len(heads) != len(block_ND):
        raise ValueError(f"{len(heads)} heads for {len(block_ND)} rows")
    native = library()
    for start in range(0, len(heads), _ROWS):
        some, numbers = heads[start : start + _ROWS], block_ND[start : start + _ROWS]
        if native is None:
            out.write("".join(map("\t".join, zip(some, format_rows(numbers), strict=True))).encode())
        else:
            out.write(_native_lines(native, [head.encode() for head in some], numbers))


def _native_lines(native: ctypes.CDLL, heads: list[bytes], block_ND: np.ndarray) -> memoryview:
    ends = np.cumsum([len(head) for head in heads], dtype=np.int64)
    numbers = np.ascontiguousarray(block_ND, np.float32)
    text = np.empty(sum(map(len, heads)) + len(heads) + _WIDEST * numbers.size, np.uint8)
    argument = Lines(
        heads=b"".join(heads),
        head_ends=ends.ctypes.data,
        numbers=numbers.ctypes.data,
        rows=len(numbers),
        columns=numbers.shape[1],
        out=text.ctypes.data,
    )
    return text[: native.pbg_write_lines(ctypes.byref(argument))].data


def format_rows(block_ND: np.ndarray) -> list[str]:
    """Return each row's numbers as a line of text.

    Numbers have nine decimals and tabs in between, and a line break is at the end. A float32 has 24 significant bits
    and 10**9 is 21 bits times a power of two, so their product in float64 is exact: rounding it is rounding the number
    itself, half to even as C does.

    Args:
        block_ND: float32 (N, D), D at least 1.
    """
    short = (np.abs(block_ND) < _LARGEST).all(axis=1)  # false for NaN too
    if short.all():
        return _short_rows(block_ND)
    rows = iter(_short_rows(block_ND[short]))
    return [next(rows) if fits else _any_row(row) for fits, row in zip(short.tolist(), block_ND, strict=True)]


def _short_rows(block_ND: np.ndarray) -> list[str]:
    """Return lines of numbers with one digit before the point."""
    scaled = np.abs(block_ND).astype(np.float64)
    scaled *= 10**DECIMALS
    np.rint(scaled, out=scaled)
    high = np.floor(scaled / _HALF)  # exact: a quotient is whole or at least 10**-5 below a whole number
    low = scaled - high * _HALF
    negative = np.signbit(block_ND)
    firsts, lasts = _digits()
    words = np.empty((*block_ND.shape, 2), _WORD)
    words[..., 0] = firsts.take(high.astype(np.intp)) | negative * _MINUS
    words[..., 1] = lasts.take(low.astype(np.intp))
    words[:, -1, 1] ^= _LINE_END
    # bytes.translate drops the zero bytes faster than a mask of numpy.
    text = words.tobytes().translate(None, b"\0").decode("ascii")
    stops = np.cumsum(negative.sum(axis=1) + block_ND.shape[1] * _SHORT).tolist()
    return [text[start:stop] for start, stop in pairwise([0, *stops])]


def _any_row(row_D: np.ndarray) -> str:
    return "\t".join([f"{number:.{DECIMALS}f}" for number in row_D.tolist()]) + "\n"


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the words of the first and of the last five digits.

    They are indexed by the digits' number. The sign's byte is zero.
    """
    numbers = [b"%05d" % number for number in range(_HALF)]
    firsts = b"".join(b"\0%c.%b\0" % (text[0], text[1:]) for text in numbers)
    lasts = b"".join(b"%b\t\0\0" % text for text in numbers)
    return np.frombuffer(firsts, _WORD), np.frombuffer(lasts, _WORD)
