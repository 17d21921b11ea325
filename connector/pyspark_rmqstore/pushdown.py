"""Filters that Spark pushes down: which parts of a store they prune, and which rows they keep. No session, no files.

Filters are recognised by the names of their classes, because PySpark 4.0 does not have these classes.

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
    """One accepted filter on a column. ``kind`` is the name of its class, ``values`` have the column's Arrow type."""

    column: str
    kind: str
    values: tuple[Any, ...]

    def keep(self, column: pa.Array) -> pa.Array:
        """Return which values meet the condition, boolean (n,); null does not."""
        if self.kind == "IsNotNull":
            return column.is_valid()
        if self.kind == "StringStartsWith":
            return pc.starts_with(column, self.values[0])
        if self.kind in _COMPARISONS:
            return _COMPARISONS[self.kind](column, pa.scalar(self.values[0], column.type))
        return pc.is_in(column, value_set=pa.array(self.values, column.type), skip_nulls=True)


@dataclass(frozen=True)
class PushedFilters:
    """The accepted filters of one read."""

    conditions: tuple[Condition, ...] = ()
    pruning: Pruning = NO_PRUNING

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that meet all conditions."""
        if not self.conditions or not batch.num_rows:
            return batch
        mask = None
        for condition in self.conditions:
            meets = condition.keep(batch.column(condition.column))
            mask = meets if mask is None else pc.and_(mask, meets)
        return batch.filter(mask)

    def keeps_broker(self, name: str) -> bool:
        """Tell whether rows of a broker can meet the conditions."""
        on_broker = [one for one in self.conditions if one.column == "brokerName" and one.values]
        return all(name in condition.values for condition in on_broker)


def push_filters(filters: Iterable[Filter], schema: pa.Schema) -> tuple[PushedFilters, list[Filter]]:
    """Return the accepted filters, and those that are left to Spark.

    Args:
        filters: filters that rows must all meet.
        schema: the Arrow schema of the read.
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
    if name == "topic":
        known.add("StringStartsWith")
    elif name in _NUMBERS:
        known |= set(_COMPARISONS)
    if kind not in known:
        return None
    values = tuple(one.value) if kind == "In" else (one.value,)  # type: ignore[attr-defined]
    try:
        values = tuple(pa.array([value for value in values if value is not None], schema.field(name).type).to_pylist())
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return None  # the type is not the column's, and only Spark knows what the filter means
    if kind != "In" and not values:
        return None
    return Condition(name, kind, values)


def _narrowed(pruning: Pruning, condition: Condition) -> Pruning:
    """Return a pruning that is narrowed by a further condition."""
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
    return _with(pruning, field, getattr(pruning, field).met(_range_of(kind, values)))


def _range_of(kind: str, values: tuple[Any, ...]) -> Within:
    """Return the range, ends included, outside which no number meets a filter; an empty one for ``IN ()``."""
    if kind.startswith("GreaterThan"):
        return Within(low=values[0])
    if kind.startswith("LessThan"):
        return Within(high=values[0])
    return Within(min(values), max(values)) if values else Within(1, 0)


def _with(pruning: Pruning, field: str, value: Any) -> Pruning:  # noqa: ANN401 - of the field
    return replace(pruning, **{field: value})


def _met(before: frozenset[Any] | None, values: Sequence[Any]) -> frozenset[Any]:
    return frozenset(values) if before is None else before & frozenset(values)


def _milliseconds(value: datetime) -> int:
    """Return a time in epoch ms, rounded down."""
    return (value - _EPOCH) // _MILLISECOND
