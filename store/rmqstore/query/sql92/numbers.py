"""Java's numbers: what a string has to look like to be one, and how two doubles compare.

Python's own conversions differ: ``int`` takes blanks and underscores, ``float`` takes ``inf`` and
no ``1.5f``.
"""

from __future__ import annotations

import math
import re

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
_LONG_DIGITS = 19
# With this exponent a double is zero or infinite, however many digits stand before it.
_FARTHEST_EXPONENT = "999999999"

_BLANKS = "".join(map(chr, range(0x21)))  # what String.trim takes away
_DIGITS = re.compile(r"([+-]?)(\d+)")  # of any script, as Character.digit knows them
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+))[pP]([+-]?[0-9]+)[fFdD]?"
)
_NAMED = {"NaN": math.nan, "Infinity": math.inf}


class Long(int):
    """A number of Java's class Long; a plain int is an Integer, a float a Double."""

    __slots__ = ()

    def __neg__(self) -> Long:
        """Return the negated number, which is a Long too."""
        return Long(-int(self))


Number = int | float


def parse_integer(text: str) -> int | None:
    """Return the Integer that a string spells, None for none.

    Source: Integer.java#valueOf of the JDK.
    """
    return _parse_digits(text, INT_MIN, INT_MAX)


def parse_long(text: str) -> Long | None:
    """Return the Long that a string spells, None for none.

    Source: Long.java#valueOf of the JDK.
    """
    value = _parse_digits(text, LONG_MIN, LONG_MAX)
    return None if value is None else Long(value)


def _parse_digits(text: str, lowest: int, highest: int) -> int | None:
    # Java looks at UTF-16 units one by one, so a digit of two units is none.
    match = _DIGITS.fullmatch(text)
    if match is None or max(text) > "\uffff":
        return None
    sign, digits = match.groups()
    if len(digits) > _LONG_DIGITS:
        digits = "".join(str(int(digit)) for digit in digits).lstrip("0") or "0"
        if len(digits) > _LONG_DIGITS:
            return None
    value = -int(digits) if sign == "-" else int(digits)
    return value if lowest <= value <= highest else None


def parse_double(text: str) -> float | None:
    """Return the Double that a string spells, None for none.

    Source: Double.java#valueOf of the JDK.
    """
    text = text.strip(_BLANKS)
    match = _DECIMAL.fullmatch(text)
    if match is not None:
        return float(match[1])
    match = _HEXADECIMAL.fullmatch(text)
    if match is not None:
        return _hexadecimal(match[1], match[2])
    named = _NAMED.get(text[1:] if text[:1] in ("+", "-") else text)
    return -named if named is not None and text[0] == "-" else named


def _hexadecimal(significand: str, exponent: str) -> float:
    digits = exponent.lstrip("+-").lstrip("0") or "0"
    if len(digits) > len(_FARTHEST_EXPONENT):
        digits = _FARTHEST_EXPONENT
    try:
        return float.fromhex(f"{significand}p{'-' if exponent[0] == '-' else ''}{digits}")
    except OverflowError:
        return -math.inf if significand[0] == "-" else math.inf


def compare_doubles(left: float, right: float) -> int:
    """Return a number less than, equal to or greater than 0.

    NaN is above all other numbers and equals itself; 0.0 is above -0.0.

    Source: Double.java#compare of the JDK.
    """
    if left < right:
        return -1
    if left > right:
        return 1
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    left_sign = math.copysign(1, left)
    right_sign = math.copysign(1, right)
    return (left_sign > right_sign) - (left_sign < right_sign)
