"""Takes a pyarrow expression apart, as far as its parts are comparisons that leave something out.

pyarrow shows no parts of an expression. But it pickles one as an Arrow file: the schema's metadata
spell the tree, one entry a line (``call: 'equal'``, ``field_ref: 'topic'``, ``literal: '0'``,
``end: 'equal'``), and the columns of its one row are the literals and options that the entries
number. If another version spells it in another way, nothing is left out: the rows are always
chosen by pyarrow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.query.conditions import Pruning
from rmqstore.query.where.comparison import Comparison, Kind, starting_with
from rmqstore.query.where.condition import Condition, Joined, Unknown, negated, pruning_of

_METADATA: Final = "-- schema metadata --\n"
_ENTRY: Final = re.compile(r"(\w+): '(.*)'")
_UNKNOWN: Final = Unknown()
_JOINS: Final[dict[str, Literal["AND", "OR"]]] = {
    "and_kleene": "AND",
    "and": "AND",
    "or_kleene": "OR",
    "or": "OR",
}
_OPERATORS: Final[dict[str, Kind]] = {
    "equal": "IN",
    "not_equal": "NOT IN",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_MIRRORED: Final[dict[str, str]] = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}


class _Field(NamedTuple):
    name: str


class _Value(NamedTuple):
    """A literal, or the options of a call, as plain Python has it."""

    value: Any


_Part: TypeAlias = Joined | Comparison | Unknown | _Field | _Value


class Expressed(NamedTuple):
    """What is known of an expression: what it leaves of a read, and every column that it names."""

    pruning: Pruning
    columns: frozenset[str]


def take_apart(expression: pc.Expression) -> Expressed | None:
    """Return what is known of an expression, None if pyarrow spells it in an unknown way."""
    try:
        entries, values = _spelled(expression)
        columns = frozenset(text for kind, text in entries if kind == "field_ref")
        return Expressed(pruning_of(_tree(entries, values)), columns)
    except (pa.ArrowException, ValueError, TypeError, LookupError, RecursionError):
        return None


def _spelled(expression: pc.Expression) -> tuple[list[tuple[str, str]], list[pa.Scalar]]:
    """Return the entries that spell an expression, and the literals and options that they number.

    Raises:
        ValueError: a line is not an entry.
    """
    pickled = expression.__reduce__()[1][0]
    with pa.ipc.open_file(pickled) as file:
        row = file.get_batch(0)
    schema = row.schema.to_string(truncate_metadata=False, show_schema_metadata=True)
    metadata = schema.partition(_METADATA)[2]
    matches = [_ENTRY.fullmatch(line) for line in metadata.splitlines()]
    if not all(matches):
        raise ValueError(metadata)
    entries = [(match[1], match[2]) for match in matches if match]
    return entries, [column[0] for column in row.columns]


def _tree(entries: Sequence[tuple[str, str]], values: Sequence[pa.Scalar]) -> Condition:
    """Return the tree that entries spell.

    Raises:
        ValueError, LookupError: they do not spell one.
    """
    # A stack: the whole expression at the bottom, then the arguments of each call that is open.
    calls: list[list[_Part]] = [[]]
    for kind, text in entries:
        if kind == "call":
            calls.append([])
        elif kind == "end":
            arguments = calls.pop()
            calls[-1].append(_call(text, arguments))
        elif kind == "field_ref":
            calls[-1].append(_Field(text))
        elif kind in ("literal", "options"):
            calls[-1].append(_Value(_plain(values[int(text)])))
        else:
            raise ValueError(kind)
    ((whole,),) = calls
    return _as_condition(whole)


def _call(name: str, arguments: list[_Part]) -> _Part:
    """Return a call as a condition; an unknown one leaves nothing out."""
    if name in _JOINS:
        join = _JOINS[name]
        conditions = map(_as_condition, arguments)
        return Joined(join, tuple(part for inner in conditions for part in _parts(inner, join)))
    match name, arguments:
        case "invert", [part]:
            return negated(_as_condition(part))
        case _, [_Value() as value, _Field() as field]:
            return _compared(_MIRRORED.get(name, name), field.name, value.value)
        case _, [_Field() as field, _Value() as value]:
            return _compared(name, field.name, value.value)
    return _UNKNOWN


def _parts(condition: Condition, by: str) -> tuple[Condition, ...]:
    """Return the parts of a condition that is joined alike, or itself, so that chains are flat."""
    return condition.parts if isinstance(condition, Joined) and condition.by == by else (condition,)


def _compared(name: str, column: str, value: Any) -> Condition:  # noqa: ANN401 - what pyarrow holds
    """Return the comparison of a column with a literal, or with what stands in options."""
    if isinstance(value, dict):
        return _with_options(name, column, value)
    if name in _OPERATORS and _is_comparable(value):
        return Comparison(column, _OPERATORS[name], (value,))
    return _UNKNOWN


def _with_options(name: str, column: str, options: dict[str, Any]) -> Condition:
    values = options.get("value_set")
    pattern = options.get("pattern")
    # A null among the values would match nulls, and is not comparable.
    if name == "is_in" and isinstance(values, list) and all(map(_is_comparable, values)):
        return Comparison(column, "IN", tuple(values))
    if isinstance(pattern, str) and options.get("ignore_case") is False:
        if name == "starts_with":
            return starting_with(column, pattern)
        if name == "match_like":
            return Comparison(column, "LIKE", (pattern,))
    return _UNKNOWN


def _is_comparable(value: object) -> bool:
    """Tell whether a comparison with a value can prune: text, an integer, or a time with a zone."""
    if isinstance(value, datetime):
        return value.tzinfo is not None
    return isinstance(value, str | int) and not isinstance(value, bool)


def _as_condition(part: _Part) -> Condition:
    return _UNKNOWN if isinstance(part, _Field | _Value) else part


def _plain(scalar: pa.Scalar) -> Any:  # noqa: ANN401 - of any type
    """Return a scalar as Python has it; None for nanoseconds, which a datetime would cut off."""
    kind = scalar.type
    return None if pa.types.is_timestamp(kind) and kind.unit == "ns" else scalar.as_py()
