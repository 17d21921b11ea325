"""The parts of an expression, and numbers as Java writes them.

A value is what Java has there: None, bool, str, int (Integer), Long, float (Double). Python's own
conversions differ: ``int`` takes blanks and underscores, ``float`` takes ``inf`` and no ``1.5f``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias, get_args

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
        significand = match[1]
        exponent = match[2]
        digits = exponent.lstrip("+-").lstrip("0") or "0"
        if len(digits) > len(_FARTHEST_EXPONENT):
            digits = _FARTHEST_EXPONENT
        try:
            return float.fromhex(f"{significand}p{'-' if exponent[0] == '-' else ''}{digits}")
        except OverflowError:
            return -math.inf if significand[0] == "-" else math.inf
    named = _NAMED.get(text[1:] if text[:1] in ("+", "-") else text)
    return -named if named is not None and text[0] == "-" else named


# By what stands for the class of Java that a string is parsed as.
PARSERS: Final[Mapping[type, Callable[[str], Number | None]]] = {
    int: parse_integer,
    Long: parse_long,
    float: parse_double,
}


Value: TypeAlias = bool | str | Number | None


class Literal(NamedTuple):
    """A constant. Source: ConstantExpression.java, BooleanConstantExpression.java."""

    value: Value


class Property(NamedTuple):
    """A property of the message, always a string, or null. Source: PropertyExpression.java."""

    name: str


class Negate(NamedTuple):
    """A minus sign: null for all but numbers. Source: UnaryExpression.java#createNegate."""

    operand: Node


class IsTrue(NamedTuple):
    """A property in place of a truth: FALSE, because it is a string, or null.

    Source: UnaryExpression.java#createBooleanCast.
    """

    operand: Node


class Not(NamedTuple):
    """Source: UnaryExpression.java#createNOT."""

    operand: Node


class And(NamedTuple):
    """Two operands or more, from left to right. Source: LogicExpression.java#createAND."""

    operands: tuple[Node, ...]


class Or(NamedTuple):
    """Two operands or more, from left to right. Source: LogicExpression.java#createOR."""

    operands: tuple[Node, ...]


class Equal(NamedTuple):
    """Source: ComparisonExpression.java#doCreateEqual."""

    left: Node
    right: Node


class IsNull(NamedTuple):
    """Source: ComparisonExpression.java#createIsNull."""

    operand: Node


class Order(NamedTuple):
    """A comparison of numbers by one of ``< <= > >=``.

    Source: ComparisonExpression.java#evaluate.
    """

    symbol: str
    left: Node
    right: Node


class Between(NamedTuple):
    """``low <= operand AND operand <= high``; negated, ``operand < low OR operand > high``.

    Source: ComparisonExpression.java#createBetween, #createNotBetween.
    """

    operand: Node
    low: Node
    high: Node
    negated: bool


class In(NamedTuple):
    """A property that is one of some strings. Source: UnaryExpression.java#createInExpression."""

    operand: Node
    texts: frozenset[str]


class Search(NamedTuple):
    """A string in a string, by CONTAINS, STARTSWITH or ENDSWITH; FALSE for null, also with NOT.

    Source: ComparisonExpression.java#ContainsExpression and the five classes like it.
    """

    how: str
    operand: Node
    text: str
    negated: bool


Node: TypeAlias = (
    Literal
    | Property
    | Negate
    | IsTrue
    | Not
    | And
    | Or
    | Equal
    | IsNull
    | Order
    | Between
    | In
    | Search
)
_PARTS = get_args(Node)
_OPERANDS = (Literal, Property, Negate)


def is_truth(node: Node) -> bool:
    """Return whether the part gives TRUE, FALSE or null by its kind.

    Source: BooleanExpression.java.
    """
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, _OPERANDS)


def walk(tree: Node) -> Iterator[tuple[Node, int]]:
    """Yield every part of a tree from left to right, with its depth; the root has depth 1."""
    waiting = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        fields = node.operands if isinstance(node, And | Or) else node
        waiting.extend((part, depth + 1) for part in reversed(fields) if isinstance(part, _PARTS))
