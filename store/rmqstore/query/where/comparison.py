"""One comparison of a column with values: which rows meet it, and what it leaves of a read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.query.conditions import NO_PRUNING, Pruning, Within

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
# The columns that prune, each with its field of Pruning.
_TEXTS: Final = {
    "topic": "topics",
    "tags": "tags",
    "keys": "keys",
    "msgId": "msg_ids",
    "brokerName": "broker_names",
}
_NUMBERS: Final = {"queueOffset": "queue_offsets", "commitLogOffset": "places"}
PRUNED_COLUMNS: Final = frozenset({*_TEXTS, *_NUMBERS, "queueId", "storeTimestamp"})
_BEFORE_WILDCARDS = re.compile(r"(?:[^%_\\]|\\[%_\\])*")


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

    def negated(self) -> Comparison:
        """Return the comparison that is true exactly where this one is false.

        Null meets neither.
        """
        return replace(self, kind=_OPPOSITES[self.kind])

    def mask(self, column: pa.Array) -> pa.Array:
        """Return which values of the column meet the comparison, boolean (n,) without nulls."""
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
            return Pruning(topic_prefixes=(_prefix_of(self.values[0]),))
        if self.kind == "IN" and self.column in _TEXTS:
            return _pruning(_TEXTS[self.column], frozenset(self.values))
        if self.kind == "IN" and self.column == "queueId":
            return _pruning("queue_ids", frozenset(self.values))
        if self.column in _NUMBERS:
            return _pruning(_NUMBERS[self.column], self._within(self.values))
        if self.column == "storeTimestamp":
            return _pruning("store_timestamps", self._within([*map(_milliseconds, self.values)]))
        return NO_PRUNING

    def _within(self, values: Sequence[int]) -> Within:
        """Return the numbers that meet the comparison, the end of an open range included."""
        if self.kind == "IN":
            return Within(min(values), max(values)) if values else Within(1, 0)
        if self.kind in ("<", "<="):
            return Within(high=values[0])
        if self.kind in (">", ">="):
            return Within(low=values[0])
        return Within()


def _true(mask: pa.Array) -> pa.Array:
    """Return where a mask is true; it is null where the column is."""
    return pc.fill_null(mask, fill_value=False)


def starting_with(column: str, prefix: str) -> Comparison:
    """Return the comparison of texts that begin with a prefix."""
    return Comparison(column, "LIKE", (re.sub(r"([%_\\])", r"\\\1", prefix) + "%",))


def _prefix_of(pattern: str) -> str:
    """Return the text before the first wildcard of a pattern, with which every match begins."""
    match = _BEFORE_WILDCARDS.match(pattern)
    return re.sub(r"\\(.)", r"\1", match[0]) if match else ""


def _pruning(field: str, value: Any) -> Pruning:  # noqa: ANN401 - of the field
    return replace(NO_PRUNING, **{field: value})


def _milliseconds(value: datetime) -> int:
    """Return epoch ms, rounded down."""
    return (value - EPOCH) // _MILLISECOND
