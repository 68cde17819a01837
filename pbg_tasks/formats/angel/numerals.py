"""Numbers as Java writes them, a block at a time.

Arrow finds the shortest digits of a whole block. They are Java's too, up to a few numbers whose text is found digit by
digit (``java_digits``), and most numbers have Java's notation: ``0.25``. The others, each kind of them at once, are
rewritten: ``3`` to ``3.0``, ``0.00025`` to ``2.5E-4``, ``2.5e-7`` to ``2.5E-7``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pbg_tasks.formats.angel.java_digits import decimal_text, java_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PLAIN = 1e-3, 1e7  # Java writes no exponent from the first to below the second
_ARROWS_FRACTIONS = range(-4, -7, -1)  # exponents of the smaller numbers that Arrow writes without one
_MANTISSA = np.uint32((1 << 23) - 1)
_SMALLEST = np.finfo(np.float32).smallest_normal
_LONGEST_DIGIT = len("1e-38")  # of a number with one digit; one with two is longer


def numerals(values: np.ndarray, *, six_decimals: bool = False) -> pa.BinaryArray:
    """Write numbers as Java does.

    Args:
        values: (n,) of int32, int64, float32 or float64.
        six_decimals: write doubles as Angel's text with row ids does, losing the rest.

    Returns:
        Their texts (n,).
    """
    if values.dtype == np.float64 and six_decimals:
        return pa.array([decimal_text(value).encode() for value in values.tolist()], pa.binary())
    if values.dtype.kind == "i":
        return _integers(values)
    texts = _arrows(values)
    magnitude = np.abs(values)
    small, large = map(values.dtype.type, _PLAIN)
    below = magnitude < large
    other = ~(below & (magnitude >= small) & (np.trunc(np.where(below, magnitude, 0)) != magnitude))
    if not other.any():
        return texts
    mask = pa.array(other)
    return pc.replace_with_mask(texts, mask, _rewritten(values[other], texts.filter(mask)))


def _arrows(values: np.ndarray) -> pa.BinaryArray:
    return pa.array(values).cast(pa.string()).cast(pa.binary())


def _integers(values: np.ndarray) -> pa.BinaryArray:
    """Write integers, those of a small range each once: rows and columns come again and again."""
    lowest, highest = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if highest - lowest >= len(values):
        return _arrows(values)
    return _arrows(np.arange(highest - lowest + 1) + lowest).take(pa.array(values - lowest))


def _rewritten(values: np.ndarray, texts: pa.BinaryArray) -> pa.BinaryArray:
    """Write floats as Java does that Arrow writes otherwise."""
    pieces, places, left = [], [], np.ones(len(values), bool)
    for mask, write in _kinds(values):
        chosen = mask & left
        if chosen.any():
            pieces.append(write(texts.filter(pa.array(chosen))))
            places.append(np.flatnonzero(chosen))
            left &= ~chosen
    if left.any():
        pieces.append(_one_by_one(values[left]))
        places.append(np.flatnonzero(left))
    return _gathered(pieces, places)


def _gathered(pieces: list[pa.BinaryArray], places: list[np.ndarray]) -> pa.BinaryArray:
    """Return pieces as one array in the order of their places."""
    order = np.concatenate(places)
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return pa.concat_arrays(pieces).take(pa.array(inverse))


def _kinds(values: np.ndarray) -> Iterator[tuple[np.ndarray, Callable[[pa.BinaryArray], pa.BinaryArray]]]:
    """Yield which of the rewritten floats have Java's digits, and what gives these its notation; the first counts."""
    magnitude = np.abs(values)
    below = magnitude < values.dtype.type(_PLAIN[1])
    yield below & (np.trunc(np.where(below, magnitude, 0)) == magnitude), _whole
    if values.dtype != np.float32:
        return  # a double's digits are Java's mostly, and which are not takes as long to find out
    # Powers of two and numbers below the smallest normal one may have more digits in Java.
    alike = below & (magnitude >= _SMALLEST) & (values.view(np.uint32) & _MANTISSA != 0)
    for sign, mask in enumerate((alike & (values > 0), alike & (values < 0))):
        for power in _ARROWS_FRACTIONS:
            yield mask & (magnitude >= np.float32(f"1e{power}")), partial(_fraction, sign, power)
        yield mask, partial(_tiny, sign)


def _whole(texts: pa.BinaryArray) -> pa.BinaryArray:
    return _joined(texts, b".0")


def _fraction(sign: int, power: int, texts: pa.BinaryArray) -> pa.BinaryArray:
    """Write ``0.000ddd``, with a sign or not, whose first digit stands for ten to the ``power``."""
    digits = pc.binary_replace_slice(texts, sign, sign + len("0.") - power - 1, b"")
    pointed = pc.binary_replace_slice(digits, sign + 1, sign + 1, b".")
    bare = pc.equal(pc.binary_length(digits), sign + 1)
    return _joined(pointed, pc.if_else(bare, b"0E%d" % power, b"E%d" % power))


def _tiny(sign: int, texts: pa.BinaryArray) -> pa.BinaryArray:
    """Write ``d.ddde-7`` or ``de-7``, with a sign or not."""
    bare = pc.less_equal(pc.binary_length(texts), sign + _LONGEST_DIGIT)
    pointed = pc.if_else(bare, pc.binary_replace_slice(texts, sign + 1, sign + 1, b".0"), texts)
    return pc.replace_substring(pointed, b"e", b"E")


def _joined(left: pa.BinaryArray, right: pa.BinaryArray | bytes) -> pa.BinaryArray:
    return pc.binary_join_element_wise(left, right, b"")


def _one_by_one(values: np.ndarray) -> pa.BinaryArray:
    """Write each distinct number once."""
    single = values.dtype == np.float32
    bits, places = np.unique(values.view(f"u{values.itemsize}"), return_inverse=True)
    texts = [java_text(value, single=single).encode() for value in bits.view(values.dtype).tolist()]
    return pa.array(texts, pa.binary()).take(pa.array(places))
