"""Filters that Spark pushes down, as conditions on columns. No session, no files.

Filters are recognised by the names of their classes, which PySpark 4.0 does not have.

Source: DataSourceReader.pushFilters of PySpark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rmqstore.query.conditions import NO_PRUNING, Pruning
from rmqstore.query.where.comparison import PRUNED_COLUMNS, Comparison, Kind, starting_with
from rmqstore.query.where.condition import Joined, mask_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EQUAL: Final[dict[str, Kind]] = {"EqualTo": "IN", "EqualNullSafe": "IN", "In": "IN"}
_ORDERS: Final[dict[str, Kind]] = {
    "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip
# Columns that look different in a read that gives them other names: bytes for text.
_CHANGED: Final = frozenset({"keys", "properties"})


@dataclass(frozen=True)
class PushedFilters:
    """The accepted filters of one read."""

    conditions: tuple[Comparison, ...] = ()
    pruning: Pruning = NO_PRUNING

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that meet all conditions."""
        if not self.conditions or not batch.num_rows:
            return batch
        return batch.filter(mask_of(Joined("AND", self.conditions), batch))


def push_filters(
    filters: Iterable[Filter], schema: pa.Schema, names: Mapping[str, str] | None = None
) -> tuple[PushedFilters, list[Filter]]:
    """Return the accepted filters, and those that are left to Spark.

    Args:
        filters: filters that rows must all meet.
        schema: the Arrow schema of the read.
        names: the column of the read for each column that a filter may name, if they differ.
    """
    conditions: list[Comparison] = []
    rest: list[Filter] = []
    for pushed in filters:
        condition = _condition(pushed, schema, names)
        if condition is None:
            rest.append(pushed)
        else:
            conditions.append(condition)
    pruning = reduce(Pruning.met, (condition.pruning() for condition in conditions), NO_PRUNING)
    return PushedFilters(tuple(conditions), pruning), rest


def _condition(
    pushed: Filter, schema: pa.Schema, names: Mapping[str, str] | None
) -> Comparison | None:
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1:
        return None
    name = attribute[0] if names is None else names.get(attribute[0], "")
    if name in _CHANGED and names is not None:
        return None
    if name not in schema.names or name not in PRUNED_COLUMNS:
        return None
    kind = type(pushed).__name__
    if kind == "IsNotNull":
        return Comparison(name, "IS NOT NULL")
    if kind == "StringStartsWith":
        return starting_with(name, pushed.value) if name == "topic" else None  # type: ignore[attr-defined]
    column = schema.field(name).type
    known = _EQUAL if pa.types.is_string(column) else _EQUAL | _ORDERS
    if kind not in known:
        return None
    value = pushed.value  # type: ignore[attr-defined]
    values = _values(tuple(value) if kind == "In" else (value,), column)
    if values is None or (kind != "In" and not values):
        return None
    return Comparison(name, known[kind], values)


def _values(values: tuple[Any, ...], kind: pa.DataType) -> tuple[Any, ...] | None:
    """Return values as a column has them, without nulls.

    Returns:
        None if only Spark knows what they mean in a comparison with the column.
    """
    try:
        return tuple(pa.array([value for value in values if value is not None], kind).to_pylist())
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return None
