"""The text of a condition on columns to its tree, by the grammar of a SQL WHERE.

It is not RocketMQ's SQL92, which asks properties and has habits of its own: here NOT binds less
than a comparison, and all of the text counts.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmqstore.errors import OptionError
from rmqstore.query.where.columns import require_column
from rmqstore.query.where.comparison import EPOCH, Comparison, Kind
from rmqstore.query.where.condition import Condition, Joined, negated

_MAX_DEPTH: Final = 64  # of parentheses and NOTs; each takes several frames of Python's stack
_LONGEST_SHOWN: Final = 200  # characters of a condition that an error repeats
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
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL"})


_COMPARED: Final[dict[str, Kind]] = {
    "=": "IN", "<>": "NOT IN", "!=": "NOT IN", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip
_TRUTHS: Final = {"TRUE": True, "FALSE": False}


class _Token(NamedTuple):
    kind: str  # integer, string, name, end; a keyword or symbol is its own kind
    text: str
    start: int  # its first character


def parse(text: str, columns: pa.Schema) -> Condition:
    """Parse a condition.

    Args:
        text: as it stands after WHERE in SQL.
        columns: those that it may name.

    Raises:
        OptionError: it cannot be understood, or names an unknown column.
    """
    return _Parser(text, columns).parse()


class _Parser:
    def __init__(self, text: str, columns: pa.Schema) -> None:
        self._text, self._columns = text, columns
        self._depth = 0
        self._token = self._read(0)

    def parse(self) -> Condition:
        condition = self._disjunction()
        if self._token.kind != "end":
            raise self._unexpected("AND, OR or the end")
        return condition

    def _read(self, start: int) -> _Token:
        """Return the first token from a character on."""
        while start < len(self._text):
            match = _TOKEN.match(self._text, start)
            if match is None:
                raise self._refused(start, _unreadable(self._text[start:]))
            if match.lastgroup != "blank":
                kind, found = str(match.lastgroup), match[0]
                is_word = kind == "symbol" or found.upper() in _KEYWORDS
                return _Token(found.upper() if is_word else kind, found, start)
            start = match.end()
        return _Token("end", "", start)

    def _take(self) -> _Token:
        taken = self._token
        self._token = self._read(taken.start + len(taken.text))
        return taken

    def _accept(self, *kinds: str) -> _Token | None:
        return self._take() if self._token.kind in kinds else None

    def _expect(self, kind: str, wanted: str) -> _Token:
        if self._token.kind != kind:
            raise self._unexpected(wanted)
        return self._take()

    def _unexpected(self, wanted: str) -> OptionError:
        found = "the end" if self._token.kind == "end" else _shortened(self._token.text)
        return self._refused(self._token.start, f"expected {wanted}, found {found}")

    def _refused(self, start: int, reason: str) -> OptionError:
        return OptionError(f"where {_shortened(self._text)!r}, character {start + 1}: {reason}")

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
        token = self._expect("name", 'a column, NOT or "("')
        name = token.text
        require_column(
            name,
            self._columns.names,
            f"where {_shortened(self._text)!r}, character {token.start + 1}",
        )
        if self._accept("IS"):
            is_negated = self._accept("NOT") is not None
            self._expect("NULL", "NULL" if is_negated else "NULL or NOT NULL")
            return Comparison(name, "IS NOT NULL" if is_negated else "IS NULL")
        if operator := self._accept(*_COMPARED):
            return Comparison(name, _COMPARED[operator.kind], (self._value(name),))
        is_negated = self._accept("NOT") is not None
        found = self._listed(name)
        return negated(found) if is_negated else found

    def _listed(self, name: str) -> Condition:
        """Return the comparison by one of the words that NOT may stand before."""
        if self._accept("BETWEEN"):
            low = self._value(name)
            self._expect("AND", "AND between the two ends of BETWEEN")
            return Joined(
                "AND",
                (Comparison(name, ">=", (low,)), Comparison(name, "<=", (self._value(name),))),
            )
        if self._accept("IN"):
            self._expect("(", '"(" and values after IN')
            values = [self._value(name)]
            while self._accept(","):
                values.append(self._value(name))
            self._expect(")", '"," or ")"')
            return Comparison(name, "IN", tuple(values))
        if operator := self._accept("LIKE"):
            if not pa.types.is_string(self._columns.field(name).type):
                raise self._refused(operator.start, f"LIKE compares text, and {name} holds none")
            return Comparison(
                name, "LIKE", (self._string(self._expect("string", "a pattern in single quotes")),)
            )
        raise self._unexpected("=, <>, <, <=, >, >=, IN, BETWEEN, LIKE or IS")

    # Values

    def _value(self, name: str) -> Any:  # noqa: ANN401 - of the column's type
        """Return the next value, as the column that it is compared with has it."""
        kind, token = self._columns.field(name).type, self._token
        if pa.types.is_integer(kind):
            return self._integer(self._expect("integer", f"an integer to compare {name} with"))
        if pa.types.is_timestamp(kind) and self._accept("integer"):
            return self._from_millis(token)
        if pa.types.is_timestamp(kind):
            return self._time(
                self._expect("string", f"a time in quotes, or epoch ms, to compare {name} with")
            )
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            text = self._string(
                self._expect("string", f"text in single quotes to compare {name} with")
            )
            return text if pa.types.is_string(kind) else text.encode()
        if pa.types.is_boolean(kind):
            truth = self._expect("name", f"TRUE or FALSE to compare {name} with")
            if truth.text.upper() in _TRUTHS:
                return _TRUTHS[truth.text.upper()]
            raise self._refused(
                truth.start, f"expected TRUE or FALSE, found {_shortened(truth.text)}"
            )
        raise self._refused(
            token.start,
            f"{name} cannot be compared; filter= asks for properties, where= takes a pyarrow expression too",
        )

    def _string(self, token: _Token) -> str:
        try:
            token.text.encode()
        except UnicodeEncodeError as err:
            raise self._refused(token.start, "text that UTF-8 cannot hold") from err
        return token.text[1:-1].replace("''", "'")

    def _integer(self, token: _Token) -> int:
        digits = token.text.lstrip("+-").lstrip("0")
        value = int(token.text) if len(digits) < len(str(_INT64)) + 1 else _INT64
        if not -_INT64 <= value < _INT64:
            raise self._refused(token.start, f"{_shortened(token.text)} is beyond 64 bits")
        return value

    def _from_millis(self, token: _Token) -> datetime:
        try:
            return EPOCH + timedelta(milliseconds=self._integer(token))
        except OverflowError as err:
            raise self._refused(
                token.start, f"{_shortened(token.text)} ms is beyond the calendar"
            ) from err

    def _time(self, token: _Token) -> datetime:
        try:
            found = datetime.fromisoformat(token.text[1:-1])
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError) as err:
            raise self._refused(
                token.start, f"{_shortened(token.text)} is not an ISO-8601 time"
            ) from err


def _unreadable(rest: str) -> str:
    """Return what is wrong with text that begins with no token."""
    if rest[0] == "'":
        return "text that does not end"
    if rest[0] == '"':
        return "expected a column or a value, found a double quote; text stands in single quotes"
    if re.match(r"[+-]?[0-9]", rest):
        return "columns hold integers only; write a number without a fraction"
    return f"{rest[0]!r} has no place in a condition"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
