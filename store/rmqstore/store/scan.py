"""Rows of a store that are read when they are asked for, and again each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.read.scan.spec import first_rows, require_limit
from rmqstore.storage.files.closing import Closing

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

INSTALL_POLARS = "Polars is not installed: pip install polars"
INSTALL_PANDAS = "pandas is not installed: pip install pandas"

# Plans a reading, and returns the batches, which are read as they are taken.
Plan: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]


class _Readings:
    """Readings of the same rows, the first of which is planned at once.

    A reader holds on to this and not to its scan: the collector of cycles sees no Arrow reader.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._planned: Iterator[pa.RecordBatch] | None = plan()

    def batches(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows, at most ``limit``; they are planned when the first batch is taken."""
        planned, self._planned = self._planned, None
        batches = self._plan() if planned is None else planned
        yield from batches if limit is None else first_rows(batches, limit)


class Scan(Closing):
    """Rows of a store, or of several, that are read again each time they are asked for.

    Nothing is kept: each iteration, conversion or query of an engine reads the store again, as it
    is by then. pandas, Polars, DuckDB and whatever else knows Arrow's C stream interface take a
    scan as it is. Everything that a ``pyarrow.RecordBatchReader`` has is here too, so a scan can be
    used like one; :meth:`reader` returns a real one.

    :meth:`read_next_batch` goes on where its last call ended, on a reading of its own.
    """

    def __init__(
        self,
        schema: pa.Schema,
        plan: Plan,
        *,
        limit: int | None = None,
        count: Callable[[], int] | None = None,
    ) -> None:
        """Plan the first reading, which refuses what cannot be read.

        Args:
            schema: the columns.
            plan: plans a reading.
            limit: give only this many rows, the first ones; reading stops then.
            count: returns the number of rows; by default they are read.

        Raises:
            OptionError: the limit is not a positive integer; also as ``plan`` does.
        """
        if limit is not None:
            require_limit(limit)
        self._schema, self._limit, self._count = schema, limit, count
        self._readings = _Readings(plan)
        self._open: pa.RecordBatchReader | None = None  # for read_next_batch

    def __repr__(self) -> str:
        """Return the columns."""
        return f"Scan of {', '.join(self._schema.names)}"

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def reader(self) -> pa.RecordBatchReader:
        """Return a new reader of all rows, which begins to read when it is asked for a batch."""
        return self._reader(None)

    def _reader(self, limit: int | None) -> pa.RecordBatchReader:
        limits = [number for number in (limit, self._limit) if number is not None]
        batches = self._readings.batches(min(limits, default=None))
        return pa.RecordBatchReader.from_batches(self._schema, batches)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.reader())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a new reader as a capsule, for pandas, Polars, DuckDB and others."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """Return the number of rows.

        Where the ends of queues tell it, no message is read, and damage is not noticed.
        """
        if self._count is not None:
            return self._count()
        return sum(batch.num_rows for batch in self)

    def head(self, n: int = 5) -> pa.Table:
        """Return the first rows; reading stops after them.

        Raises:
            OptionError: ``n`` is negative.
        """
        if n < 0:
            raise OptionError(f"head({n}): must not be negative")
        return self._reader(n).read_all() if n else self._schema.empty_table()

    def to_arrow(self) -> pa.Table:
        """Return all rows as a table."""
        return self.reader().read_all()

    def read_all(self) -> pa.Table:
        """Return all rows as a table, as :meth:`to_arrow` does."""
        return self.to_arrow()

    def to_pandas(self, **options: Any) -> pd.DataFrame:  # noqa: ANN401 - those of pyarrow
        """Return all rows as a pandas DataFrame.

        Args:
            options: those of ``pyarrow.Table.to_pandas``.

        Raises:
            UnsupportedFeatureError: pandas is not installed.
        """
        try:
            import pandas as pd  # noqa: F401 - pyarrow needs it
        except ImportError as err:
            raise UnsupportedFeatureError(INSTALL_PANDAS) from err
        return self.to_arrow().to_pandas(**options)

    def read_pandas(self, **options: Any) -> pd.DataFrame:  # noqa: ANN401 - those of pyarrow
        """Return all rows as a pandas DataFrame, as :meth:`to_pandas` does."""
        return self.to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a Polars DataFrame; :func:`rmqstore.polars.scan` reads lazily.

        Raises:
            UnsupportedFeatureError: Polars is not installed.
        """
        try:
            import polars as pl
        except ImportError as err:
            raise UnsupportedFeatureError(INSTALL_POLARS) from err
        return pl.DataFrame(self.to_arrow())

    def cast(self, target_schema: pa.Schema) -> pa.RecordBatchReader:
        """Return a new reader whose columns have other types."""
        return self.reader().cast(target_schema)

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the batch after the one of the last call.

        Raises:
            StopIteration: there are no more.
        """
        return self._opened().read_next_batch()

    def __next__(self) -> pa.RecordBatch:
        """Return the batch after the one of the last call; see :meth:`read_next_batch`."""
        return self.read_next_batch()

    def _opened(self) -> pa.RecordBatchReader:
        if self._open is None:
            self._open = self.reader()
        return self._open

    def close(self) -> None:
        """Let :meth:`read_next_batch` begin again; a scan holds nothing else open."""
        self._open = None
