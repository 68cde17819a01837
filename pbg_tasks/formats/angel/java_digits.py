"""Text of a number as Java writes it, digit by digit.

The texts equal those of ``Float.toString`` and ``Double.toString`` up to Java 18, on which Angel runs. In nearly all
cases they have the fewest digits that identify the number, and one or two more for the others: powers of two, large
whole numbers, numbers below the smallest normal one (JDK-4511638). This module computes the same digits.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal
from math import floor, isinf, isnan
from struct import pack, unpack
from typing import NamedTuple

PLAIN_EXPONENTS = range(-3, 7)  # exponents of numbers from 0.001 to 9999999, which Java writes in plain notation

_EXACT_POWERS = 27  # 5**26 is the largest power of five below 2**63
_PLAIN = (1e-3, 1e7)
_WIDTHS = (32, 64)
_EXACT_EXPONENTS = (-21, 62)
_SIX_DECIMALS = Decimal("1e-6")
_WIDE = Context(prec=400)


class _Kind(NamedTuple):
    """Bit layout of a type of number.

    Attributes:
        number: letter of the type for ``struct``.
        bits: letter of the unsigned integer of the same size.
        mantissa: number of bits of the mantissa.
        bias: of the exponent.
    """

    number: str
    bits: str
    mantissa: int
    bias: int


_FLOAT, _DOUBLE = _Kind(">f", ">I", 23, 127), _Kind(">d", ">Q", 52, 1023)


def java_text(value: float, *, single: bool) -> str:
    """Return the text of a number as Java writes it.

    Args:
        value: the number.
        single: whether it is a float; else it is a double.
    """
    if isnan(value):
        return "NaN"
    sign = "-" if pack(">d", value)[0] >> 7 else ""
    if isinf(value):
        return f"{sign}Infinity"
    if value == 0:
        return f"{sign}0.0"
    magnitude = abs(value)
    if (
        not single
        and _PLAIN[0] <= magnitude < _PLAIN[1]
        and unpack(">Q", pack(">d", magnitude))[0] << 12 & (1 << 64) - 1
    ):
        return repr(value)  # Python's text is the shortest too, in the same notation
    digits, exponent = _digits(magnitude, _FLOAT if single else _DOUBLE)
    return sign + _notation(digits, exponent)


def decimal_text(value: float) -> str:
    """Return the text of a finite double with at most six decimals.

    Angel has written doubles so in text with row ids since 2.3: without an exponent.
    """
    text = java_text(value, single=False)
    sign, digits = text[: text.startswith("-")], Decimal(text.lstrip("-"))
    if digits != digits.quantize(_SIX_DECIMALS, context=_WIDE):
        digits = Decimal(abs(value)).quantize(_SIX_DECIMALS, rounding=ROUND_HALF_EVEN, context=_WIDE)
    plain = f"{digits:f}"
    return sign + (plain.rstrip("0").rstrip(".") if "." in plain else plain)


def _notation(digits: str, exponent: int) -> str:
    """Write digits and a power of ten in Java's notation.

    The number is ``d.ddd`` times ten to the exponent.
    """
    if exponent not in PLAIN_EXPONENTS:
        return f"{digits[0]}.{digits[1:] or '0'}E{exponent}"
    if exponent < 0:
        return f"0.{'0' * (-exponent - 1)}{digits}"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    return f"{whole}.{digits[exponent + 1 :] or '0'}"


def _digits(value: float, kind: _Kind) -> tuple[str, int]:
    """Return the significant digits of a positive number and its exponent.

    The exponent is that of the first digit, to base ten.
    """
    (bits,) = unpack(kind.bits, pack(kind.number, value))
    biased, mantissa = bits >> kind.mantissa, bits & (1 << kind.mantissa) - 1
    if biased:
        mantissa |= 1 << kind.mantissa
        exponent, significant = biased - kind.bias, kind.mantissa + 1
    else:
        significant = mantissa.bit_length()
        exponent = significant - kind.mantissa - kind.bias
        mantissa <<= kind.mantissa + 1 - significant
    zeros = (mantissa & -mantissa).bit_length() - 1
    mantissa, used = mantissa >> zeros, kind.mantissa + 1 - zeros
    tiny = max(0, used - exponent - 1)  # number of bits right of the binary point
    if tiny == 0 and _EXACT_EXPONENTS[0] <= exponent <= _EXACT_EXPONENTS[1]:
        return _whole_digits(mantissa << (exponent - used + 1), exponent - significant - 1)
    return _fraction_digits(mantissa, used, exponent, significant, tiny)


def _whole_digits(value: int, insignificant_bits: int) -> tuple[str, int]:
    """Return the digits of a whole number that its type can represent.

    Digits beyond the precision of the type are rounded away.
    """
    dropped = int(insignificant_bits * 0.30103) if insignificant_bits > 1 else 0
    if dropped:
        value, rest = divmod(value, 10**dropped)
        value += rest >= 10**dropped // 2
    text = str(value)
    return text.rstrip("0"), len(text) - 1 + dropped


def _fraction_digits(mantissa: int, used: int, exponent: int, significant: int, tiny: int) -> tuple[str, int]:
    """Return digits of a number that is not whole.

    They end where the rest is less than half a unit in the last place of the binary number.
    """
    fraction = mantissa / (1 << used - 1)  # from 1 to 2, and exact
    power = floor((fraction - 1.5) * 0.289529654 + 0.176091259 + exponent * 0.301029995663981)
    b5, s5 = max(0, -power), max(0, power)
    b2, s2 = b5 + tiny + exponent, s5 + tiny
    m2 = b2 - significant
    b2 -= used - 1
    common = min(b2, s2)
    b2, s2 = b2 - common, s2 - common
    m2 = m2 - common
    if used == 1:
        m2 -= 1  # below a power of two, the next number is half as far away
    if m2 < 0:
        b2, s2 = b2 - m2, s2 - m2
        m2 = 0
    bits = max(used + b2 + _bits(b5), s2 + 1 + _bits(s5 + 1))
    width = next((width for width in _WIDTHS if bits < width), 0)
    rest, unit = mantissa * 5**b5 << b2, 5**s5 << s2
    half = 5**b5 << m2
    return _generate(rest, unit, half, power, width)


def _generate(rest: int, unit: int, half: int, power: int, width: int) -> tuple[str, int]:
    """Return the digits of ``rest / unit`` one after another.

    Args:
        rest: numerator, larger than 0.
        unit: denominator.
        half: numerator of half a unit in the last place of the binary number.
        power: exponent of the first digit, to base ten.
        width: bits of the integers that Java uses, whose sums may wrap around; 0 for unlimited ones.
    """
    ten = 10 * unit
    digits: list[int] = []
    low = high = False
    while not (low or high):
        digit, rest = divmod(rest, unit)
        rest, half = 10 * rest, _wrapped(10 * half, width)
        if half <= 0:
            low = high = True
        else:
            low = rest < half
            high = _wrapped(rest + half, width) > ten or (not width and rest + half == ten)
        first = not digits
        digits.append(digit)
        if first and digit == 0 and not high:
            digits, power = [], power - 1
        if first and not -3 <= power < 8:  # noqa: PLR2004 (Java's: two digits at least where an exponent follows)
            low = high = False
    if high and (not low or 2 * rest > ten or (2 * rest == ten and digits[-1] % 2)):
        return _round_up(digits, power)
    return "".join(map(str, digits)), power


def _wrapped(value: int, width: int) -> int:
    """Return a value as a signed integer of ``width`` bits wraps it."""
    if not width:
        return value
    bound = 1 << (width - 1)
    return (value + bound) % (2 * bound) - bound


def _round_up(digits: list[int], power: int) -> tuple[str, int]:
    number = str(int("".join(map(str, digits))) + 1)
    if len(number) > len(digits):
        return "1", power + 1
    return number, power


def _bits(power: int) -> int:
    """Return Java's estimate of the bits of a power of five."""
    return (5**power).bit_length() if 0 < power < _EXACT_POWERS else 3 * power
