"""Filters that Spark pushes down to a read, as a condition on columns.

Filters are recognised by the names of their classes, which PySpark 4.0 does not have.

Source: DataSourceReader.pushFilters of PySpark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from rmqstore.query.conditions import NO_PRUNING, Pruning
from rmqstore.query.where import (
    PRUNED_COLUMNS,
    Comparison,
    Joined,
    Kind,
    Where,
    starting_with,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EQUAL: Final[dict[str, Kind]] = {"EqualTo": "IN", "EqualNullSafe": "IN", "In": "IN"}
_ORDERS: Final[dict[str, Kind]] = {
    "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip
# Columns that look different in a read that gives them other names: bytes for text.
_CHANGED: Final = frozenset({"keys", "properties"})


def push_filters(
    filters: Iterable[Filter], schema: pa.Schema, names: Mapping[str, str] | None = None
) -> tuple[Where | None, list[Filter]]:
    """Return the accepted filters as a condition, and those that are left to Spark.

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
    if not conditions:
        return None, rest
    pruning = reduce(Pruning.met, (condition.pruning() for condition in conditions), NO_PRUNING)
    return Where((), pruning, Joined("AND", tuple(conditions))), rest


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
    if kind == "StringStartsWith" and name == "topic":
        return starting_with(name, pushed.value)  # type: ignore[attr-defined]
    column = schema.field(name).type
    known = _EQUAL if pa.types.is_string(column) else _EQUAL | _ORDERS
    if kind not in known:
        return None
    value = pushed.value  # type: ignore[attr-defined]
    given = tuple(value) if kind == "In" else (value,)
    try:
        values = tuple(pa.array([item for item in given if item is not None], column).to_pylist())
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return None  # only Spark knows what they mean in a comparison with the column
    if kind != "In" and not values:
        return None
    return Comparison(name, known[kind], values)
