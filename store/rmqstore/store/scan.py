"""Scans of a store: rows that are read when they are asked for, and again each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.topics import is_system_topic
from rmqstore.notebook import table
from rmqstore.progress import ignore_progress
from rmqstore.query.arrow_rows import ArrowRows, first_rows
from rmqstore.query.where import parse_where
from rmqstore.read.message_scan import MessageScan
from rmqstore.read.request import parse_request
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.catalogue import read_view
from rmqstore.read.views.schema import ViewSpec, view_columns
from rmqstore.storage.files.lifetime import Opened

# Plans a reading, and returns the batches, which are read as they are taken.
Plan: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]


def users_first(topics: Iterable[str]) -> list[str]:
    """Return topics sorted, those of users before those of the system."""
    return sorted(topics, key=lambda topic: (is_system_topic(topic), topic))


def topic_table(rows: Sequence[tuple[str, object]], n_topics: int) -> str:
    """Return a table of the first of some topics, each with its number of queues, as HTML."""
    return table(["topic", "queues"], rows, n_left_out=n_topics - len(rows))


class _Readings:
    """Readings of the same rows, the first of which is planned at once.

    A reader refers to this and not to its scan: the collector of cycles sees no Arrow reader.
    """

    def __init__(self, plan: Plan, require_open: Callable[[], None]) -> None:
        require_open()
        self._plan = plan
        self.require_open = require_open
        self._planned = iter([plan()])  # one of the threads that read begins with it

    def batches(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows, at most ``limit``; they are planned when the first batch is taken."""
        batches = next(self._planned, None)
        self.require_open()
        if batches is None:
            batches = self._plan()
        for batch in first_rows(batches, limit):
            yield batch
            self.require_open()


class Messages(Protocol):
    """Messages that can be scanned: of a store, of several, or of running brokers."""

    def scan(self, *args: Any, **options: Any) -> Scan: ...  # noqa: ANN401 - as each has it
    def topics(self) -> Sequence[str]: ...


class Scan(ArrowRows, Opened):
    """Rows of a store, or of several, that are read again each time they are asked for.

    Nothing is kept: each iteration, conversion or query of an engine reads the store again, as it
    is by then. pandas, Polars, DuckDB and whatever else knows Arrow's C stream interface take a
    scan as it is. Everything that a ``pyarrow.RecordBatchReader`` has is here too, so a scan can be
    used like one; :meth:`reader` returns a real one. :func:`rmqstore.polars.scan` reads lazily.
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
        """Plan the first reading, and refuse an unreadable source.

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
        super().__init__(schema, limit=limit, is_quick=is_quick)
        self._count = count
        self._readings = _Readings(plan, require_open)

    def _require_open(self) -> None:
        self._readings.require_open()

    def reader(self) -> pa.RecordBatchReader:
        """Return a new reader of all rows, which begins to read when it is asked for a batch."""
        self._require_open()
        batches = self._readings.batches(self._limit)
        return pa.RecordBatchReader.from_batches(self._schema, batches)

    def count(self) -> int:
        """Return the number of rows.

        Where the ends of queues give it, no message is read, and damage is not noticed.
        """
        self._require_open()
        return super().count() if self._count is None else self._count()


def scan_messages(
    stores: Sequence[StoreParts], arguments: Mapping[str, Any], require_open: Callable[[], None]
) -> Scan:
    """Return the messages that arguments of a scan choose, of one store after the other.

    Args:
        stores: the stores.
        arguments: those of ``ScanArguments``, and ``columns``.
        require_open: refuses to read from a store that was closed.

    Raises:
        OptionError: as ``MessageStore.scan`` does.
    """
    limit = arguments.get("limit")
    progress = arguments.get("progress", ignore_progress)
    request = parse_request(arguments)
    if not request.inflate and request.by == "queue":
        for store in stores:
            store.ranges.require_records(request.selection)
    return Scan(
        request.schema,
        lambda: MessageScan(stores, request, progress).rows(),
        require_open,
        limit=limit,
        count=lambda: MessageScan(stores, request).count(limit),
        is_quick=request.is_quick,
    )


def scan_view(
    stores: Sequence[StoreParts],
    spec: ViewSpec,
    where: str | pc.Expression | None,
    require_open: Callable[[], None],
) -> Scan:
    """Return a view of stores.

    Args:
        stores: the stores.
        spec: what is asked for.
        where: a condition on columns of the view.
        require_open: refuses to read from a store that was closed.

    Raises:
        OptionError: as ``MessageStore.view`` does.
    """
    condition = parse_where(where, view_columns(spec.view))
    return Scan(spec.schema, lambda: read_view(stores, spec, condition), require_open)
