"""SQL92 filters of one message at a time, plainly: what the evaluator of columns has to equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rmqstore.query import sql92_tree as tree

_SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class EvaluationError(Exception):
    """Java throws here: the message is not matched."""


def matches(expression: tree.Node, properties: Mapping[str, str]) -> bool:
    """Return whether a broker would deliver a message.

    Source: ExpressionMessageFilter.java#isMatchedByCommitLog.
    """
    try:
        return evaluate(expression, properties) is True
    except EvaluationError:
        return False


def evaluate(node: tree.Node, properties: Mapping[str, str]) -> tree.Value:
    """Return the value of a part of an expression.

    Raises:
        EvaluationError: Java's evaluation throws.
    """
    match node:
        case tree.Literal(value):
            return value
        case tree.Property(name):
            return properties.get(name)
        case tree.Negate(operand):
            value = evaluate(operand, properties)
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            return -value
        case tree.IsTrue(operand):
            return None if evaluate(operand, properties) is None else False
        case _:
            return _truth(node, properties)


def _truth(node: tree.Node, properties: Mapping[str, str]) -> bool | None:
    match node:
        case tree.And(operands):
            return _all(evaluate(operand, properties) for operand in operands)
        case tree.Or(operands):
            return _not(_all(_not(evaluate(operand, properties)) for operand in operands))
        case tree.Not(operand):
            return _not(evaluate(operand, properties))
        case tree.IsNull(operand):
            return evaluate(operand, properties) is None
        case tree.Equal(left, right):
            return _equal(evaluate(left, properties), evaluate(right, properties))
        case tree.Order(symbol, left, right):
            return _order(symbol, evaluate(left, properties), right, properties)
        case tree.Between(operand, low, high):
            # Java evaluates the operand once for each end, which takes twice the time at each level
            # of nested BETWEENs.
            value = evaluate(operand, properties)
            ends = ((">=", low), ("<=", high))
            return _all(_order(symbol, value, end, properties) for symbol, end in ends)
        case tree.NotBetween(operand, low, high):
            value = evaluate(operand, properties)
            ends = (("<", low), (">", high))
            return _not(_all(_not(_order(symbol, value, end, properties)) for symbol, end in ends))
        case tree.In(operand, texts):
            value = evaluate(operand, properties)
            return None if value is None else value in texts
        case _:
            assert isinstance(node, tree.Search)
            return _search(node, properties)


def _not(value: tree.Value) -> bool | None:
    return None if value is None else not value


def _all(values: Iterable[tree.Value]) -> bool | None:
    """Return whether all are TRUE, null if that is unknown; stop at the first FALSE."""
    is_known = True
    for value in values:
        if value is False:
            return False
        is_known &= value is not None
    return True if is_known else None


def _equal(left: tree.Value, right: tree.Value) -> bool | None:
    if left is None or right is None:
        if left is right:
            return True
        return None if left is None else False
    if isinstance(left, bool) and isinstance(right, str):
        # Java casts the wrong one of the two.
        raise EvaluationError("a truth on the left is not compared with a string")
    if isinstance(left, str) and isinstance(right, bool):
        return (left.lower() == "true") is right
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return _compare(left, right) == 0


def _order(
    symbol: str, lower: tree.Value, right: tree.Node, properties: Mapping[str, str]
) -> bool | None:
    if lower is None:
        return None
    upper = evaluate(right, properties)  # not before: it may throw
    if upper is None:
        return None
    assert not isinstance(lower, bool)
    assert not isinstance(upper, bool)
    if isinstance(lower, str) and isinstance(upper, str):
        lower = _parsed(lower, float)
        upper = _parsed(upper, float)
    sign = _compare(lower, upper)
    return {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[symbol]


def _search(node: tree.Search, properties: Mapping[str, str]) -> bool:
    if not node.text:
        return False  # before the operand is evaluated, which may throw
    value = evaluate(node.operand, properties)
    if not isinstance(value, str):
        return False
    return _SEARCHES[node.how](value, node.text) is not node.negated


def _parsed(text: str, kind: type) -> tree.Number:
    """Return a string as a number of one of Java's three classes."""
    number = tree.PARSERS[kind](text)
    if number is None:
        raise EvaluationError(f"{text!r} is not a valid {kind.__name__}")
    return number


def _compare(left: str | tree.Number, right: str | tree.Number) -> int:
    """Return a number less than, equal to or greater than 0.

    A string that is compared with a number is parsed as the number's class.

    Source: ComparisonExpression.java#__compare.
    """
    if isinstance(left, str):
        left = _parsed(left, type(right))
    elif isinstance(right, str):
        right = _parsed(right, type(left))
    assert not isinstance(right, str)
    if isinstance(left, float) or isinstance(right, float):
        return tree.compare_doubles(float(left), float(right))
    return (left > right) - (left < right)
