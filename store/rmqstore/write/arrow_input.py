"""Rows from anything that implements Arrow's C stream interface, as record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa


class ArrowStream(Protocol):
    """Rows that are offered through Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def record_batches(rows: pa.RecordBatch | ArrowStream) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches, one at a time.

    Args:
        rows: a ``pyarrow.RecordBatch``, or an object with ``__arrow_c_stream__``, such as a
            ``pyarrow.Table``, a pandas or Polars ``DataFrame`` or a DuckDB relation.

    Raises:
        TypeError: ``rows`` is neither.
    """
    if isinstance(rows, pa.RecordBatch):
        yield rows
    elif hasattr(rows, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(rows)
    else:
        raise TypeError(
            "expected a pyarrow.RecordBatch, or an object with __arrow_c_stream__ "
            f"(a pyarrow Table, a pandas or Polars DataFrame), got {type(rows).__name__}; "
            "pyarrow.table({'topic': [...], 'body': [...]}) makes a table of lists"
        )
