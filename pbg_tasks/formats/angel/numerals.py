"""Text of numbers as Java writes them, a block at a time.

Arrow finds the shortest digits of a whole block. They are Java's too, except for a few numbers whose text is found
digit by digit (``java_digits``), and most numbers have Java's notation: ``0.25``. The others are sorted by the change
they need, and each kind is rewritten at once: ``3`` to ``3.0``, ``0.00025`` to ``2.5E-4``, ``2.5e-7`` to ``2.5E-7``.
Then all go back to their positions.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pbg_tasks.formats.angel.java_digits import decimal_text, java_text

_PLAIN = 1e-3, 1e7  # Java writes no exponent for numbers from the first to below the second
_ARROWS_FRACTIONS = range(-6, -3)  # exponents of smaller numbers that Arrow writes in plain notation
_MANTISSA = np.uint32((1 << 23) - 1)
_SMALLEST = np.finfo(np.float32).smallest_normal
_LONGEST_DIGIT = len("1e-38")  # the longest text with one digit; a text with two is longer
_END = 1 << 30  # beyond every text: a replacement there is appended

_SAME, _WHOLE, _ODD, _SMALL = range(4)
"""Kinds of floats. Small ones are two kinds for each of Arrow's exponents, and two for those below: positive and
negative.
"""


def numerals(values: np.ndarray, *, six_decimals: bool = False) -> pa.BinaryArray:
    """Return the texts of numbers as Java writes them.

    Args:
        values: (n,) of int32, int64, float32 or float64.
        six_decimals: write doubles as Angel's text with row ids does, with six decimals only.

    Returns:
        Their texts (n,).
    """
    if values.dtype == np.float64 and six_decimals:
        return pa.array([decimal_text(value).encode() for value in values.tolist()], pa.binary())
    if values.dtype.kind == "i":
        return _integers(values)
    kinds = _kinds(values)
    if not kinds.any():
        return _arrows(values)
    order = np.argsort(kinds, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return _by_kind(values[order], np.bincount(kinds)).take(pa.array(places))


def _arrows(values: np.ndarray) -> pa.BinaryArray:
    return pa.array(values).cast(pa.string()).cast(pa.binary())


def _integers(values: np.ndarray) -> pa.BinaryArray:
    """Write integers, each value of a small range once.

    Rows and columns are repeated many times.
    """
    lowest, highest = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if highest - lowest >= len(values):
        return _arrows(values)
    return _arrows(np.arange(highest - lowest + 1) + lowest).take(pa.array(values - lowest))


def _kinds(values: np.ndarray) -> np.ndarray:
    """Return each float's kind, int8 (n,)."""
    magnitude = np.abs(values)
    small, large = map(values.dtype.type, _PLAIN)
    below = magnitude < large
    kinds = np.where(below & (magnitude >= small), np.int8(_SAME), np.int8(_ODD))
    if values.dtype == np.float32:  # for a double, the check whether digits are Java's takes as long as making them
        # Powers of two and numbers below the smallest normal one may have more digits in Java.
        alike = (magnitude < small) & (magnitude >= _SMALLEST) & (values.view(np.uint32) & _MANTISSA != 0)
        if alike.any():
            np.copyto(kinds, _small_kinds(values, magnitude), where=alike)
    kinds[below & (np.trunc(np.where(below, magnitude, 0)) == magnitude)] = _WHOLE
    return kinds


def _small_kinds(values: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    kinds = np.full(len(values), _SMALL, np.int8)
    for power in _ARROWS_FRACTIONS:
        kinds += 2 * (magnitude >= np.float32(f"1e{power}")).view(np.int8)
    kinds += (values < 0).view(np.int8)
    return kinds


def _by_kind(values: np.ndarray, counts: np.ndarray) -> pa.BinaryArray:
    """Write floats that are sorted by kind.

    ``counts`` has the number of each kind.
    """
    texts, pieces = _arrows(values), []
    stop = 0
    for kind, count in enumerate(counts.tolist()):
        start, stop = stop, stop + count
        if kind == _ODD:
            pieces.append(_one_by_one(values[start:stop]))
        else:
            pieces.append(_rewritten(kind, texts.slice(start, count)))
    return pa.concat_arrays(pieces)


def _rewritten(kind: int, texts: pa.BinaryArray) -> pa.BinaryArray:
    """Convert texts of one kind, whose digits are Java's, to its notation."""
    if kind == _SAME:
        return texts
    if kind == _WHOLE:
        return pc.binary_replace_slice(texts, _END, _END, b".0")
    decade, sign = divmod(kind - _SMALL, 2)
    return _fraction(sign, _ARROWS_FRACTIONS[decade - 1], texts) if decade else _tiny(sign, texts)


def _fraction(sign: int, power: int, texts: pa.BinaryArray) -> pa.BinaryArray:
    """Convert ``0.000ddd``, with a sign or not, to Java's notation.

    Its first digit that is not zero stands for ten to the ``power``.
    """
    digits = pc.binary_replace_slice(texts, sign, sign + len("0.") - power - 1, b"")
    pointed = pc.binary_replace_slice(digits, sign + 1, sign + 1, b".")
    bare = pc.equal(pc.binary_length(digits), sign + 1)
    whole = pc.if_else(bare, pc.binary_replace_slice(pointed, _END, _END, b"0"), pointed)
    return pc.binary_replace_slice(whole, _END, _END, b"E%d" % power)


def _tiny(sign: int, texts: pa.BinaryArray) -> pa.BinaryArray:
    """Convert ``d.ddde-7`` or ``de-7``, with a sign or not, to Java's notation."""
    bare = pc.less_equal(pc.binary_length(texts), sign + _LONGEST_DIGIT)
    pointed = pc.if_else(bare, pc.binary_replace_slice(texts, sign + 1, sign + 1, b".0"), texts)
    return pc.replace_substring(pointed, b"e", b"E")


def _one_by_one(values: np.ndarray) -> pa.BinaryArray:
    """Write each distinct number once."""
    single = values.dtype == np.float32
    bits, places = np.unique(values.view(f"u{values.itemsize}"), return_inverse=True)
    texts = [java_text(value, single=single).encode() for value in bits.view(values.dtype).tolist()]
    return pa.array(texts, pa.binary()).take(pa.array(places))
