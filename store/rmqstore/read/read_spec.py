"""The columns of a scan, and its handling of damage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rmqstore.format.schema import MESSAGE, PENDING, select_columns
from rmqstore.progress import Advance, ignore_progress
from rmqstore.query.damage import FAILFAST, DamageRules
from rmqstore.query.sql92_filter import Filter

if TYPE_CHECKING:
    from rmqstore.read.last_record import LastRecord


@dataclass(frozen=True, slots=True)
class ReadRules(DamageRules):
    """What a request says of how records are read.

    Attributes:
        schema: the columns that are returned.
        tags: the tags of which a message has one; None for all.
        filter: the SQL92 expression over properties; None for all.
        inflate: whether compressed bodies are inflated; if not, they are as stored.
    """

    schema: pa.Schema
    tags: frozenset[str] | None = None
    filter: Filter | None = None
    inflate: bool = True

    def rules(self) -> dict[str, Any]:
        """Return these fields alone, by name."""
        return {field.name: getattr(self, field.name) for field in fields(ReadRules)}


@dataclass(frozen=True, slots=True)
class ReadSpec(ReadRules):
    """How records are read: the same for every record of a read."""

    check_record_crc: bool = True  # whether CRCs of whole records are checked with the others
    broker_name: str = ""
    advance: Advance = ignore_progress  # called when records were read
    last_record: LastRecord | None = None  # the newest when the read was planned, if known
    is_cut: bool = False  # whether that record is gone, so that newer ones may be in older places

    @property
    def is_tolerant(self) -> bool:
        """Whether damage is passed over, perhaps with a row or a warning, and no error."""
        return self.mode != FAILFAST


def widened(schema: pa.Schema, columns: Iterable[pa.Field]) -> pa.Schema:
    """Return the columns of a schema, and after them those of others that it lacks."""
    missing = [column for column in columns if column.name not in schema.names]
    return pa.schema([*schema, *missing]) if missing else schema


def scan_schema(
    columns: str | Iterable[str] | pa.Schema | None, *, include_pending: bool
) -> pa.Schema:
    """Return the columns of a scan: those that are named, or all columns of a message."""
    extra = {field.name: field for field in PENDING} if include_pending else {}
    if columns is None:
        return pa.schema([*MESSAGE, *extra.values()])
    if isinstance(columns, pa.Schema):
        return columns
    if isinstance(columns, str):
        columns = columns.split(",")
    names = [name.strip() for name in columns]
    of_messages = select_columns(name for name in names if name not in extra)
    fields = extra | {field.name: field for field in of_messages}
    return pa.schema([fields[name] for name in names])
