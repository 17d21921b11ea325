"""What a scan returns and what it does about damage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from rmqstore.errors import OptionError
from rmqstore.format.schema import ALL_COLUMNS, CORRUPT_RECORD, MESSAGE, PENDING, select_columns
from rmqstore.query.sql92.filter import Filter

FAILFAST, DROPMALFORMED, PERMISSIVE = MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """What to make of records: the same for every record of a read."""

    schema: pa.Schema
    mode: str = FAILFAST
    corrupt_column: str = CORRUPT_RECORD
    check_crc: bool = True
    fail_on_data_loss: bool = True
    tags: frozenset[str] | None = None
    filter: Filter | None = None
    broker_name: str = ""
    inflate: bool = True  # compressed bodies as they were before; else as stored

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.mode not in MODES:
            raise OptionError(f"mode {self.mode!r}: one of {', '.join(MODES)}")
        unknown = (
            set(self.schema.names)
            - set(ALL_COLUMNS.names)
            - set(PENDING.names)
            - {self.corrupt_column}
        )
        if unknown:
            raise OptionError(f"columns: unknown {', '.join(sorted(unknown))}")


def scan_schema(
    columns: str | Iterable[str] | pa.Schema | None, *, include_pending: bool
) -> pa.Schema:
    """Return the columns of a scan: those that are named, or all of a message."""
    extra = {field.name: field for field in PENDING} if include_pending else {}
    if columns is None:
        return pa.schema([*MESSAGE, *extra.values()])
    if isinstance(columns, pa.Schema):
        return columns
    names = [name.strip() for name in (columns.split(",") if isinstance(columns, str) else columns)]
    own = {
        field.name: field for field in select_columns(name for name in names if name not in extra)
    }
    return pa.schema([extra.get(name) or own[name] for name in names])


def first_rows(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Yield the first rows of batches, and ask for no batch after them.

    Raises:
        OptionError: the limit is not a positive integer.
    """
    if limit < 1:
        raise OptionError(f"limit {limit}: it must be a positive integer")
    return _first_rows(batches, limit)


def _first_rows(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return
