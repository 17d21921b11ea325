"""A condition on columns as users give it: text, or a pyarrow expression."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import OptionError, about
from rmqstore.query.conditions import Pruning
from rmqstore.query.tokens import shortened
from rmqstore.query.where.columns import require_columns
from rmqstore.query.where.comparison import Comparison, Kind
from rmqstore.query.where.condition import Condition, Joined, comparisons, mask_of, pruning_of
from rmqstore.query.where.expressions import Expressed, take_apart
from rmqstore.query.where.parser import parse

_PLACE: Final = pa.field("commitLogOffset", pa.int64())
_ROWS_AT_ONCE: Final = 1 << 15  # pyarrow shares out more among threads, and their order is lost


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
        return batch.filter(mask_of(self.condition, batch))


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
        names = {comparison.column for comparison in comparisons(condition)}
        return Where(_fields(names, columns), pruning_of(condition), condition)
    if not isinstance(where, pc.Expression):
        raise OptionError(
            about("where", f": text or a pyarrow.compute.Expression, got {type(where).__name__}")
        )
    expressed = take_apart(where) or _by_name(where, columns)
    require_columns(expressed.columns, columns.names, about("where", f" {shortened(str(where))}"))
    _filtered(pa.RecordBatch.from_pylist([], columns), where)
    return Where(_fields(expressed.columns, columns), expressed.pruning, where)


def within_places(where: Where | None, start: int | None, end: int | None) -> Where | None:
    """Return a condition together with bounds on physical offsets; the end is excluded."""
    bounds: tuple[tuple[Kind, int | None], ...] = ((">=", start), ("<", end))
    parts = tuple(
        Comparison(_PLACE.name, kind, (value,)) for kind, value in bounds if value is not None
    )
    if not parts:
        return where
    within = Joined("AND", parts)
    if where is None:
        return Where((_PLACE,), pruning_of(within), within)
    columns = {field.name: field for field in (*where.columns, _PLACE)}
    pruning = where.pruning.met(pruning_of(within))
    condition = where.condition
    if not isinstance(condition, pc.Expression):
        return Where((*columns.values(),), pruning, Joined("AND", (condition, *parts)))
    place = pc.field(_PLACE.name)
    if start is not None:
        condition &= place >= start
    if end is not None:
        condition &= place < end
    return Where((*columns.values(),), pruning, condition)


def _fields(names: Iterable[str], columns: pa.Schema) -> tuple[pa.Field, ...]:
    return tuple(columns.field(name) for name in sorted(names))


def _by_name(where: pc.Expression, columns: pa.Schema) -> Expressed:
    """Return what is known of an expression that cannot be taken apart: the columns in its text."""
    text = str(where)
    if "FieldPath(" in text:
        raise OptionError(
            about(
                "where",
                f" {shortened(text)}: name columns, their numbers change with what a scan reads",
            )
        )
    return Expressed(Pruning(), frozenset(name for name in columns.names if name in text))


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
            about("where", f" {shortened(str(expression))}: {str(err).partition(chr(10))[0]}")
        ) from err
    return next(iter(rows.to_batches()), batch.slice(0, 0))
