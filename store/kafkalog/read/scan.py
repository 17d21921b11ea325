"""Records that are read when they are asked for, and again each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pyarrow as pa

from rmqstore.query.arrow_rows import ArrowRows

# Begins to read, and returns the batches, which are read as they are taken.
Reading: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]


class Scan(ArrowRows):
    """Records of a partition, or of several, that are read again each time they are asked for.

    Nothing is kept. pandas, Polars, DuckDB and whatever else knows Arrow's C stream interface take
    a scan as it is.
    """

    def __init__(self, schema: pa.Schema, read: Reading) -> None:
        """Make a scan; nothing is read yet.

        Args:
            schema: the columns.
            read: begins a reading.
        """
        super().__init__(schema)
        self._read = read

    def reader(self) -> pa.RecordBatchReader:
        """Return a new reader of all records, which reads as it is asked for batches."""
        return pa.RecordBatchReader.from_batches(self._schema, self._read())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._read()
