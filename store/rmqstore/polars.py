"""``rmqstore.polars.scan``: the messages of a store as a LazyFrame of Polars.

Polars lets the scan know which columns, rows and how many of them a query needs. Comparisons of
columns become a condition of the scan, which leaves queues and parts of the log unread. Polars then
filters what was read by all of its predicate, so a part that is not understood here costs time
only. The parts of a predicate are its inputs (``meta.pop``). Its operator is found by trying: the
one that makes an equal expression of the same inputs (``meta.eq``).
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import and_, eq, ge, gt, le, lt, or_
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa

from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.arrow_rows import INSTALL_POLARS
from rmqstore.query.where import literally, parse_where
from rmqstore.read.request import known_columns
from rmqstore.read.store_ref import AnyPath
from rmqstore.store.opening import OpenArguments, Several, open_for

if TYPE_CHECKING:
    import polars as pl

_SECONDS_TO_END: Final = 5.0  # for a batch that is being read as Python ends
_SECONDS_TO_LEAVE: Final = 0.05  # for the thread that read it to let go of the interpreter
_BY_POLARS: Final = {"where": "filter(…)", "limit": "head(…)", "verbatim": "MessageStore.scan"}
_OPERATORS: Final = {"=": eq, "<": lt, "<=": le, ">": gt, ">=": ge}
_Closed: TypeAlias = Literal["both", "left", "right", "none"]
_CLOSED: Final[tuple[tuple[_Closed, str, str], ...]] = (
    ("both", ">=", "<="), ("left", ">=", "<"), ("right", ">", "<="), ("none", ">", "<"),
)  # fmt: skip


class _Work:
    """The reading under way, which ends before Python does.

    Polars reads on for a moment after it has all rows that a query asks for, in a thread of its
    own. If Python ended meanwhile, that thread would abort the process.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_reading = 0
        self._is_ending = self._has_begun = False
        atexit.register(self._end)

    def steps(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, until Python ends."""
        rows = iter(batches)
        while True:
            with self._changed:
                if self._is_ending:
                    return
                self._n_reading += 1
                self._has_begun = True
            try:
                batch = next(rows, None)
            finally:
                with self._changed:
                    self._n_reading -= 1
                    self._changed.notify_all()
            if batch is None:
                return
            yield batch

    def _end(self) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.wait_for(lambda: not self._n_reading, _SECONDS_TO_END)
        if self._has_begun:
            time.sleep(_SECONDS_TO_LEAVE)


_WORK: Final = _Work()


def scan(
    path: AnyPath | Several | None = None,
    *,
    columns: str | list[str] | pa.Schema | None = None,
    **options: Any,  # noqa: ANN401 - each has a type of its own there
) -> pl.LazyFrame:
    """Return the messages of a store as a LazyFrame, which reads the store when it is collected.

    Args:
        path: the store, or several, as :func:`rmqstore.open` takes them; None with ``conf``.
        columns: columns to offer; all by default. A query reads those that it needs.
        options: other arguments of :func:`rmqstore.open`, and those of ``MessageStore.scan`` except
            for ``where`` and ``limit``, in place of which the frame has ``filter`` and ``head``.

    Raises:
        NotAStoreError: the path is not a store.
        OptionError: as ``MessageStore.scan`` does.
        UnsupportedFeatureError: Polars is not installed, or the store cannot be read.
    """
    try:
        import polars as pl
        from polars.io.plugins import register_io_source
    except ImportError as err:
        raise UnsupportedFeatureError(INSTALL_POLARS) from err
    for name, instead in _BY_POLARS.items():
        if name in options:
            raise OptionError(f"{name}: use {instead} instead")
    known_to_open = OpenArguments.__annotations__
    of_open = {name: value for name, value in options.items() if name in known_to_open}
    of_scan = {name: value for name, value in options.items() if name not in of_open}
    with open_for(path, **of_open) as store:
        schema = store.scan(columns=columns, **of_scan).schema
    known = known_columns(schema, include_pending=bool(of_scan.get("include_pending")))

    def read(
        names: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        selected = schema.names if names is None else names
        needed = {*selected, *(() if predicate is None else predicate.meta.root_names())}
        chosen = pa.schema([field for field in schema if field.name in needed])
        # Polars wants the first rows of all, of which those are left that meet the predicate. So
        # with a number of rows no condition may leave any out before they are counted.
        where = None if predicate is None or n_rows is not None else condition_of(predicate, known)
        left = n_rows
        if left == 0:
            return
        with open_for(path, **of_open) as opened:
            for batch in _WORK.steps(opened.scan(columns=chosen, where=where, **of_scan)):
                frame = pl.DataFrame(batch)
                if left is not None:
                    frame = frame.head(left)
                    left -= frame.height
                if predicate is not None:
                    frame = frame.filter(predicate)
                yield frame.select(selected)
                if left == 0:
                    return

    return register_io_source(read, schema=pl.DataFrame(schema.empty_table()).schema)


def condition_of(predicate: pl.Expr, columns: pa.Schema) -> str | None:
    """Return a condition that a predicate implies; None if none of its parts is understood.

    Args:
        predicate: as Polars hands it to a source.
        columns: those that the condition may name.
    """
    import polars as pl

    try:
        text = _weakened(predicate, columns)
        parse_where(text, columns)
    except (OptionError, pl.exceptions.PolarsError, OverflowError, ValueError, RecursionError):
        return None
    return text


def _weakened(predicate: pl.Expr, columns: pa.Schema) -> str | None:
    """Return the text of a condition that holds wherever a predicate does, None for no text."""
    if len(parts := _operands(predicate, and_)) > 1:
        known = [text for part in parts if (text := _weakened(part, columns))]
        return f"({' AND '.join(known)})" if known else None
    if len(parts := _operands(predicate, or_)) > 1:
        known = [text for part in parts if (text := _weakened(part, columns))]
        return f"({' OR '.join(known)})" if len(known) == len(parts) else None
    return _compared(predicate, columns)


def _operands(predicate: pl.Expr, join: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> list[pl.Expr]:
    """Return what an operator joins, however many times; a predicate by itself if it does not."""
    waiting, operands = [predicate], []
    while waiting:
        part = waiting.pop()
        inputs = part.meta.pop()  # from the last one to the first
        if len(inputs) == 2 and join(inputs[1], inputs[0]).meta.eq(part):
            waiting += inputs
        else:
            operands.append(part)
    return operands


def _compared(predicate: pl.Expr, columns: pa.Schema) -> str | None:
    """Return the text of a comparison of a column with literals, None for another predicate."""
    *literals, column = predicate.meta.pop() or [predicate]  # from the last one to the first
    name = column.meta.output_name(raise_if_undetermined=False)
    if not column.meta.is_column() or name not in columns.names:
        return None
    values = [_values(literal, columns.field(name).type) for literal in literals]
    match literals, values:
        case [literal], [[first, *_] as several]:
            if column.is_in(literal).meta.eq(predicate):
                return f"{name} IN ({', '.join(map(_sql_literal, several))})"
            if column.str.starts_with(literal).meta.eq(predicate):
                return f"{name} LIKE {_sql_literal(literally(first) + '%')}"
            for symbol, compare in _OPERATORS.items():
                if compare(column, literal).meta.eq(predicate):
                    return f"{name} {symbol} {_sql_literal(first)}"
        case [high, low], [[highest], [lowest]]:
            for closed, above, below in _CLOSED:
                if column.is_between(low, high, closed=closed).meta.eq(predicate):
                    lower, upper = _sql_literal(lowest), _sql_literal(highest)
                    return f"({name} {above} {lower} AND {name} {below} {upper})"
    return None


def _values(literal: pl.Expr, kind: pa.DataType) -> list[Any]:
    """Return the values of a literal that a column of texts, integers or times is compared with.

    There are none if the types differ or one is null, which is compared by rules of its own.
    """
    import polars as pl

    if not literal.meta.is_literal():
        return []
    series = pl.select(literal).to_series()
    if isinstance(series.dtype, pl.List):
        series = series.explode()
    dtype = series.dtype
    is_alike = (
        (dtype == pl.String and pa.types.is_string(kind))
        or (dtype.is_integer() and pa.types.is_integer(kind))
        or (
            isinstance(dtype, pl.Datetime)
            and dtype.time_zone is not None
            and dtype.time_unit != "ns"
            and pa.types.is_timestamp(kind)
        )
    )
    return series.to_list() if is_alike and not series.null_count() else []


def _sql_literal(value: str | int | datetime) -> str:
    """Return a value as it stands in the text of a condition."""
    if isinstance(value, int):
        return str(value)
    text = value if isinstance(value, str) else value.isoformat()
    return "'" + text.replace("'", "''") + "'"
