"""Evaluates an expression for many messages at once, with the same results as ``evaluation``.

Arrow compares strings and numpy compares numbers. Only strings that are not plain numbers are
parsed in Python, once for each distinct one. A truth is three masks, and null where none of them
is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.layout import Mask
from rmqstore.query import sql92_tree as tree
from rmqstore.query.sql92_evaluation import EvaluationError, evaluate

_PLAIN_INTEGER = r"^-?[0-9]{1,18}$"  # Arrow's casts and Java's parsers agree on these
_PLAIN_DOUBLE = r"^-?[0-9]{1,19}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?$"
_SEARCHES = {
    "CONTAINS": pc.match_substring,
    "STARTSWITH": pc.starts_with,
    "ENDSWITH": pc.ends_with,
}


class Truth(NamedTuple):
    """The result for n messages: at most one mask (n,) is set for each, none for null."""

    true: Mask
    false: Mask
    failed: Mask  # Java throws


class _Texts(NamedTuple):
    """A property of n messages, or a constant as if each of them had it."""

    name: str
    values: pa.StringArray  # (n,)
    given: Mask  # (n,)


class _Numbers(NamedTuple):
    """Strings as numbers of one class.

    Keys compare as the numbers do in Java, NaN and -0.0 included.
    """

    keys: NDArray[np.int64]  # (n,)
    sound: Mask  # (n,) where the string is such a number


# A string or number here is a constant; a constant of another kind is a Truth.
_Operand: TypeAlias = Truth | _Texts | str | tree.Number


def keep(expression: tree.Node, columns: Mapping[str, pa.Array], n: int) -> Mask:
    """Return a mask (n,) of the messages that a broker would deliver.

    Args:
        expression: the expression.
        columns: each property that it names, string (n,), null where a message has none.
        n: how many messages; an expression may name no property.
    """
    return _Evaluator(columns, n).truth(expression).true


class _Evaluator:
    def __init__(self, columns: Mapping[str, pa.Array], n: int) -> None:
        self._columns = columns
        self._n = n
        self._texts: dict[str, _Texts] = {}
        self._numbers: dict[tuple[str, type], _Numbers] = {}
        self._nowhere = np.zeros(n, np.bool_)
        self._everywhere = np.ones(n, np.bool_)

    def truth(self, node: tree.Node) -> Truth:  # noqa: C901, PLR0911 - one line for each kind of condition
        match node:
            case tree.And(operands):
                return self._all(partial(self.truth, operand) for operand in operands)
            case tree.Or(operands):
                return _not(self._all(partial(self._denied, operand) for operand in operands))
            case tree.Not(operand):
                return self._denied(operand)
            case tree.IsTrue(operand):
                given, failed = self._states(self.operand(operand))
                return Truth(self._nowhere, given, failed)
            case tree.IsNull(operand):
                given, failed = self._states(self.operand(operand))
                return Truth(~(given | failed), given, failed)
            case tree.Equal(left, right):
                return self._equal(self.operand(left), self.operand(right))
            case tree.Order(symbol, left, right):
                return self._order(symbol, self.operand(left), self.operand(right))
            case tree.Between() | tree.NotBetween():
                return self._between(node)
            case tree.In(operand, texts):
                assert isinstance(operand, tree.Property)
                column = self._property(operand.name)
                listed = pa.array(sorted(texts), pa.string())
                is_listed = _as_mask(pc.is_in(column.values, value_set=listed))
                return Truth(column.given & is_listed, column.given & ~is_listed, self._nowhere)
            case tree.Search():
                return self._search(node)
            case _:
                assert isinstance(node, tree.Literal)
                constant = self._constant_operand(node)
                assert isinstance(constant, Truth)
                return constant

    def _denied(self, node: tree.Node) -> Truth:
        return _not(self.truth(node))

    def operand(self, node: tree.Node) -> _Operand:
        """Return what a part gives, of any kind."""
        if isinstance(node, tree.Property):
            return self._property(node.name)
        if tree.is_truth(node):
            return self.truth(node)
        if not any(isinstance(part, tree.Property) for part, _ in tree.walk(node)):
            return self._constant_operand(node)
        assert isinstance(node, tree.Negate)  # of no number, as it names a property
        return Truth(self._nowhere, self._nowhere, self._states(self.operand(node.operand))[1])

    def _constant_operand(self, node: tree.Node) -> _Operand:
        try:
            value = evaluate(node, {})
        except EvaluationError:
            return Truth(self._nowhere, self._nowhere, self._everywhere)
        if value is None or isinstance(value, bool):
            true = self._everywhere if value is True else self._nowhere
            false = self._everywhere if value is False else self._nowhere
            return Truth(true, false, self._nowhere)
        return value

    def _property(self, name: str) -> _Texts:
        texts = self._texts.get(name)
        if texts is None:
            values = self._columns[name]
            given = values.is_valid().to_numpy(zero_copy_only=False)
            texts = self._texts[name] = _Texts(name, values, given)
        return texts

    def _states(self, operand: _Operand) -> tuple[Mask, Mask]:
        """Return where an operand is not null, and where Java throws."""
        if isinstance(operand, Truth):
            return operand.true | operand.false, operand.failed
        return operand.given if isinstance(operand, _Texts) else self._everywhere, self._nowhere

    def _all(self, conditions: Iterable[Callable[[], Truth]]) -> Truth:
        """Return whether all conditions hold.

        As in Java, a condition counts only for messages for which no earlier one is FALSE or fails.
        """
        true, false, failed = self._everywhere, self._nowhere, self._nowhere
        for condition in conditions:
            truth = condition()
            undecided = ~(false | failed)
            true = true & truth.true
            false = false | (undecided & truth.false)
            failed = failed | (undecided & truth.failed)
            if (false | failed).all():
                break
        return Truth(true, false, failed)

    # Comparisons

    def _equal(self, left: _Operand, right: _Operand) -> Truth:
        left_given, left_failed = self._states(left)
        right_given, right_failed = self._states(right)
        same, incomparable = self._same(left, right)
        both = left_given & right_given
        neither = ~(left_given | right_given)
        failed = left_failed | right_failed | (both & incomparable)
        true = (both & same) | neither
        false = (both & ~same) | (left_given & ~right_given)
        return Truth(true & ~failed, false & ~failed, failed)

    def _same(self, left: _Operand, right: _Operand) -> tuple[Mask, Mask]:
        """Return where the operands are equal, and where Java throws.

        Neither mask means anything where an operand is null.
        """
        if isinstance(left, Truth):
            if isinstance(right, Truth):
                return left.true == right.true, self._nowhere
            is_string = isinstance(right, _Texts | str)
            return self._nowhere, self._everywhere if is_string else self._nowhere
        if isinstance(right, Truth):
            if isinstance(left, _Texts | str):
                return self._spells_true(left) == right.true, self._nowhere
            return self._nowhere, self._nowhere
        if isinstance(left, _Texts | str) and isinstance(right, _Texts | str):
            return self._same_text(left, right), self._nowhere
        signs, incomparable = self._signs(left, right)
        return signs == 0, incomparable

    def _same_text(self, left: _Texts | str, right: _Texts | str) -> Mask:
        if isinstance(left, str) and isinstance(right, str):
            return self._everywhere if left == right else self._nowhere
        left_values = left.values if isinstance(left, _Texts) else left
        right_values = right.values if isinstance(right, _Texts) else right
        return _as_mask(pc.equal(left_values, right_values))

    def _spells_true(self, text: _Texts | str) -> Mask:
        """Return where a string is "true" in any case. Source: Boolean.java#valueOf of the JDK."""
        if isinstance(text, str):
            return self._everywhere if text.lower() == "true" else self._nowhere
        return _as_mask(pc.equal(pc.ascii_lower(text.values), "true"))

    def _order(self, symbol: str, left: _Operand, right: _Operand) -> Truth:
        left_given, left_failed = self._states(left)
        right_given, right_failed = self._states(right)
        both = left_given & right_given
        failed = left_failed | (left_given & right_failed)
        # A truth here is null for all messages: the parser refuses any other condition.
        if isinstance(left, Truth) or isinstance(right, Truth):
            return Truth(self._nowhere, self._nowhere, failed)
        signs, incomparable = self._signs(left, right)
        failed = failed | (both & incomparable)
        comparable = both & ~failed
        masks = {"<": signs < 0, "<=": signs <= 0, ">": signs > 0, ">=": signs >= 0}
        holds: Mask = masks[symbol]
        return Truth(comparable & holds, comparable & ~holds, failed)

    def _between(self, node: tree.Between | tree.NotBetween) -> Truth:
        operand = self.operand(node.operand)
        is_inside = isinstance(node, tree.Between)
        low_symbol, high_symbol = (">=", "<=") if is_inside else ("<", ">")
        ends = ((low_symbol, node.low), (high_symbol, node.high))
        orders = (partial(self._order, symbol, operand, self.operand(end)) for symbol, end in ends)
        if is_inside:
            return self._all(orders)
        return _not(self._all(partial(_denied, order) for order in orders))

    def _signs(
        self, left: _Texts | str | tree.Number, right: _Texts | str | tree.Number
    ) -> tuple[NDArray[np.int8], Mask]:
        """Return the signs of left minus right, int8 (n,), and where a string is not a number."""
        kinds = [type(side) for side in (left, right) if isinstance(side, int | float)]
        if len(kinds) == 2:
            kind: type = float if float in kinds else tree.Long
        else:
            kind = kinds[0] if kinds else float
        lower = self._as_numbers(left, kind)
        upper = self._as_numbers(right, kind)
        is_greater = (lower.keys > upper.keys).astype(np.int8)
        is_less = (lower.keys < upper.keys).astype(np.int8)
        return is_greater - is_less, ~(lower.sound & upper.sound)

    def _as_numbers(self, side: _Texts | str | tree.Number, kind: type) -> _Numbers:
        if isinstance(side, _Texts):
            numbers = self._numbers.get((side.name, kind))
            if numbers is None:
                numbers = self._numbers[side.name, kind] = _parse(side.values, kind)
            return numbers
        if isinstance(side, str):
            only = _parse(pa.array([side]), kind)
            return _Numbers(np.repeat(only.keys, self._n), np.repeat(only.sound, self._n))
        key = _double_keys(np.array([float(side)])) if kind is float else np.array([side], np.int64)
        return _Numbers(np.repeat(key, self._n), self._everywhere)

    # Strings

    def _search(self, node: tree.Search) -> Truth:
        if not node.text:
            return Truth(self._nowhere, self._everywhere, self._nowhere)
        operand = self.operand(node.operand)
        if isinstance(operand, str):
            operand = _Texts("", pa.array([operand] * self._n, pa.string()), self._everywhere)
        if not isinstance(operand, _Texts):
            failed = self._states(operand)[1]
            return Truth(self._nowhere, ~failed, failed)
        matches = _as_mask(_SEARCHES[node.how](operand.values, node.text))
        true = operand.given & (~matches if node.negated else matches)
        return Truth(true, ~true, self._nowhere)


def _not(truth: Truth) -> Truth:
    return Truth(truth.false, truth.true, truth.failed)


def _denied(condition: Callable[[], Truth]) -> Truth:
    return _not(condition())


def _as_mask(values: pa.BooleanArray) -> Mask:
    """Return a boolean array as a mask, null as False."""
    mask: Mask = pc.fill_null(values, fill_value=False).to_numpy(zero_copy_only=False)
    return mask


def _parse(values: pa.StringArray, kind: type) -> _Numbers:
    """Parse strings as numbers of one of Java's classes: int, Long or float."""
    is_double = kind is float
    is_plain = pc.match_substring_regex(values, _PLAIN_DOUBLE if is_double else _PLAIN_INTEGER)
    is_plain = pc.fill_null(is_plain, fill_value=False)
    plain_texts = pc.if_else(is_plain, values, pa.scalar("0"))
    numbers = plain_texts.cast(pa.float64() if is_double else pa.int64()).to_numpy().copy()
    sound = is_plain.to_numpy(zero_copy_only=False).copy()
    odd_rows = np.flatnonzero(~sound & values.is_valid().to_numpy(zero_copy_only=False))
    if len(odd_rows):
        odd_texts = values.take(pa.array(odd_rows)).dictionary_encode()
        codes = odd_texts.indices.to_numpy()
        parse: Callable[[str], tree.Number | None]
        parse = (
            tree.parse_double
            if is_double
            else tree.parse_long
            if kind is tree.Long
            else tree.parse_integer
        )
        parsed = [parse(text) for text in odd_texts.dictionary.to_pylist()]
        parsed_or_zero = [0 if number is None else number for number in parsed]
        numbers[odd_rows] = np.array(parsed_or_zero, numbers.dtype)[codes]
        sound[odd_rows] = np.array([number is not None for number in parsed])[codes]
    if kind is float:
        return _Numbers(_double_keys(numbers), sound)
    if kind is int:
        sound &= numbers == numbers.astype(np.int32)
    return _Numbers(numbers, sound)


def _double_keys(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return integers that compare as Double.compare does.

    All NaN are one number, above all others, and 0.0 is above -0.0.
    """
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64((1 << 63) - 1), bits)
