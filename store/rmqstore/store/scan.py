"""Rows of a store that are read when they are asked for, and again each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from rmqstore.errors import RmqStoreError
from rmqstore.query.arrow_rows import ArrowRows
from rmqstore.read.scan.spec import first_rows, require_limit
from rmqstore.read.summary import scan_as_html
from rmqstore.storage.files.closing import Closing

if TYPE_CHECKING:
    import pandas as pd

_SHOWN_ROWS: Final = 5  # in a notebook

# Plans a reading, and returns the batches, which are read as they are taken.
Plan: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]


class _Readings:
    """Readings of the same rows, the first of which is planned at once.

    A reader holds on to this and not to its scan: the collector of cycles sees no Arrow reader.
    """

    def __init__(self, plan: Plan, require_open: Callable[[], None]) -> None:
        require_open()
        self._plan, self._require_open = plan, require_open
        self._planned: Iterator[pa.RecordBatch] | None = plan()

    def batches(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows, at most ``limit``; they are planned when the first batch is taken."""
        planned, self._planned = self._planned, None
        self._require_open()
        batches = self._plan() if planned is None else planned
        for batch in batches if limit is None else first_rows(batches, limit):
            yield batch
            self._require_open()


class Scan(ArrowRows, Closing):
    """Rows of a store, or of several, that are read again each time they are asked for.

    Nothing is kept: each iteration, conversion or query of an engine reads the store again, as it
    is by then. pandas, Polars, DuckDB and whatever else knows Arrow's C stream interface take a
    scan as it is. Everything that a ``pyarrow.RecordBatchReader`` has is here too, so a scan can be
    used like one; :meth:`reader` returns a real one. :func:`rmqstore.polars.scan` reads lazily.

    :meth:`read_next_batch` goes on where its last call ended, on a reading of its own.
    """

    def __init__(
        self,
        schema: pa.Schema,
        plan: Plan,
        require_open: Callable[[], None] = lambda: None,
        *,
        limit: int | None = None,
        count: Callable[[], int] | None = None,
        is_quick: bool = False,
    ) -> None:
        """Plan the first reading, which refuses what cannot be read.

        Args:
            schema: the columns.
            plan: plans a reading.
            require_open: refuses to read from a store that was closed.
            limit: give only this many rows, the first ones; reading stops then.
            count: returns the number of rows; by default they are read.
            is_quick: whether the first rows are read quickly, so that a notebook shows them.

        Raises:
            OptionError: the limit is not a positive integer; also as ``plan`` does.
        """
        if limit is not None:
            require_limit(limit)
        super().__init__(schema)
        self._limit, self._count = limit, count
        self._readings = _Readings(plan, require_open)
        self._require_open, self._is_quick = require_open, is_quick
        self._open: pa.RecordBatchReader | None = None  # for read_next_batch

    def _repr_html_(self) -> str:
        """Return the columns for a notebook, and the first rows if these are read quickly."""
        if not self._is_quick:
            return scan_as_html(self._schema, None, "head() reads the first rows")
        try:
            first = self.head(_SHOWN_ROWS)
        except (RmqStoreError, OSError) as err:
            return scan_as_html(self._schema, None, str(err))
        return scan_as_html(self._schema, first, "the first rows; count() tells how many there are")

    def __len__(self) -> int:
        """Refuse: a scan is not held in memory.

        Raises:
            TypeError: always.
        """
        raise TypeError("a scan has no length before it is read: count() returns its rows")

    def __bool__(self) -> bool:
        """Return True, also for a scan without rows."""
        return True

    def reader(self) -> pa.RecordBatchReader:
        """Return a new reader of all rows, which begins to read when it is asked for a batch."""
        return self._reader(None)

    def _reader(self, limit: int | None) -> pa.RecordBatchReader:
        limits = [number for number in (limit, self._limit) if number is not None]
        batches = self._readings.batches(min(limits, default=None))
        return pa.RecordBatchReader.from_batches(self._schema, batches)

    def count(self) -> int:
        """Return the number of rows.

        Where the ends of queues tell it, no message is read, and damage is not noticed.
        """
        self._require_open()
        return super().count() if self._count is None else self._count()

    def _first(self, n: int) -> pa.Table:
        return self._reader(n).read_all()

    def read_all(self) -> pa.Table:
        """Return all rows as a table, as :meth:`to_arrow` does."""
        return self.to_arrow()

    def read_pandas(self, **options: Any) -> pd.DataFrame:  # noqa: ANN401 - those of pyarrow
        """Return all rows as a pandas DataFrame, as :meth:`to_pandas` does."""
        return self.to_pandas(**options)

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
