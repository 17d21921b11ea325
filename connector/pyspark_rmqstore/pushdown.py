"""Filters that Spark pushes down: what they leave to be read, and which rows they keep. No session, no files.

Filters are told apart by the names of their classes, which PySpark 4.0 does not have.

Source: DataSourceReader.pushFilters of PySpark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.query.conditions import NO_PRUNING, Pruning, Within

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_COMPARISONS: Final = {
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}
_TEXTS: Final = {"topic": "topics", "tags": "tags", "keys": "keys", "msgId": "msg_ids", "brokerName": None}
_NUMBERS: Final = {
    "queueId": None,
    "queueOffset": "queue_offsets",
    "commitLogOffset": "places",
    "storeTimestamp": "store_timestamps",
}


@dataclass(frozen=True)
class Condition:
    """One filter that we answer for: of a column, by values in the column's Arrow type; ``kind`` names its class."""

    column: str
    kind: str
    values: tuple[Any, ...]

    def keep(self, column: pa.Array) -> pa.Array:
        """Return which values meet it, boolean (n,); null does not."""
        if self.kind == "IsNotNull":
            return column.is_valid()
        if self.kind == "StringStartsWith":
            return pc.starts_with(column, self.values[0])
        if self.kind in _COMPARISONS:
            return _COMPARISONS[self.kind](column, pa.scalar(self.values[0], column.type))
        return pc.is_in(column, value_set=pa.array(self.values, column.type), skip_nulls=True)


@dataclass(frozen=True)
class PushedFilters:
    """The filters of one read that we answer for."""

    conditions: tuple[Condition, ...] = ()
    pruning: Pruning = NO_PRUNING

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that meet all conditions."""
        if not self.conditions or not batch.num_rows:
            return batch
        mask = None
        for condition in self.conditions:
            kept = condition.keep(batch.column(condition.column))
            mask = kept if mask is None else pc.and_(mask, kept)
        return batch.filter(mask)

    def keeps_broker(self, name: str) -> bool:
        """Tell whether rows of a broker can be asked for."""
        asked = [condition for condition in self.conditions if condition.column == "brokerName" and condition.values]
        return all(name in condition.values for condition in asked)


def push_filters(filters: Iterable[Filter], schema: pa.Schema) -> tuple[PushedFilters, list[Filter]]:
    """Return what can be made of filters, and those that are left to Spark.

    Args:
        filters: all of which rows must meet.
        schema: of the read.
    """
    conditions, left, pruning = [], [], Pruning()
    for one in filters:
        condition = _condition(one, schema)
        if condition is None:
            left.append(one)
        else:
            conditions.append(condition)
            pruning = _narrowed(pruning, condition)
    return PushedFilters(tuple(conditions), pruning), left


def _condition(one: Filter, schema: pa.Schema) -> Condition | None:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in schema.names:
        return None
    name, kind = attribute[0], type(one).__name__
    if name not in _TEXTS and name not in _NUMBERS:
        return None
    if kind == "IsNotNull":
        return Condition(name, kind, ())
    known = {"EqualTo", "EqualNullSafe", "In"}
    known |= {"StringStartsWith"} if name == "topic" else set(_COMPARISONS) if name in _NUMBERS else set()
    if kind not in known:
        return None
    values = tuple(one.value) if kind == "In" else (one.value,)  # type: ignore[attr-defined]
    try:
        values = tuple(pa.array([value for value in values if value is not None], schema.field(name).type).to_pylist())
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return None  # of a type that is not the column's: Spark knows what it means
    if kind != "In" and not values:
        return None
    return Condition(name, kind, values)


def _narrowed(pruning: Pruning, condition: Condition) -> Pruning:
    """Return what a condition leaves of a read."""
    name, kind, values = condition.column, condition.kind, condition.values
    if kind == "IsNotNull":
        return pruning
    if kind == "StringStartsWith":
        return replace(pruning, topic_prefixes=(*pruning.topic_prefixes, values[0]))
    if name in _TEXTS:
        field = _TEXTS[name]
        if field is None:
            return pruning
        return _with(pruning, field, _met(getattr(pruning, field), values))
    if name == "storeTimestamp":
        values = tuple(_milliseconds(value) for value in values)
    if name == "queueId" and kind not in _COMPARISONS:
        return replace(pruning, queue_ids=_met(pruning.queue_ids, values))
    field = _NUMBERS[name]
    if field is None:
        return pruning
    asked = {
        "GreaterThan": lambda: Within(low=values[0]),
        "GreaterThanOrEqual": lambda: Within(low=values[0]),
        "LessThan": lambda: Within(high=values[0]),
        "LessThanOrEqual": lambda: Within(high=values[0]),
    }.get(kind, lambda: Within(min(values), max(values)) if values else Within(1, 0))()
    return _with(pruning, field, getattr(pruning, field).met(asked))


def _with(pruning: Pruning, field: str, value: Any) -> Pruning:  # noqa: ANN401 - of the field
    return replace(pruning, **{field: value})


def _met(before: frozenset[Any] | None, values: Sequence[Any]) -> frozenset[Any]:
    return frozenset(values) if before is None else before & frozenset(values)


def _milliseconds(value: datetime) -> int:
    """Return epoch ms, rounded down."""
    return (value - _EPOCH) // _MILLISECOND
