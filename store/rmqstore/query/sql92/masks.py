"""Many messages at once: columns of properties in, masks out; equals ``evaluation`` on each message.

Strings are looked at by Arrow, numbers compared by numpy; only strings that are no plain numbers
are parsed in Python, once for each distinct one. A truth is three masks, and null where none of
them is set.
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
from rmqstore.query.sql92.evaluation import EvaluationError, evaluate
from rmqstore.query.sql92.numbers import Long, Number, parse_double, parse_integer, parse_long
from rmqstore.query.sql92.tree import (
    And,
    Between,
    Equal,
    In,
    IsNull,
    IsTrue,
    Literal,
    Negate,
    Node,
    Not,
    NotBetween,
    Or,
    Order,
    Property,
    Search,
    is_truth,
    walk,
)

_PLAIN_INTEGER = r"^-?[0-9]{1,18}$"  # Arrow's casts and Java's parsers agree on these
_PLAIN_DOUBLE = r"^-?[0-9]{1,19}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?$"


class Truth(NamedTuple):
    """What a condition gives for n messages; at most one of the masks (n,) is set for each, none for null."""

    true: Mask
    false: Mask
    failed: Mask  # Java throws


class _Texts(NamedTuple):
    """A property of n messages, or what is known of it."""

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
_Operand: TypeAlias = Truth | _Texts | str | Number


def keep(tree: Node, columns: Mapping[str, pa.Array], n: int) -> Mask:
    """Return a mask (n,) of the messages that a broker would deliver.

    Args:
        tree: the expression.
        columns: each property that it names, string (n,), null where a message has none.
        n: how many messages; an expression may name no property.
    """
    return _Evaluator(columns, n).truth(tree).true


class _Evaluator:
    def __init__(self, columns: Mapping[str, pa.Array], n: int) -> None:
        self._columns, self._n = columns, n
        self._texts: dict[str, _Texts] = {}
        self._numbers: dict[tuple[str, type], _Numbers] = {}
        self._nowhere, self._everywhere = np.zeros(n, np.bool_), np.ones(n, np.bool_)

    def truth(self, node: Node) -> Truth:  # noqa: C901, PLR0911 - one line for each kind of condition
        match node:
            case And(operands):
                return self._all(partial(self.truth, operand) for operand in operands)
            case Or(operands):
                return _not(self._all(partial(self._denied, operand) for operand in operands))
            case Not(operand):
                return self._denied(operand)
            case IsTrue(operand):
                given, failed = self._states(self.operand(operand))
                return Truth(self._nowhere, given, failed)
            case IsNull(operand):
                given, failed = self._states(self.operand(operand))
                return Truth(~(given | failed), given, failed)
            case Equal(left, right):
                return self._equal(self.operand(left), self.operand(right))
            case Order(symbol, left, right):
                return self._order(symbol, self.operand(left), self.operand(right))
            case Between() | NotBetween():
                return self._between(node)
            case In(operand, texts):
                return self._in(operand, texts)
            case Search():
                return self._search(node)
            case _:
                return self._constant(node)

    def _denied(self, node: Node) -> Truth:
        return _not(self.truth(node))

    def operand(self, node: Node) -> _Operand:
        """Return what a part gives, of any kind."""
        if isinstance(node, Property):
            return self._property(node.name)
        if is_truth(node):
            return self.truth(node)
        if not any(isinstance(part, Property) for part, _ in walk(node)):
            return self._constant_operand(node)
        assert isinstance(node, Negate)  # of no number, as it names a property
        return Truth(self._nowhere, self._nowhere, self._states(self.operand(node.operand))[1])

    def _constant_operand(self, node: Node) -> _Operand:
        try:
            value = evaluate(node, {})
        except EvaluationError:
            return Truth(self._nowhere, self._nowhere, self._everywhere)
        if value is None or isinstance(value, bool):
            true, false = (
                self._everywhere if value is known else self._nowhere for known in (True, False)
            )
            return Truth(true, false, self._nowhere)
        return value

    def _constant(self, node: Node) -> Truth:
        assert isinstance(node, Literal)
        found = self._constant_operand(node)
        assert isinstance(found, Truth)
        return found

    def _property(self, name: str) -> _Texts:
        found = self._texts.get(name)
        if found is None:
            values = self._columns[name]
            given = values.is_valid().to_numpy(zero_copy_only=False)
            found = self._texts[name] = _Texts(name, values, given)
        return found

    def _states(self, operand: _Operand) -> tuple[Mask, Mask]:
        """Return where an operand is not null, and where Java throws."""
        if isinstance(operand, Truth):
            return operand.true | operand.false, operand.failed
        return operand.given if isinstance(operand, _Texts) else self._everywhere, self._nowhere

    def _all(self, conditions: Iterable[Callable[[], Truth]]) -> Truth:
        """Return whether all hold: each is evaluated only for messages that none before was FALSE of."""
        true, false, failed = self._everywhere, self._nowhere, self._nowhere
        for condition in conditions:
            found = condition()
            asked = ~(false | failed)
            true = true & found.true
            false = false | (asked & found.false)
            failed = failed | (asked & found.failed)
            if (false | failed).all():
                break
        return Truth(true, false, failed)

    # Comparisons

    def _equal(self, left: _Operand, right: _Operand) -> Truth:
        (left_given, left_failed), (right_given, right_failed) = (
            self._states(left),
            self._states(right),
        )
        same, broken = self._same(left, right)
        both = left_given & right_given
        failed = left_failed | right_failed | (both & broken)
        nothing = ~(left_given | right_given)
        true = (both & same) | nothing
        false = (both & ~same) | (left_given & ~right_given)
        return Truth(true & ~failed, false & ~failed, failed)

    def _same(self, left: _Operand, right: _Operand) -> tuple[Mask, Mask]:
        """Return where the operands are equal, and where Java throws; what it says where one is null is not used."""
        if isinstance(left, Truth):
            if isinstance(right, Truth):
                return left.true == right.true, self._nowhere
            return self._nowhere, self._everywhere if isinstance(
                right, _Texts | str
            ) else self._nowhere
        if isinstance(right, Truth):
            if isinstance(left, _Texts | str):
                return self._spells_true(left) == right.true, self._nowhere
            return self._nowhere, self._nowhere
        if isinstance(left, _Texts) and isinstance(right, _Texts | str):
            return _as_mask(
                pc.equal(left.values, right if isinstance(right, str) else right.values)
            ), self._nowhere
        if isinstance(right, _Texts) and isinstance(left, str):
            return _as_mask(pc.equal(right.values, left)), self._nowhere
        if isinstance(left, str) and isinstance(right, str):
            return self._everywhere if left == right else self._nowhere, self._nowhere
        signs, broken = self._signs(left, right)
        return signs == 0, broken

    def _spells_true(self, text: _Texts | str) -> Mask:
        """Tell where a string is "true" in any case. Source: Boolean.java#valueOf of the JDK."""
        if isinstance(text, str):
            return self._everywhere if text.lower() == "true" else self._nowhere
        return _as_mask(pc.equal(pc.ascii_lower(text.values), "true"))

    def _order(self, symbol: str, left: _Operand, right: _Operand) -> Truth:
        (left_given, left_failed), (right_given, right_failed) = (
            self._states(left),
            self._states(right),
        )
        both = left_given & right_given
        failed = left_failed | (left_given & right_failed)
        # null for all: no condition may stand here
        if isinstance(left, Truth) or isinstance(right, Truth):
            return Truth(self._nowhere, self._nowhere, failed)
        signs, broken = self._signs(left, right)
        failed = failed | (both & broken)
        compared, holds = both & ~failed, _ordered(symbol, signs)
        return Truth(compared & holds, compared & ~holds, failed)

    def _between(self, node: Between | NotBetween) -> Truth:
        operand = self.operand(node.operand)
        inside = isinstance(node, Between)
        ends = (
            ((">=", node.low), ("<=", node.high)) if inside else (("<", node.low), (">", node.high))
        )
        found = (partial(self._order, symbol, operand, self.operand(end)) for symbol, end in ends)
        if inside:
            return self._all(found)
        return _not(self._all(partial(_denied, condition) for condition in found))

    def _signs(
        self, left: _Texts | str | Number, right: _Texts | str | Number
    ) -> tuple[NDArray[np.int8], Mask]:
        """Return the signs of left against right as numbers, int8 (n,), and where a string is no such number."""
        kinds = [type(side) for side in (left, right) if isinstance(side, int | float)]
        if len(kinds) == 2:
            kind: type = float if float in kinds else Long
        else:
            kind = kinds[0] if kinds else float
        lower, upper = self._as_numbers(left, kind), self._as_numbers(right, kind)
        signs = (lower.keys > upper.keys).astype(np.int8) - (lower.keys < upper.keys).astype(
            np.int8
        )
        return signs, ~(lower.sound & upper.sound)

    def _as_numbers(self, side: _Texts | str | Number, kind: type) -> _Numbers:
        if isinstance(side, _Texts):
            found = self._numbers.get((side.name, kind))
            if found is None:
                found = self._numbers[side.name, kind] = _parse(side.values, kind)
            return found
        if isinstance(side, str):
            only = _parse(pa.array([side]), kind)
            return _Numbers(np.repeat(only.keys, self._n), np.repeat(only.sound, self._n))
        key = _double_keys(np.array([float(side)])) if kind is float else np.array([side], np.int64)
        return _Numbers(np.repeat(key, self._n), self._everywhere)

    # Strings

    def _in(self, operand: Node, texts: frozenset[str]) -> Truth:
        assert isinstance(operand, Property)
        found = self._property(operand.name)
        among = _as_mask(pc.is_in(found.values, value_set=pa.array(sorted(texts), pa.string())))
        return Truth(found.given & among, found.given & ~among, self._nowhere)

    def _search(self, node: Search) -> Truth:
        if not node.text:
            return Truth(self._nowhere, self._everywhere, self._nowhere)
        operand = self.operand(node.operand)
        if isinstance(operand, str):
            operand = _Texts("", pa.array([operand] * self._n, pa.string()), self._everywhere)
        if not isinstance(operand, _Texts):
            failed = self._states(operand)[1]
            return Truth(self._nowhere, ~failed, failed)
        how = {
            "CONTAINS": pc.match_substring,
            "STARTSWITH": pc.starts_with,
            "ENDSWITH": pc.ends_with,
        }[node.how]
        hits = _as_mask(how(operand.values, node.text))
        true = operand.given & (~hits if node.negated else hits)
        return Truth(true, ~true, self._nowhere)


def _not(truth: Truth) -> Truth:
    return Truth(truth.false, truth.true, truth.failed)


def _denied(condition: Callable[[], Truth]) -> Truth:
    return _not(condition())


def _as_mask(values: pa.BooleanArray) -> Mask:
    """Return a boolean array as a mask, null as False."""
    found: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)  # noqa: FBT003 - Arrow's own parameter
    return found


def _ordered(symbol: str, signs: NDArray[np.int8]) -> Mask:
    compared: dict[str, Mask] = {"<": signs < 0, "<=": signs <= 0, ">": signs > 0, ">=": signs >= 0}
    return compared[symbol]


def _parse(values: pa.StringArray, kind: type) -> _Numbers:
    """Parse strings as numbers of one of Java's classes: int, Long or float."""
    plain = pc.match_substring_regex(values, _PLAIN_DOUBLE if kind is float else _PLAIN_INTEGER)
    plain = pc.fill_null(plain, False)  # noqa: FBT003
    cast = pc.if_else(plain, values, pa.scalar("0")).cast(
        pa.float64() if kind is float else pa.int64()
    )
    numbers, sound = cast.to_numpy().copy(), plain.to_numpy(zero_copy_only=False).copy()
    odd = np.flatnonzero(~sound & values.is_valid().to_numpy(zero_copy_only=False))
    if len(odd):
        encoded = values.take(pa.array(odd)).dictionary_encode()
        parse: Callable[[str], Number | None]
        parse = parse_double if kind is float else parse_long if kind is Long else parse_integer
        parsed = [parse(text) for text in encoded.dictionary.to_pylist()]
        codes = encoded.indices.to_numpy()
        numbers[odd] = np.array(
            [0 if number is None else number for number in parsed], numbers.dtype
        )[codes]
        sound[odd] = np.array([number is not None for number in parsed])[codes]
    if kind is float:
        return _Numbers(_double_keys(numbers), sound)
    if kind is int:
        sound &= numbers == numbers.astype(np.int32)
    return _Numbers(numbers, sound)


def _double_keys(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return integers that compare as Double.compare does: all NaN are one, above all; 0.0 is above -0.0."""
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64((1 << 63) - 1), bits)
