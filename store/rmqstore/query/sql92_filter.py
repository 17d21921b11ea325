"""A filter as users write it: compiled once, then applied to many messages.

Arrow compares strings, and numpy compares numbers, with the results of Java. Only strings that are
not plain numbers are parsed in Python, once for each distinct one. A truth is three masks, and null
where none of them is set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import OptionError
from rmqstore.format.columns.buffers import mask_of
from rmqstore.format.layout import Mask
from rmqstore.format.schema import ALL_COLUMNS, ASSIGNED
from rmqstore.query.sql92_parser import parse
from rmqstore.query.sql92_tree import (
    PARSERS,
    And,
    Between,
    Equal,
    In,
    IsNull,
    IsTrue,
    Literal,
    Long,
    Negate,
    Node,
    Not,
    Number,
    Or,
    Order,
    Property,
    Search,
    is_truth,
    walk,
)

logger = logging.getLogger(__name__)

_COLUMNS: Final = frozenset(ALL_COLUMNS.names)
# Not `pending`, an ordinary word that may well be the name of a property.
_ASSIGNED: Final = frozenset({*ASSIGNED, "queueId"}) - {"pending"}
_PLAIN_INTEGER = r"^-?[0-9]{1,18}$"  # Arrow's casts and Java's parsers agree on these
_PLAIN_DOUBLE = r"^-?[0-9]{1,19}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?$"
_SEARCHES = {
    "CONTAINS": pc.match_substring,
    "STARTSWITH": pc.starts_with,
    "ENDSWITH": pc.ends_with,
}


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled expression; picklable, so that tasks can be given it.

    Made by :func:`compile_filter`.

    Attributes:
        text: the expression as it was given.
        tree: the expression, parsed.
        names: the properties that it compares, each once, in the order of the text.
        unread: text after the end of the expression, which a broker does not read either.
    """

    text: str
    tree: Node
    names: tuple[str, ...]
    unread: str

    def keep(self, columns: Mapping[str, pa.Array], n: int) -> Mask:
        """Return a mask (n,) of the messages that a broker would deliver.

        Args:
            columns: each property of ``names``, string (n,), null where a message has none; as
                ``format.columns.decode.property_values`` gives them.
            n: how many messages; ``1 = 1`` names no property.

        Raises:
            OptionError: a column of ``names`` is missing, or does not hold n strings.

        Source: ExpressionMessageFilter.java#isMatchedByCommitLog.
        """
        for name in self.names:
            column = columns.get(name)
            if column is None or len(column) != n or column.type != pa.string():
                actual = "nothing" if column is None else f"{len(column)} of {column.type}"
                raise OptionError(
                    f"SQL92 filter {self.text!r} needs {n} strings of property {name}, "
                    f"found {actual}"
                )
        return _Evaluator(columns, n).truth(self.tree).true


def compile_filter(text: str) -> Filter:
    """Compile an expression of RocketMQ's SQL92.

    Raises:
        OptionError: RocketMQ refuses the expression, or it nests too deep; says where and what was
            expected.

    Source: SqlFilter.java#compile, SelectorParser.java#parse.
    """
    tree, unread = parse(text)
    names = dict.fromkeys(node.name for node, _ in walk(tree) if isinstance(node, Property))
    return Filter(text, tree, tuple(names), unread)


def parse_filter(text: str | None) -> Filter | None:
    """Compile the option ``filter``; None and empty text select all messages.

    A broker compares properties only, so the name of a column matches nothing. Names that the
    store itself assigns are refused, since no producer has cause to give them to a property; words
    such as ``topic`` may well be a property's.

    Raises:
        OptionError: as :func:`compile_filter`; or the expression ends before the text does; or it
            names a column that the store assigns.
    """
    if text is None or not text.strip():
        return None
    compiled = compile_filter(text)
    if compiled.unread:
        raise OptionError(
            f"`filter` {text!r}: RocketMQ ends the expression before {compiled.unread!r} "
            "and passes over the rest; write AND or OR there, or leave it out (it knows "
            "CONTAINS, STARTSWITH and ENDSWITH, but no LIKE)"
        )
    for name in compiled.names:
        if name in _ASSIGNED:
            raise OptionError(
                f"`filter` {text!r}: {name} is a column, and a filter compares properties "
                "only: put the condition into `where=` (in Spark, .where()). For a "
                "property of that name hold it against column properties: "
                f"where=pc.map_lookup(pc.field('properties'), '{name}', 'first') == '…', in "
                f"Spark properties['{name}'] = '…'"
            )
        if name in _COLUMNS:
            logger.warning(
                "filter %r compares the property %s, not the column of that name; "
                "conditions on columns go into where",
                text,
                name,
            )
    return compiled


class Truth(NamedTuple):
    """The result for n messages: at most one mask (n,) is set for each, none for null."""

    true: Mask
    false: Mask
    failed: Mask  # Java throws


class _Texts(NamedTuple):
    """A property of n messages, or a constant, which each of them has."""

    name: str  # of the property
    values: pa.StringArray | pa.StringScalar  # (n,), or the constant
    given: Mask  # (n,)


class _Numbers(NamedTuple):
    """Strings as numbers of one class.

    Keys compare as the numbers do in Java, NaN and -0.0 included.
    """

    keys: NDArray[np.int64]  # (n,)
    valid: Mask  # (n,) where the string is such a number


# A number here is a constant; a constant that is TRUE, FALSE or NULL is a Truth.
_Operand: TypeAlias = Truth | _Texts | Number


class _Evaluator:
    def __init__(self, columns: Mapping[str, pa.Array], n: int) -> None:
        self._columns = columns
        self._n = n
        self._numbers: dict[tuple[str, type], _Numbers] = {}
        self._nowhere = np.zeros(n, np.bool_)
        self._everywhere = np.ones(n, np.bool_)

    def truth(self, node: Node) -> Truth:  # noqa: C901, PLR0911 - one line for each kind of condition
        match node:
            case And(operands):
                return self._all(partial(self.truth, operand) for operand in operands)
            case Or(operands):
                return self._any(partial(self.truth, operand) for operand in operands)
            case Not(operand):
                return _not(self.truth(operand))
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
            case Between():
                return self._between(node)
            case In(operand, texts):
                assert isinstance(operand, Property)
                column = self._property(operand.name)
                listed = pa.array(sorted(texts), pa.string())
                is_listed = self._mask(pc.is_in(column.values, value_set=listed))
                return Truth(column.given & is_listed, column.given & ~is_listed, self._nowhere)
            case Search():
                return self._search(node)
            case _:
                assert isinstance(node, Literal)
                true = self._everywhere if node.value is True else self._nowhere
                false = self._everywhere if node.value is False else self._nowhere
                return Truth(true, false, self._nowhere)

    def operand(self, node: Node) -> _Operand:
        """Return what a part gives, of any kind."""
        if isinstance(node, Property):
            return self._property(node.name)
        if is_truth(node):
            return self.truth(node)
        if isinstance(node, Literal):
            if isinstance(node.value, str):
                return _Texts("", pa.scalar(node.value), self._everywhere)
            assert isinstance(node.value, int | float)
            return node.value
        assert isinstance(node, Negate)
        operand = self.operand(node.operand)
        if isinstance(operand, int | float):
            return -operand
        return Truth(self._nowhere, self._nowhere, self._states(operand)[1])

    def _property(self, name: str) -> _Texts:
        values = self._columns[name]
        return _Texts(name, values, mask_of(values.is_valid()))

    def _states(self, operand: _Operand) -> tuple[Mask, Mask]:
        """Return masks of the rows where an operand is not null, and where Java throws."""
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

    def _any(self, conditions: Iterable[Callable[[], Truth]]) -> Truth:
        """Return whether any condition holds.

        A condition counts only for messages for which no earlier one is TRUE or fails.
        """
        return _not(self._all(partial(_denied, condition) for condition in conditions))

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
        """Return masks of the rows where the operands are equal, and where Java throws.

        Neither mask means anything where an operand is null.
        """
        if isinstance(left, Truth):
            if isinstance(right, Truth):
                return left.true == right.true, self._nowhere
            is_string = isinstance(right, _Texts)
            return self._nowhere, self._everywhere if is_string else self._nowhere
        if isinstance(right, Truth):
            if isinstance(left, _Texts):
                # Whether it is "true" in any case. Source: Boolean.java#valueOf of the JDK.
                is_true = self._mask(pc.equal(pc.ascii_lower(left.values), "true"))
                return is_true == right.true, self._nowhere
            return self._nowhere, self._nowhere
        if isinstance(left, _Texts) and isinstance(right, _Texts):
            return self._mask(pc.equal(left.values, right.values)), self._nowhere
        signs, incomparable = self._signs(left, right)
        return signs == 0, incomparable

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

    def _between(self, node: Between) -> Truth:
        operand = self.operand(node.operand)
        symbols = ("<", ">") if node.negated else (">=", "<=")
        orders = (
            partial(self._order, symbol, operand, self.operand(end))
            for symbol, end in zip(symbols, (node.low, node.high), strict=True)
        )
        return self._any(orders) if node.negated else self._all(orders)

    def _signs(
        self, left: _Texts | Number, right: _Texts | Number
    ) -> tuple[NDArray[np.int8], Mask]:
        """Return the signs of left minus right, int8 (n,), and where a string is not a number."""
        kinds = [type(side) for side in (left, right) if isinstance(side, int | float)]
        if len(kinds) == 2:
            kind: type = float if float in kinds else Long
        else:
            kind = kinds[0] if kinds else float
        lower = self._as_numbers(left, kind)
        upper = self._as_numbers(right, kind)
        is_greater = (lower.keys > upper.keys).astype(np.int8)
        is_less = (lower.keys < upper.keys).astype(np.int8)
        return is_greater - is_less, ~(lower.valid & upper.valid)

    def _as_numbers(self, side: _Texts | Number, kind: type) -> _Numbers:
        if isinstance(side, _Texts) and isinstance(side.values, pa.Scalar):
            only = _parse(pa.array([side.values.as_py()]), kind)
            return _Numbers(np.repeat(only.keys, self._n), np.repeat(only.valid, self._n))
        if isinstance(side, _Texts):
            numbers = self._numbers.get((side.name, kind))
            if numbers is None:
                numbers = self._numbers[side.name, kind] = _parse(side.values, kind)
            return numbers
        key = _double_keys(np.array([float(side)])) if kind is float else np.array([side], np.int64)
        return _Numbers(np.repeat(key, self._n), self._everywhere)

    # Strings

    def _search(self, node: Search) -> Truth:
        if not node.text:
            return Truth(self._nowhere, self._everywhere, self._nowhere)
        operand = self.operand(node.operand)
        if not isinstance(operand, _Texts):
            failed = self._states(operand)[1]
            return Truth(self._nowhere, ~failed, failed)
        found = self._mask(_SEARCHES[node.how](operand.values, node.text))
        true = operand.given & (~found if node.negated else found)
        return Truth(true, ~true, self._nowhere)

    def _mask(self, values: pa.BooleanArray | pa.BooleanScalar) -> Mask:
        """Return booleans, or one that all rows have, as a mask; null as False."""
        if isinstance(values, pa.Scalar):
            return self._everywhere if values.as_py() else self._nowhere
        return mask_of(pc.fill_null(values, fill_value=False))


def _not(truth: Truth) -> Truth:
    return Truth(truth.false, truth.true, truth.failed)


def _denied(condition: Callable[[], Truth]) -> Truth:
    return _not(condition())


def _parse(values: pa.StringArray, kind: type) -> _Numbers:
    """Parse strings as numbers of one of Java's classes: int, Long or float."""
    pattern, number_type = _PLAIN_INTEGER, pa.int64()
    if kind is float:
        pattern, number_type = _PLAIN_DOUBLE, pa.float64()
    is_plain = pc.match_substring_regex(values, pattern).fill_null(fill_value=False)
    plain_texts = pc.if_else(is_plain, values, pa.scalar("0"))
    numbers = plain_texts.cast(number_type).to_numpy().copy()
    valid = mask_of(is_plain)
    odd_rows = np.flatnonzero(~valid & mask_of(values.is_valid()))
    if len(odd_rows):
        odd_texts = values.take(pa.array(odd_rows)).dictionary_encode()
        codes = odd_texts.indices.to_numpy()
        parse = PARSERS[kind]
        parsed = [parse(text) for text in odd_texts.dictionary.to_pylist()]
        parsed_or_zero = [0 if number is None else number for number in parsed]
        numbers[odd_rows] = np.array(parsed_or_zero, numbers.dtype)[codes]
        valid[odd_rows] = np.array([number is not None for number in parsed])[codes]
    if kind is float:
        return _Numbers(_double_keys(numbers), valid)
    if kind is int:
        valid &= numbers == numbers.astype(np.int32)
    return _Numbers(numbers, valid)


def _double_keys(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return integers that compare as Double.compare does.

    All NaN are one number, above all others, and 0.0 is above -0.0.
    """
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64((1 << 63) - 1), bits)
