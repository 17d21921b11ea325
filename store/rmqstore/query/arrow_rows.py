"""Rows that are read lazily, in the requested form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from rmqstore.errors import OptionError, RmqStoreError, UnsupportedFeatureError, install
from rmqstore.notebook import line, table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

INSTALL_POLARS: Final = f"Polars is not installed: {install('polars')}"
INSTALL_PANDAS: Final = "pandas is not installed: pip install pandas"

_SHOWN_ROWS: Final = 5  # in a notebook


def first_rows(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first rows of batches, at least one, and ask for no batch after them; None: all."""
    if limit is None:
        yield from batches
        return
    for batch in batches:
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return


def require_positive(argument: str, number: object, least: int = 1) -> None:
    """Refuse a number that is not a positive integer; None is none.

    Args:
        argument: the argument that has the number, which an error names.
        number: an integer of Python or numpy.
        least: the least number that is taken: 1, or 0 for what may be zero.

    Raises:
        OptionError: it is another one.
    """
    if number is None:
        return
    if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < least:
        expected = "a positive integer" if least else "an integer that is not negative"
        raise OptionError(f"`{argument}` {number!r}: it must be {expected}")


class ArrowRows(ABC):
    """Rows of one schema, which each iteration or conversion reads again.

    pandas, Polars, DuckDB and whatever else knows Arrow's C stream interface take them as they are.
    Everything that a ``pyarrow.RecordBatchReader`` has is here too, so they can be used like one;
    :meth:`reader` returns a real one.

    :meth:`read_next_batch` continues where its last call ended, on a reading of its own.
    """

    def __init__(
        self, schema: pa.Schema, *, limit: int | None = None, is_quick: bool = False
    ) -> None:
        """Take the columns; nothing is read yet.

        Args:
            schema: the columns.
            limit: give only this many rows, the first ones; reading stops then.
            is_quick: whether the first rows are read quickly, so that a notebook shows them.

        Raises:
            OptionError: the limit is not a positive integer.
        """
        require_positive("limit", limit)
        self._schema = schema
        self._limit = limit
        self._is_quick = is_quick
        self._open: pa.RecordBatchReader | None = None  # for read_next_batch

    def __repr__(self) -> str:
        """Return the columns."""
        return f"Scan of {', '.join(self._schema.names)}"

    def _repr_html_(self) -> str:
        """Return the columns for a notebook, and the first rows if these are read quickly."""
        rows: list[dict[str, Any]] = []
        note = "head() reads the first rows"
        if self._is_quick:
            try:
                rows = self.head(_SHOWN_ROWS).to_pylist()
                note = "the first rows; count() returns how many there are"
            except (RmqStoreError, OSError) as err:
                note = str(err)
        types = [str(field.type) for field in self._schema]
        values = (row.values() for row in rows)
        return line(f"Scan: {note}") + table(self._schema.names, values, types=types)

    def __len__(self) -> int:
        """Refuse: a scan is not held in memory.

        Raises:
            TypeError: always.
        """
        raise TypeError("a scan has no length before it is read: count() returns its rows")

    def __bool__(self) -> bool:
        """Return True, also for a scan without rows."""
        return True

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    @abstractmethod
    def reader(self) -> pa.RecordBatchReader:
        """Return a new reader of all rows, which begins to read when it is asked for a batch."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.reader())

    def __next__(self) -> pa.RecordBatch:
        """Return the batch after the one of the last call; see :meth:`read_next_batch`."""
        return self.read_next_batch()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a new reader as a capsule, for pandas, Polars, DuckDB and others."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """Return the number of rows, by reading all of them."""
        return sum(batch.num_rows for batch in self)

    def head(self, n: int = 5) -> pa.Table:
        """Return the first rows; reading stops after them.

        Raises:
            OptionError: ``n`` is negative.
        """
        if n < 0:
            raise OptionError(f"head({n}): must not be negative")
        if n == 0:
            return self._schema.empty_table()
        return pa.Table.from_batches(list(first_rows(self, n)), self._schema)

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the batch after the one of the last call.

        Raises:
            StopIteration: there are no more.
        """
        if self._open is None:
            self._open = self.reader()
        return self._open.read_next_batch()

    def close(self) -> None:
        """Let :meth:`read_next_batch` begin again; a scan holds nothing else open."""
        self._open = None

    def cast(self, target_schema: pa.Schema) -> pa.RecordBatchReader:
        """Return a new reader whose columns have other types."""
        return self.reader().cast(target_schema)

    def read_all(self) -> pa.Table:
        """Return all rows as a table, as :meth:`to_arrow` does."""
        return self.to_arrow()

    def to_arrow(self) -> pa.Table:
        """Return all rows as a table."""
        return self.reader().read_all()

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
        """Return all rows as a Polars DataFrame.

        Raises:
            UnsupportedFeatureError: Polars is not installed.
        """
        try:
            import polars as pl
        except ImportError as err:
            raise UnsupportedFeatureError(INSTALL_POLARS) from err
        return pl.DataFrame(self.to_arrow())
