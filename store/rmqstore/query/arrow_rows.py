"""Rows that are read when they are asked for, in the form in which they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rmqstore.errors import OptionError, UnsupportedFeatureError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

INSTALL_POLARS: Final = "Polars is not installed: pip install polars (extra polars)"
INSTALL_PANDAS: Final = "pandas is not installed: pip install pandas"


class ArrowRows(ABC):
    """Rows of one schema, which each iteration or conversion reads again.

    pandas, Polars, DuckDB and whatever else knows Arrow's C stream interface take them as they are.
    """

    def __init__(self, schema: pa.Schema) -> None:
        """Take the columns; nothing is read yet."""
        self._schema = schema

    def __repr__(self) -> str:
        """Return the columns."""
        return f"Scan of {', '.join(self._schema.names)}"

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    @abstractmethod
    def reader(self) -> pa.RecordBatchReader:
        """Return a new reader of all rows, which begins to read when it is asked for a batch."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.reader())

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
        taken: list[pa.RecordBatch] = []
        left = n
        for batch in self:
            taken.append(batch.slice(0, left))
            left -= batch.num_rows
            if left <= 0:
                break
        return pa.Table.from_batches(taken, self._schema)

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
