"""A scan of log directories, and what it is asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import pyarrow as pa

from kafkalog.errors import CorruptBatchError
from kafkalog.format.layout import RECORD
from rmqstore.errors import OptionError
from rmqstore.progress import Tally
from rmqstore.query.arrow_rows import ArrowRows, first_rows
from rmqstore.query.damage import FAILFAST, PERMISSIVE, DamageRules
from rmqstore.storage.files.lifetime import Opened

logger = logging.getLogger(__name__)

IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]

READ_UNCOMMITTED, READ_COMMITTED = ISOLATION_LEVELS = ("read_uncommitted", "read_committed")

# Begins to read, and returns the batches, which are read as they are taken.
Reading: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class ScanSpec(DamageRules):
    """How records are read: the same for every partition of a scan.

    Attributes:
        columns: names of columns of ``kafkalog.format.layout.RECORD``, in order.
        isolation_level: one of ISOLATION_LEVELS.
    """

    columns: tuple[str, ...] = tuple(RECORD.names)
    isolation_level: str = READ_UNCOMMITTED

    def __post_init__(self) -> None:
        """Refuse unknown modes and isolation levels."""
        DamageRules.__post_init__(self)
        if self.isolation_level not in ISOLATION_LEVELS:
            levels = " or ".join(ISOLATION_LEVELS)
            raise OptionError(f"`isolation_level` {self.isolation_level!r}: {levels}")

    @property
    def is_committed(self) -> bool:
        """Whether only records of committed transactions are read."""
        return self.isolation_level == READ_COMMITTED

    @property
    def is_strict(self) -> bool:
        """Whether damage is an error that may have decided transactions."""
        return self.mode == FAILFAST and self.check_crc

    @property
    def is_permissive(self) -> bool:
        """Whether damage becomes a row with the reason."""
        return self.mode == PERMISSIVE

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches."""
        fields = [RECORD.field(name) for name in self.columns]
        if self.is_permissive:
            fields = [field.with_nullable(nullable=True) for field in fields]
            fields.append(pa.field(self.corrupt_column, pa.string()))
        return pa.schema(fields)

    def refuse(self, damage: CorruptBatchError) -> None:
        """Handle damage for which no row stands.

        Raises:
            CorruptBatchError: the mode is FAILFAST.
        """
        if self.mode == FAILFAST:
            raise damage
        logger.warning("%s: dropped damage at %d: %s", damage.path, damage.offset, damage.reason)

    def damage_row(self, damage: CorruptBatchError, offset: int) -> pa.RecordBatch:
        """Return the row that stands for damage; ``offset`` is the best guess of its place."""
        text = f"{damage.path}, {damage.offset}: {damage.reason}"
        known = {"offset": offset, self.corrupt_column: text}
        arrays = [pa.array([known.get(field.name)], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return decoded rows with the columns of the scan, in order."""
        arrays = [batch.column(name) for name in self.columns]
        if self.is_permissive:
            arrays.append(pa.nulls(batch.num_rows, pa.string()))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def parse_scan(
    columns: str | Iterable[str] | None, known: Sequence[str], spec: ScanSpec
) -> tuple[ScanSpec, tuple[str, ...]]:
    """Return how records are read, and the names of the columns of a scan, in order.

    Args:
        columns: as a list or joined by commas; None for all.
        known: the columns that there are, those of a record and others.
        spec: what is chosen besides columns. In the mode PERMISSIVE the column of the reason stands
            last unless it is named.

    Raises:
        OptionError: a column is unknown.
    """
    given = columns.split(",") if isinstance(columns, str) else columns
    names = tuple(known) if given is None else tuple(name.strip() for name in given)
    if spec.is_permissive:
        corrupt_column = spec.corrupt_column
        if corrupt_column in known:
            raise OptionError(
                f"`column_name_of_corrupt_record` {corrupt_column!r}: a column of records "
                "has this name"
            )
        if corrupt_column not in names:
            names = (*names, corrupt_column)
        known = (*known, corrupt_column)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise OptionError(f"`columns`: unknown {', '.join(unknown)}; there are {', '.join(known)}")
    if len(set(names)) < len(names):
        raise OptionError("`columns`: a column is named twice")
    of_records = tuple(name for name in names if name in RECORD.names)
    return replace(spec, columns=of_records or ("offset",)), names


def counted(
    batches: Iterable[pa.RecordBatch], n_offsets: int, tally: Tally
) -> Iterator[pa.RecordBatch]:
    """Yield batches of a range, and add to the progress as they are taken.

    Args:
        batches: of the range.
        n_offsets: of the range. Those without a record are done at its end.
        tally: adds up.
    """
    left = n_offsets
    for batch in batches:
        yield batch
        n_rows = min(batch.num_rows, left)
        tally.add_records(n_rows, 0)
        left -= n_rows
    tally.add_records(left, 0)


class Scan(ArrowRows, Opened):
    """Records of a partition, or of several, that are read again each time they are asked for.

    Nothing is kept. pandas, Polars, DuckDB and whatever else knows Arrow's C stream interface take
    a scan as it is. It has what a :class:`rmqstore.Scan` has, and so whatever a
    ``pyarrow.RecordBatchReader`` has; :meth:`reader` returns a real one.
    """

    def __init__(
        self, schema: pa.Schema, read: Reading, *, limit: int | None = None, is_quick: bool = False
    ) -> None:
        """Make a scan; nothing is read yet.

        Args:
            schema: the columns.
            read: begins a reading.
            limit: give only this many rows, the first ones; reading stops then.
            is_quick: whether the first rows are read quickly, so that a notebook shows them.

        Raises:
            OptionError: the limit is not a positive integer.
        """
        super().__init__(schema, limit=limit, is_quick=is_quick)
        self._read = read

    def reader(self) -> pa.RecordBatchReader:
        """Return a new reader of all records, which reads as it is asked for batches."""
        batches = first_rows(self._read(), self._limit)
        return pa.RecordBatchReader.from_batches(self._schema, batches)
