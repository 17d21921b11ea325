"""A condition on columns as users give it: text, or a pyarrow expression.

It is not RocketMQ's SQL92, which compares properties and has habits of its own: here NOT binds less
than a comparison, and all of the text counts.

NOT does not stand in the tree: it is moved into the comparisons as the tree is made. So a row that
SQL neither accepts nor rejects, for a null, need not be distinguished from one that it rejects.

A text leaves queues and parts of the log unread. pyarrow shows no parts of an expression, so one
selects rows of all that is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import OptionError
from rmqstore.query.conditions import NO_PRUNING, Between, Pruning
from rmqstore.query.selection import nearest_name
from rmqstore.query.times import misread, parse_time
from rmqstore.query.tokens import END, Token, Tokens, shortened

_ALIKE: Final = 0.75  # how alike two names must be, of 1: `price` is not a slip for `topic`

Kind: TypeAlias = Literal[
    "IN", "NOT IN", "<", "<=", ">", ">=", "LIKE", "NOT LIKE", "IS NULL", "IS NOT NULL"
]

EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_OPPOSITES: Final[dict[Kind, Kind]] = {
    "IN": "NOT IN", "NOT IN": "IN", "<": ">=", ">=": "<", ">": "<=", "<=": ">", "LIKE": "NOT LIKE",
    "NOT LIKE": "LIKE", "IS NULL": "IS NOT NULL", "IS NOT NULL": "IS NULL",
}  # fmt: skip
_ORDERS: Final = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}
# The columns that prune, each with its field of Pruning: by their values, and by their ranges.
_VALUES: Final = {
    "topic": "topics",
    "queueId": "queue_ids",
    "tags": "tags",
    "keys": "keys",
    "msgId": "msg_ids",
    "brokerName": "broker_names",
}
_RANGES: Final = {
    "queueOffset": "queue_offsets",
    "commitLogOffset": "physical_offsets",
    "storeTimestamp": "store_timestamps",
}
PRUNED_COLUMNS: Final = frozenset(_VALUES | _RANGES)
_BEFORE_WILDCARDS = re.compile(r"(?:[^%_\\]|\\[%_\\])*")

_INT64: Final = 1 << 63

_TOKEN: Final = re.compile(
    r"""
    (?P<blank>     \s+ )
    | (?P<integer> [+-]?[0-9]+(?![\w.]) )
    | (?P<string>  '(?:''|[^'])*' )
    | (?P<name>    [A-Za-z_][A-Za-z0-9_]* )
    | (?P<symbol>  <> | != | <= | >= | [<>=(),] )
    """,
    re.VERBOSE,
)
_NUMBER: Final = re.compile(r"[+-]?[0-9]")
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL"})

_OPERATORS: Final[dict[str, Kind]] = {
    "=": "IN", "<>": "NOT IN", "!=": "NOT IN", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip
_TRUTHS: Final = {"TRUE": True, "FALSE": False}

_PHYSICAL_OFFSET: Final = pa.field("commitLogOffset", pa.int64())
_ROWS_AT_ONCE: Final = 1 << 15  # pyarrow shares out more among threads, and their order is lost


def require_column(name: str, known: Sequence[str], where: str) -> None:
    """Refuse a name that is not a column's.

    Args:
        name: as the condition has it.
        known: the columns that it may name.
        where: the condition, for the message.

    Raises:
        OptionError: with the column that may have been meant.
    """
    if name in known:
        return
    hint = f"there are {', '.join(known)}; properties go into `filter=`"
    if nearest := nearest_name(name, known, _ALIKE):
        hint = f"did you mean {nearest}?"
    raise OptionError(f"{where}: {name[:100]!r} is not a column: {hint}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with values. As in SQL, null meets nothing but ``IS NULL``.

    Attributes:
        column: its name.
        kind: how it is compared.
        values: one for an order or a pattern, any number for IN, none for IS NULL.
    """

    column: str
    kind: Kind
    values: tuple[Any, ...] = ()

    def columns(self) -> set[str]:
        """Return the name of the column that it compares."""
        return {self.column}

    def negated(self) -> Comparison:
        """Return the negation, which is true exactly where this comparison is false.

        Null meets neither.
        """
        return replace(self, kind=_OPPOSITES[self.kind])

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Return which rows meet the comparison, boolean (n,) without nulls."""
        column = batch.column(self.column)
        if self.kind == "IS NULL":
            return column.is_null()
        if self.kind == "IS NOT NULL":
            return column.is_valid()
        if pa.types.is_integer(column.type):
            # A value need not fit into the column's own type.
            column = column.cast(pa.int64())
        if self.kind in _ORDERS:
            return _true(_ORDERS[self.kind](column, pa.scalar(self.values[0], column.type)))
        if self.kind in ("LIKE", "NOT LIKE"):
            is_met = pc.match_like(column, self.values[0])
        else:
            is_met = pc.is_in(column, value_set=pa.array(self.values, column.type))
        if self.kind.startswith("NOT"):
            is_met = pc.invert(is_met)
        return pc.and_(_true(is_met), column.is_valid())

    def pruning(self) -> Pruning:
        """Return what the comparison leaves of a read."""
        if self.kind == "LIKE" and self.column == "topic":
            # Every match begins with the text before the first wildcard of the pattern.
            match = _BEFORE_WILDCARDS.match(self.values[0])
            prefix = re.sub(r"\\(.)", r"\1", match[0]) if match else ""
            return Pruning(topic_prefixes=(prefix,))
        pruned: dict[str, Any] = {}
        if self.kind == "IN" and self.column in _VALUES:
            pruned[_VALUES[self.column]] = frozenset(self.values)
        if self.column in _RANGES:
            pruned[_RANGES[self.column]] = self._within()
        return Pruning(**pruned)

    def _within(self) -> Between:
        """Return the numbers that meet the comparison.

        Of times they are epoch ms, rounded down, with the end of an open range.
        """
        values = self.values
        beyond = 1
        if self.column == "storeTimestamp":
            beyond, values = 0, tuple((value - EPOCH) // _MILLISECOND for value in values)
        match self.kind:
            case "IN":
                return Between(min(values), max(values)) if values else Between(1, 0)
            case "<":
                return Between(high=values[0] - beyond)
            case "<=":
                return Between(high=values[0])
            case ">":
                return Between(low=values[0] + beyond)
            case ">=":
                return Between(low=values[0])
        return Between()


def _true(mask: pa.Array) -> pa.Array:
    """Return a mask without nulls, which are false."""
    return pc.fill_null(mask, fill_value=False)


def literally(text: str) -> str:
    """Return the pattern of LIKE that a text alone matches."""
    return re.sub(r"([%_\\])", r"\\\1", text)


def starting_with(column: str, prefix: str) -> Comparison:
    """Return the comparison of texts that begin with a prefix."""
    return Comparison(column, "LIKE", (literally(prefix) + "%",))


@dataclass(frozen=True, slots=True)
class Joined:
    """One or more conditions, joined by AND or OR."""

    by: Literal["AND", "OR"]
    parts: tuple[Condition, ...]

    def columns(self) -> set[str]:
        """Return the names of the columns that it compares."""
        return {name for part in self.parts for name in part.columns()}

    def negated(self) -> Joined:
        """Return the negation, which is true exactly where this condition is false."""
        parts = tuple(part.negated() for part in self.parts)
        return Joined("OR" if self.by == "AND" else "AND", parts)

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Return which rows meet the condition, boolean (n,) without nulls."""
        join = pc.and_ if self.by == "AND" else pc.or_
        return reduce(join, (part.mask(batch) for part in self.parts))

    def pruning(self) -> Pruning:
        """Return what the condition leaves of a read."""
        join = Pruning.met if self.by == "AND" else Pruning.joined
        return reduce(join, (part.pruning() for part in self.parts))


Condition: TypeAlias = Comparison | Joined


def parse(text: str, columns: pa.Schema) -> Condition:
    """Parse a condition.

    Args:
        text: as it stands after WHERE in SQL.
        columns: those that it may name.

    Raises:
        OptionError: it cannot be understood, or names an unknown column.
    """
    return _Parser(text, columns).parse()


class _Parser(Tokens):
    _SUBJECT = "`where`"
    _PATTERN = _TOKEN
    _KEYWORDS = _KEYWORDS

    def __init__(self, text: str, columns: pa.Schema) -> None:
        super().__init__(text)
        self._columns = columns

    def parse(self) -> Condition:
        condition = self._disjunction()
        if self._token.kind != END:
            raise self._unexpected("AND, OR or the end")
        return condition

    def _unreadable(self, start: int) -> str:
        first = self._text[start]
        if first == "'":
            return "text that does not end"
        if first == '"':
            return (
                "expected a column or a value, found a double quote; text stands in single quotes"
            )
        if _NUMBER.match(self._text, start):
            return "columns hold integers only; write a number without a fraction"
        if first == "`":
            return "expected a column or a value, found a backtick; columns stand without quotes"
        return f"{first!r} has no place in a condition"

    # Grammar, from what binds least to what binds most

    def _disjunction(self) -> Condition:
        parts = self._separated("OR", self._conjunction)
        return parts[0] if len(parts) == 1 else Joined("OR", tuple(parts))

    def _conjunction(self) -> Condition:
        parts = self._separated("AND", self._negation)
        return parts[0] if len(parts) == 1 else Joined("AND", tuple(parts))

    def _negation(self) -> Condition:
        opened = self._accept("NOT", "(")
        if opened is None:
            return self._comparison()
        self._deepen(opened)
        if opened.kind == "NOT":
            inner = self._negation().negated()
        else:
            inner = self._disjunction()
            self._expect(")", 'AND, OR or ")"')
        self._depth -= 1
        return inner

    def _comparison(self) -> Condition:
        column = self._expect("name", 'a column, NOT or "("')
        name = column.text
        require_column(name, self._columns.names, self._position(column.start))
        if self._accept("IS"):
            if self._accept("NOT"):
                self._expect("NULL", "NULL")
                return Comparison(name, "IS NOT NULL")
            self._expect("NULL", "NULL or NOT NULL")
            return Comparison(name, "IS NULL")
        if operator := self._accept(*_OPERATORS):
            return Comparison(name, _OPERATORS[operator.kind], (self._value(name),))
        is_negated = self._accept("NOT") is not None
        comparison = self._word_comparison(name)
        return comparison.negated() if is_negated else comparison

    def _word_comparison(self, name: str) -> Condition:
        """Return the comparison by one of the words that NOT may stand before."""
        if self._accept("BETWEEN"):
            low = Comparison(name, ">=", (self._value(name),))
            self._expect("AND", "AND between the two ends of BETWEEN")
            high = Comparison(name, "<=", (self._value(name),))
            return Joined("AND", (low, high))
        if self._accept("IN"):
            self._expect("(", '"(" and values after IN')
            values = self._separated(",", partial(self._value, name))
            self._expect(")", '"," or ")"')
            return Comparison(name, "IN", tuple(values))
        if operator := self._accept("LIKE"):
            kind = self._columns.field(name).type
            if not pa.types.is_string(kind):
                text = f"LIKE compares text, and {name} holds none"
                if pa.types.is_binary(kind):
                    text += "; a pyarrow expression in Python, or Spark's SQL, searches in bytes"
                raise self._refused(operator.start, text)
            pattern = self._expect("string", "a pattern in single quotes")
            return Comparison(name, "LIKE", (self._string(pattern),))
        raise self._unexpected("=, <>, <, <=, >, >=, IN, BETWEEN, LIKE or IS")

    # Values

    def _value(self, name: str) -> Any:  # noqa: ANN401 - of the column's type
        """Return the next value, as the column that it is compared with has it."""
        column_type = self._columns.field(name).type
        if pa.types.is_integer(column_type):
            return self._integer(self._expect("integer", f"an integer to compare {name} with"))
        if pa.types.is_timestamp(column_type):
            if millis := self._accept("integer"):
                return self._from_millis(millis)
            description = f"a time in quotes, or epoch ms, to compare {name} with"
            return self._time(self._expect("string", description))
        if pa.types.is_string(column_type) or pa.types.is_binary(column_type):
            description = f"text in single quotes to compare {name} with"
            text = self._string(self._expect("string", description))
            return text if pa.types.is_string(column_type) else text.encode()
        if pa.types.is_boolean(column_type):
            token = self._expect("name", f"TRUE or FALSE to compare {name} with")
            truth = _TRUTHS.get(token.text.upper())
            if truth is None:
                reason = f"expected TRUE or FALSE, found {shortened(token.text)}"
                raise self._refused(token.start, reason)
            return truth
        raise self._refused(
            self._token.start,
            (
                f"{name} cannot be compared; `filter=` asks for properties; a pyarrow "
                "expression can do more"
            ),
        )

    def _string(self, token: Token) -> str:
        try:
            token.text.encode()
        except UnicodeEncodeError as err:
            raise self._refused(token.start, "text that UTF-8 cannot hold") from err
        return self._unquoted(token)

    def _integer(self, token: Token) -> int:
        digits = token.text.lstrip("+-").lstrip("0")
        # Python refuses to convert very long texts, so these count as the first number too large.
        value = int(token.text) if len(digits) <= len(str(_INT64)) else _INT64
        if not -_INT64 <= value < _INT64:
            raise self._refused(token.start, f"{shortened(token.text)} is beyond 64 bits")
        return value

    def _from_millis(self, token: Token) -> datetime:
        millis = self._integer(token)
        if meant := misread(millis):
            raise self._refused(token.start, meant)
        try:
            return EPOCH + timedelta(milliseconds=millis)
        except OverflowError as err:
            reason = f"{shortened(token.text)} ms is beyond the calendar"
            raise self._refused(token.start, reason) from err

    def _time(self, token: Token) -> datetime:
        try:
            return parse_time(token.text[1:-1]).astimezone(UTC)
        except (ValueError, OverflowError) as err:
            reason = f"{shortened(token.text)} is not a time like '2026-11-20T08:00:00' or '-1h'"
            raise self._refused(token.start, reason) from err


@dataclass(frozen=True, slots=True)
class Where:
    """Which rows a read selects. Made by :func:`parse_where`.

    Attributes:
        columns: the columns that it compares.
        pruning: conditions that all selected rows meet; other rows may meet them too.
        condition: as it was parsed, or as pyarrow computes it.
    """

    columns: tuple[pa.Field, ...]
    pruning: Pruning
    condition: Condition | pc.Expression

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that meet the condition.

        Raises:
            OptionError: pyarrow cannot compute the expression for them.
        """
        if not batch.num_rows:
            return batch
        if isinstance(self.condition, pc.Expression):
            return _filtered(batch, self.condition)
        return batch.filter(self.condition.mask(batch))


def parse_where(where: str | pc.Expression | None, columns: pa.Schema) -> Where | None:
    """Check a condition; None and empty text ask for all rows.

    Args:
        where: as text, or as an expression of pyarrow.
        columns: those that it may name.

    Raises:
        OptionError: it cannot be understood, or names an unknown column.
    """
    if where is None or (isinstance(where, str) and not where.strip()):
        return None
    if isinstance(where, str):
        condition = parse(where, columns)
        return Where(_fields(condition.columns(), columns), condition.pruning(), condition)
    if not isinstance(where, pc.Expression):
        raise OptionError(
            f"`where`: text or a pyarrow.compute.Expression, got {type(where).__name__}"
        )
    if "FieldPath(" in str(where):
        text = " name columns, their numbers change with what a scan reads"
        raise OptionError(f"`where` {shortened(str(where))}:{text}")
    _filtered(pa.RecordBatch.from_pylist([], columns), where)
    rows = columns.empty_table()
    named = []  # the columns without which the expression cannot be computed
    for name in columns.names:
        try:
            rows.drop_columns(name).filter(where)
        except pa.ArrowInvalid:
            named.append(name)
    return Where(_fields(named, columns), NO_PRUNING, where)


def within_physical_offsets(
    where: Where | None, start: int | None, end: int | None
) -> Where | None:
    """Return a condition together with bounds on physical offsets; the end is excluded."""
    bounds: tuple[tuple[Kind, int | None], ...] = ((">=", start), ("<", end))
    parts = tuple(
        Comparison(_PHYSICAL_OFFSET.name, kind, (value,))
        for kind, value in bounds
        if value is not None
    )
    if not parts:
        return where
    within = Joined("AND", parts)
    if where is None:
        return Where((_PHYSICAL_OFFSET,), within.pruning(), within)
    columns = {field.name: field for field in (*where.columns, _PHYSICAL_OFFSET)}
    pruning = where.pruning.met(within.pruning())
    condition = where.condition
    if isinstance(condition, pc.Expression):
        for part in parts:
            condition &= _ORDERS[part.kind](pc.field(part.column), pc.scalar(part.values[0]))
    else:
        condition = Joined("AND", (condition, *parts))
    return Where((*columns.values(),), pruning, condition)


def _fields(names: Iterable[str], columns: pa.Schema) -> tuple[pa.Field, ...]:
    return tuple(columns.field(name) for name in sorted(names))


def _filtered(batch: pa.RecordBatch, expression: pc.Expression) -> pa.RecordBatch:
    """Return the rows that an expression is true for, in their order.

    Raises:
        OptionError: pyarrow cannot compute it.
    """
    starts = range(0, max(batch.num_rows, 1), _ROWS_AT_ONCE)
    parts = [pa.Table.from_batches([batch.slice(start, _ROWS_AT_ONCE)]) for start in starts]
    try:
        rows = pa.concat_tables([part.filter(expression) for part in parts]).combine_chunks()
    except (pa.ArrowException, TypeError) as err:
        raise OptionError(
            f"`where` {shortened(str(expression))}: {str(err).partition(chr(10))[0]}"
        ) from err
    return next(iter(rows.to_batches()), batch.slice(0, 0))
