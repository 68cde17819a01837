"""Numbers as text, a block at a time: each in a cell of fixed width, padded with NUL bytes, which ``squeeze`` drops.

A float's digits are found for a whole block at once. Scaled to nine digits in float64, its neighbours lie 3 to 60 units
away on either side, so whether fewer digits name it is a comparison. What that cannot settle (a sixteen-millionth
of ordinary numbers, powers of two, whole numbers from 2**24, those below the smallest normal one) goes digit by digit.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from pbg_tasks.formats.angel.java_digits import PLAIN_EXPONENTS, decimal_text, java_text

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 1 << 14  # numbers that stay in a core's cache with what is computed of them

_INTEGER_WIDTH = {4: 11, 8: 20}
_FLOAT_WIDTH = 15  # -d.ddddddddE-38
_DIGITS = 9
_SMALLEST, _LARGEST = np.float32(1.1754945e-38), np.float32(1 << 24)
_DOUBT = 1e-5  # units of the ninth digit; the arithmetic errs by less than a tenth of it
_MANTISSA = np.uint32((1 << 23) - 1)
_POWERS = np.array([float(f"1e{power}") for power in range(-46, 47)])
_ONE = 46  # where 1.0 is among them
_LOWEST = -38  # exponent
_HALF_UNIT = 2.0**-24  # of a number's mantissa from 1 to 2
_STEPS = (6, 1e3), (7, 1e2), (8, 1e1), (9, 1e0)  # digits, and what lies between two numbers of so many
_EIGHT_DIGITS = 10**8
_EIGHT = np.dtype([("sign", "u1"), ("high", "u4"), ("low", "u4")])
_NINE = np.dtype([("first", "u1"), ("middle", "u4"), ("last", "u4")])


def text_cells(values: np.ndarray, *, six_decimals: bool = False) -> np.ndarray:
    """Write numbers as Java does.

    Args:
        values: of any shape; int32, int64, float32 or float64.
        six_decimals: write doubles as Angel's text with row ids does, losing the rest.

    Returns:
        Bytes (``S``) of the same shape.
    """
    if values.dtype.kind == "i":
        return _integer_cells(np.ascontiguousarray(values).reshape(-1)).reshape(values.shape)
    if values.dtype == np.float32:
        return _float_cells(np.ascontiguousarray(values).reshape(-1)).reshape(values.shape)
    write: Callable[[float], str] = decimal_text if six_decimals else _double_text
    texts = [write(value).encode("ascii") for value in values.reshape(-1).tolist()]
    return np.array(texts, dtype=np.bytes_).reshape(values.shape)


def squeeze(cells: np.ndarray) -> bytes:
    """Return the text of cells in their order, without the padding."""
    flat = np.ascontiguousarray(cells).reshape(-1).view(np.uint8)
    text: bytes = flat[flat != 0].tobytes()
    return text


def _double_text(value: float) -> str:
    return java_text(value, single=False)


def _integer_cells(values: np.ndarray) -> np.ndarray:
    if values.size and not (values.min() > -_EIGHT_DIGITS and values.max() < _EIGHT_DIGITS):
        return values.astype(f"S{_INTEGER_WIDTH[values.itemsize]}")
    magnitude = np.abs(values).astype(np.uint32)
    high, low = np.divmod(magnitude, np.uint32(10_000))
    digits = np.empty(len(values), _EIGHT)
    digits["sign"], digits["high"], digits["low"] = (values < 0) * ord("-"), _four_digits()[high], _four_digits()[low]
    cells = digits.view(np.uint8).reshape(len(values), _EIGHT.itemsize)
    for place, bound in enumerate(10 ** np.arange(7, 0, -1, dtype=np.uint32), start=1):
        cells[:, place] *= magnitude >= bound
    return cells.reshape(-1).view(f"S{_EIGHT.itemsize}")


def _float_cells(values: np.ndarray) -> np.ndarray:
    cells = np.zeros((len(values), _FLOAT_WIDTH), np.uint8)
    for start in range(0, len(values), BLOCK):
        _write_floats(values[start : start + BLOCK], cells[start : start + BLOCK])
    return cells.reshape(-1).view(f"S{_FLOAT_WIDTH}")


def _write_floats(values: np.ndarray, cells: np.ndarray) -> None:
    magnitude = np.abs(values)
    bits = values.view(np.uint32)
    plain = (magnitude >= _SMALLEST) & (magnitude < _LARGEST) & ((bits & _MANTISSA) != 0)
    number, kept, exponent, settled = _shortest(np.where(plain, magnitude, np.float32(1.5)))
    settled &= plain
    cells[:, 0] = (bits >> 31) * ord("-")
    digits = _nine_digits(number)
    for power in PLAIN_EXPONENTS:
        _plain(cells, np.flatnonzero(settled & (exponent == power)), power, digits, kept)
    remote = (exponent < PLAIN_EXPONENTS.start) | (exponent >= PLAIN_EXPONENTS.stop)
    _scientific(cells, np.flatnonzero(settled & remote), exponent, digits, kept)
    _one_by_one(cells, np.flatnonzero(~settled), values)


def _shortest(magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find the shortest digits of normal numbers.

    Returns:
        Nine digits as a number, the shortest ones and zeros; how many are not trailing zeros; the first one's exponent;
        whether that is beyond doubt.
    """
    exact = magnitude.astype(np.float64)
    binary = np.frexp(exact)[1]
    exponent = np.floor((binary - 1) * 0.301029995663981).astype(np.int64)
    exponent += exact >= _POWERS[_ONE + exponent + 1]
    scale = _POWERS[_ONE + _DIGITS - 1 - exponent]
    scaled = exact * scale
    reach = np.ldexp(scale * _HALF_UNIT, binary - 1)
    number, kept = np.empty(len(exact)), np.empty(len(exact), np.int64)
    open_, doubt = np.ones(len(exact), bool), np.zeros(len(exact), bool)
    for count, step in _STEPS:
        candidate = np.rint(scaled / step) * step
        distance = np.abs(candidate - scaled)
        found = open_ & (distance < reach)
        doubt |= open_ & (np.abs(distance - reach) < _DOUBT)
        doubt |= found & (np.abs(distance - step / 2) < _DOUBT)
        np.copyto(number, candidate, where=found)
        np.copyto(kept, count, where=found)
        open_ &= ~found
    carried = number >= _POWERS[_ONE + _DIGITS]
    number[carried] /= 10
    exponent += carried
    return _trimmed(number.astype(np.uint32), kept), kept, exponent, ~doubt


def _trimmed(number: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Count further zeros at the end of numbers of the fewest digits looked for, in place."""
    (rows,) = np.nonzero(kept == _STEPS[0][0])
    rest = number[rows] // int(_STEPS[0][1])
    while len(rows):
        rest, last = np.divmod(rest, 10)
        rows, rest = rows[last == 0], rest[last == 0]
        kept[rows] -= 1
    return number


def _nine_digits(number: np.ndarray) -> np.ndarray:
    """Return the nine digits of each number as ASCII: (n, 9)."""
    digits = np.empty(len(number), _NINE)
    high, low = np.divmod(number, np.uint32(10_000))
    first, middle = np.divmod(high, np.uint32(10_000))
    digits["first"], digits["middle"], digits["last"] = first + ord("0"), _four_digits()[middle], _four_digits()[low]
    return digits.view(np.uint8).reshape(len(number), _DIGITS)


@cache
def _four_digits() -> np.ndarray:
    """Return the four bytes of ``0000`` to ``9999``, each as one number."""
    return np.array([b"%04d" % number for number in range(10_000)]).view(np.uint32)


def _plain(cells: np.ndarray, rows: np.ndarray, power: int, digits: np.ndarray, kept: np.ndarray) -> None:
    """Write numbers whose first digit stands for ten to the ``power``, without an exponent."""
    whole = max(power + 1, 0)  # digits left of the point
    shown = digits[rows]
    shown[np.arange(_DIGITS) >= np.maximum(kept[rows], whole + 1)[:, None]] = 0
    if whole:
        cells[rows, 1 : whole + 1] = shown[:, :whole]
        cells[rows, whole + 1] = ord(".")
        cells[rows, whole + 2 : _DIGITS + 2] = shown[:, whole:]
    else:
        lead = b"0." + b"0" * (-power - 1)
        cells[rows, 1 : len(lead) + 1] = np.frombuffer(lead, np.uint8)
        cells[rows, len(lead) + 1 : len(lead) + 1 + _DIGITS] = shown


def _scientific(
    cells: np.ndarray, rows: np.ndarray, exponent: np.ndarray, digits: np.ndarray, kept: np.ndarray
) -> None:
    """Write numbers with an exponent."""
    shown = digits[rows]
    shown[np.arange(_DIGITS) >= np.maximum(kept[rows], 2)[:, None]] = 0
    cells[rows, 1] = shown[:, 0]
    cells[rows, 2] = ord(".")
    cells[rows, 3 : _DIGITS + 2] = shown[:, 1:]
    cells[rows, _DIGITS + 2] = ord("E")
    cells[rows, _DIGITS + 3 :] = _exponents()[exponent[rows] - _LOWEST]


@cache
def _exponents() -> np.ndarray:
    """Return the text of the exponents a float can have, padded: (n, 3)."""
    texts = np.array([b"%d" % power for power in range(_LOWEST, -_LOWEST)], dtype="S3")
    return texts.view(np.uint8).reshape(len(texts), 3)


def _one_by_one(cells: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Write the numbers that are left, each distinct one once."""
    distinct, inverse = np.unique(values[rows].view(np.uint32), return_inverse=True)
    texts = [java_text(value, single=True).encode("ascii") for value in distinct.view(np.float32).tolist()]
    known = np.array(texts, dtype=f"S{_FLOAT_WIDTH}").view(np.uint8).reshape(-1, _FLOAT_WIDTH)
    cells[rows] = known[inverse]
