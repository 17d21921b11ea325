"""``rmqstore.polars.scan``: the messages of a store as a LazyFrame of Polars.

Polars lets the scan know which columns, rows and how many of them a query needs. Comparisons of
columns become a condition of the scan, which leaves queues and parts of the log unread. Polars then
filters what was read by all of its predicate, so a part that is not understood here costs time
only.
"""

from __future__ import annotations

import atexit
import json
import threading
import time
from collections.abc import Iterable, Iterator
from functools import reduce
from inspect import signature
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.arguments import FolderArguments
from rmqstore.query.arrow_rows import INSTALL_POLARS
from rmqstore.read.request import known_columns
from rmqstore.store.opening import AnyPath, Several, open_for

if TYPE_CHECKING:
    import polars as pl

_SECONDS_TO_END: Final = 5.0  # for a batch that is being read as Python ends
_SECONDS_TO_LEAVE: Final = 0.05  # for the thread that read it to let go of the interpreter
_BY_POLARS: Final = {"where": "filter(…)", "limit": "head(…)", "verbatim": "MessageStore.scan"}
_COMPARISONS: Final = {
    "Eq": "__eq__", "NotEq": "__ne__", "Lt": "__lt__", "LtEq": "__le__", "Gt": "__gt__",
    "GtEq": "__ge__",
}  # fmt: skip
_MIRRORED: Final = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_BETWEEN: Final = {
    "Both": ("__ge__", "__le__"), "Left": ("__ge__", "__lt__"), "Right": ("__gt__", "__le__"),
    "None": ("__gt__", "__lt__"),
}  # fmt: skip


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
    names_of_open = {*signature(open_for).parameters, *FolderArguments.__annotations__}
    of_open = {name: value for name, value in options.items() if name in names_of_open}
    of_scan = {name: value for name, value in options.items() if name not in of_open}
    with open_for(path, **of_open) as store:
        schema = store.scan(columns=columns, **of_scan).schema
    known = known_columns(schema, include_pending=bool(of_scan.get("include_pending")))

    def read(
        names: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted = schema.names if names is None else names
        needed = {*wanted, *(() if predicate is None else predicate.meta.root_names())}
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
                yield frame.select(wanted)
                if left == 0:
                    return

    return register_io_source(read, schema=pl.DataFrame(schema.empty_table()).schema)


def condition_of(predicate: pl.Expr, columns: pa.Schema) -> pc.Expression | None:
    """Return a condition that all rows meet which meet a predicate, None if none is understood.

    Polars shows the parts of an expression by writing it as JSON, whose form may change with its
    version. What is not spelled as expected leaves nothing out.

    Args:
        predicate: as Polars hands it to a source.
        columns: those that the condition may name.
    """
    import polars as pl

    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
        return _Translation(columns).weakened(tree)
    except (pl.exceptions.PolarsError, ValueError, TypeError, RecursionError):
        return None


class _Translation:
    """Turns what Polars writes into a pyarrow expression, as far as it is understood."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns

    def weakened(self, node: Any) -> pc.Expression | None:  # noqa: ANN401 - JSON
        """Return a condition that holds wherever a node does, None for no condition."""
        if parts := _joined(node, "And"):
            known = [part for part in map(self.weakened, parts) if part is not None]
            return reduce(and_, known) if known else None
        if parts := _joined(node, "Or"):
            each = [self.weakened(part) for part in parts]
            known = [part for part in each if part is not None]
            return reduce(or_, known) if len(known) == len(each) else None
        return self._exact(node)

    def _exact(self, node: Any) -> pc.Expression | None:  # noqa: ANN401 - JSON
        """Return the condition that holds exactly where a node does, None if it is not known."""
        match node:
            case {
                "BinaryExpr": {
                    "left": left,
                    "op": "And" | "LogicalAnd" | "Or" | "LogicalOr" as name,
                    "right": right,
                }
            }:
                first, second = self._exact(left), self._exact(right)
                if first is None or second is None:
                    return None
                return first & second if name.endswith("And") else first | second
            case {
                "BinaryExpr": {
                    "left": {"Column": str(column)},
                    "op": str(name),
                    "right": {"Literal": _} as literal,
                }
            }:
                return self._compared(column, name, literal)
            case {
                "BinaryExpr": {
                    "left": {"Literal": _} as literal,
                    "op": str(name),
                    "right": {"Column": str(column)},
                }
            }:
                return self._compared(column, _MIRRORED.get(name, name), literal)
            case {"Function": {"input": [{"Column": str(name)}, *arguments], "function": function}}:
                return self._called(name, function, arguments)
            case {"Function": {"input": [inner], "function": {"Boolean": "Not"}}}:
                condition = self._exact(inner)
                return None if condition is None else ~condition
        return None

    def _compared(self, column: str, name: str, literal: Any) -> pc.Expression | None:  # noqa: ANN401
        values = self._values(column, literal)
        if name not in _COMPARISONS or values is None or len(values) != 1:
            return None
        return getattr(pc.field(column), _COMPARISONS[name])(self._scalar(column, values[0]))

    def _called(self, column: str, function: Any, arguments: list[Any]) -> pc.Expression | None:  # noqa: ANN401
        values = [self._values(column, argument) for argument in arguments]
        if None in values:
            return None
        match function, values:
            case {"Boolean": "IsNull"}, []:
                return pc.field(column).is_null()
            case {"Boolean": "IsNotNull"}, []:
                return pc.field(column).is_valid()
            case {"Boolean": {"IsIn": {"nulls_equal": False}}}, [list(several)]:
                kind = self._columns.field(column).type
                return pc.field(column).isin(pa.array(several, kind))
            case {"Boolean": {"IsBetween": {"closed": str(closed)}}}, [[low], [high]]:
                lower, upper = _BETWEEN[closed]
                field = pc.field(column)
                from_low = getattr(field, lower)(self._scalar(column, low))
                return from_low & getattr(field, upper)(self._scalar(column, high))
            case {"StringExpr": "StartsWith"}, [[str(prefix)]]:
                return pc.starts_with(pc.field(column), prefix)
        return None

    def _scalar(self, column: str, value: Any) -> pa.Scalar:  # noqa: ANN401 - of the column's type
        """Return a value as pyarrow compares it with a column.

        Raises:
            ValueError: the column cannot hold it.
        """
        return pa.scalar(value, self._columns.field(column).type)

    def _values(self, column: str, literal: Any) -> list[Any] | None:  # noqa: ANN401 - JSON
        """Return the values of a literal, None unless a column of texts, integers or times has any.

        A null is compared by rules of its own, and a time without a zone is not one of UTC.
        """
        import polars as pl

        if column not in self._columns.names or not isinstance(literal, dict):
            return None
        if "Literal" not in literal:
            return None
        text = json.dumps(literal).encode()
        series = pl.select(pl.Expr.deserialize(text, format="json")).to_series()
        if isinstance(series.dtype, pl.List):
            series = series.explode()
        dtype, kind = series.dtype, self._columns.field(column).type
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
        return series.to_list() if is_alike and not series.null_count() else None


def _joined(node: Any, by: str) -> list[Any]:  # noqa: ANN401 - JSON
    """Return both sides of an And or Or, [] for another node."""
    match node:
        case {"BinaryExpr": {"left": left, "op": str(name), "right": right}}:
            return [left, right] if name in (by, f"Logical{by}") else []
    return []
