"""Parses the text of a condition on columns, by the grammar of a SQL WHERE.

It is not RocketMQ's SQL92, which compares properties and has habits of its own: here NOT binds less
than a comparison, and all of the text counts.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from rmqstore.errors import Argument, Text
from rmqstore.query.times import misread, parse_time
from rmqstore.query.tokens import END, Token, Tokens, shortened
from rmqstore.query.where.columns import require_column
from rmqstore.query.where.comparison import EPOCH, Comparison, Kind
from rmqstore.query.where.condition import Condition, Joined, negated

_MAX_DEPTH: Final = 64  # of parentheses and NOTs; each takes several frames of Python's stack
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
    _SUBJECT = Argument("where")
    _PATTERN = _TOKEN
    _KEYWORDS = _KEYWORDS

    def __init__(self, text: str, columns: pa.Schema) -> None:
        super().__init__(text)
        self._columns = columns
        self._depth = 0

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
        return f"{first!r} has no place in a condition"

    # Grammar, from what binds least to what binds most

    def _disjunction(self) -> Condition:
        parts = [self._conjunction()]
        while self._accept("OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Joined("OR", tuple(parts))

    def _conjunction(self) -> Condition:
        parts = [self._negation()]
        while self._accept("AND"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else Joined("AND", tuple(parts))

    def _negation(self) -> Condition:
        opened = self._accept("NOT", "(")
        if opened is None:
            return self._comparison()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._refused(opened.start, f"nested deeper than {_MAX_DEPTH} levels")
        if opened.kind == "NOT":
            inner = negated(self._negation())
        else:
            inner = self._disjunction()
            self._expect(")", 'AND, OR or ")"')
        self._depth -= 1
        return inner

    def _comparison(self) -> Condition:
        column = self._expect("name", 'a column, NOT or "("')
        name = column.text
        require_column(name, self._columns.names, self._place(column.start))
        if self._accept("IS"):
            return self._null_test(name)
        if operator := self._accept(*_OPERATORS):
            return Comparison(name, _OPERATORS[operator.kind], (self._value(name),))
        is_negated = self._accept("NOT") is not None
        comparison = self._word_comparison(name)
        return negated(comparison) if is_negated else comparison

    def _null_test(self, name: str) -> Condition:
        if self._accept("NOT"):
            self._expect("NULL", "NULL")
            return Comparison(name, "IS NOT NULL")
        self._expect("NULL", "NULL or NOT NULL")
        return Comparison(name, "IS NULL")

    def _word_comparison(self, name: str) -> Condition:
        """Return the comparison by one of the words that NOT may stand before."""
        if self._accept("BETWEEN"):
            low = Comparison(name, ">=", (self._value(name),))
            self._expect("AND", "AND between the two ends of BETWEEN")
            high = Comparison(name, "<=", (self._value(name),))
            return Joined("AND", (low, high))
        if self._accept("IN"):
            self._expect("(", '"(" and values after IN')
            values = [self._value(name)]
            while self._accept(","):
                values.append(self._value(name))
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
            return self._truth(self._expect("name", f"TRUE or FALSE to compare {name} with"))
        raise self._refused(
            self._token.start,
            Text(
                f"{name} cannot be compared; ",
                Argument("filter", ""),
                " asks for properties; a pyarrow expression can do more",
            ),
        )

    def _string(self, token: Token) -> str:
        try:
            token.text.encode()
        except UnicodeEncodeError as err:
            raise self._refused(token.start, "text that UTF-8 cannot hold") from err
        return token.text[1:-1].replace("''", "'")

    def _integer(self, token: Token) -> int:
        digits = token.text.lstrip("+-").lstrip("0")
        # Python refuses to convert very long texts, so these count as the first number too large.
        value = int(token.text) if len(digits) <= len(str(_INT64)) else _INT64
        if not -_INT64 <= value < _INT64:
            raise self._refused(token.start, f"{shortened(token.text)} is beyond 64 bits")
        return value

    def _truth(self, token: Token) -> bool:
        truth = _TRUTHS.get(token.text.upper())
        if truth is None:
            raise self._refused(
                token.start, f"expected TRUE or FALSE, found {shortened(token.text)}"
            )
        return truth

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
