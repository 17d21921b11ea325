"""The parts of an expression.

A value is what Java has there: None, bool, str, int (Integer), Long, float (Double).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, get_args

from rmqstore.query.sql92.numbers import Number

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
    """``low <= operand AND operand <= high``, in RocketMQ's order.

    Source: ComparisonExpression.java#createBetween.
    """

    operand: Node
    low: Node
    high: Node


class NotBetween(NamedTuple):
    """``operand < low OR operand > high``. Source: ComparisonExpression.java#createNotBetween."""

    operand: Node
    low: Node
    high: Node


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
    | NotBetween
    | In
    | Search
)
_PARTS = get_args(Node)
_OPERANDS = (Literal, Property, Negate)


def is_truth(node: Node) -> bool:
    """Tell whether the part gives TRUE, FALSE or null by its kind.

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
