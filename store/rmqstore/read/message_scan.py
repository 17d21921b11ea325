"""Runs one scan of a store: plans, prunes and reads, and filters by the condition on columns."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import OptionError
from rmqstore.format.schema import ALL_COLUMNS, CORRUPT_RECORD, PENDING, VERBATIM, select_columns
from rmqstore.progress import Progress, Tally, ignore_progress
from rmqstore.query.arrow_rows import first_rows, require_positive
from rmqstore.query.conditions import NO_PRUNING
from rmqstore.query.selection import BY_LOG, Selection, Wanted, parse_tags
from rmqstore.query.sql92_filter import parse_filter
from rmqstore.query.where import Where, parse_where, within_places
from rmqstore.read.faults import refuse_spans
from rmqstore.read.pending import find_pending, read_pending
from rmqstore.read.planning import (
    find_wanted,
    log_heads,
    log_parts,
    n_written,
    plan_look_up,
    plan_queues,
    take_samples,
)
from rmqstore.read.pruner import StorePruner
from rmqstore.read.read_spec import FAILFAST, PERMISSIVE, ReadSpec, scan_schema
from rmqstore.read.reading import find_lost, finder, look_up, read_log, read_queues, read_units
from rmqstore.read.record_filter import LogFilter, log_filter
from rmqstore.read.rows import PLACE, merge_by_place
from rmqstore.read.sampling import QUEUE_COLUMNS, newest_of_log, newest_of_queues
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import LogSlice, QueueSlice

logger = logging.getLogger(__name__)

_SIZE_SAMPLES: Final = 8
_NOTHING_WANTED: Final = Wanted()


def returned_schema(
    columns: str | Iterable[str] | pa.Schema | None = None,
    *,
    include_pending: bool = False,
    verbatim: bool = False,
    mode: str = FAILFAST,
    corrupt_column: str = CORRUPT_RECORD,
) -> pa.Schema:
    """Return the columns that a scan with these arguments returns."""
    reason = pa.field(corrupt_column, pa.string())
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    if mode == PERMISSIVE and columns is not None and not isinstance(columns, pa.Schema):
        names = [*columns]
        if names.count(corrupt_column) == 1:
            place = names.index(corrupt_column)
            names.remove(corrupt_column)
            others = scan_schema(names, include_pending=include_pending) if names else pa.schema([])
            return others.insert(place, reason)
        columns = names
    if verbatim and columns is None:
        schema = VERBATIM
    else:
        schema = scan_schema(columns, include_pending=include_pending)
    if mode == PERMISSIVE and corrupt_column not in schema.names:
        schema = schema.append(reason)
    return schema


def known_columns(schema: pa.Schema, *, include_pending: bool) -> pa.Schema:
    """Return the columns that a condition may name: those of the scan and all of a message."""
    others = [*ALL_COLUMNS, *(PENDING if include_pending else ())]
    return pa.schema([*schema, *(field for field in others if field.name not in schema.names)])


def columns_to_read(schema: pa.Schema, where: Where) -> pa.Schema:
    """Return the columns of a scan together with those that its condition needs.

    A condition that leads to a look-up also needs the column by which messages are merged.
    """
    needed = [*where.columns]
    if where.pruning.wanted:
        needed.append(ALL_COLUMNS.field(PLACE))
    missing = {field.name: field for field in needed if field.name not in schema.names}
    return pa.schema([*schema, *missing.values()])


@dataclass(frozen=True, slots=True)
class MessageScan:
    """The request for one scan.

    Attributes:
        schema: the columns that it returns.
        selection: topics and bounds.
        spec: how records are read; its columns include those that the condition names.
        by: ``queue`` or ``commitlog``.
        wanted: keys, ids or tags, for a look-up.
        where: the condition on columns; None for all rows.
        index_only: whether a look-up skips what the index does not cover.
        include_pending: whether pending messages follow at the end.
        last: only this many messages of each queue, the newest ones; of a scan by log in all.
        progress: called while the scan is read, with what is done and the total: messages of a scan
            by queue, else bytes of the log.
        tally: while the scan is read, adds up what was read; None if nobody wants to know.
    """

    schema: pa.Schema
    selection: Selection
    spec: ReadSpec
    by: str
    wanted: Wanted
    where: Where | None
    index_only: bool
    include_pending: bool
    last: int | None = None
    progress: Progress = ignore_progress
    tally: Tally | None = None

    def __post_init__(self) -> None:
        """Refuse arguments that contradict one another."""
        if self.by not in ("queue", "commitlog"):
            raise OptionError(f"`scan` {self.by!r}: queue or commitlog")
        if self.include_pending and (self.wanted or self.by != "queue"):
            raise OptionError("`include_pending`: only a read by queue knows what is pending")
        if self.last is not None and (self.wanted or self.include_pending):
            raise OptionError("`last`: it goes neither with look-ups nor with `include_pending`")
        require_positive("last", self.last)

    @property
    def is_quick(self) -> bool:
        """Whether the first rows are the first that are read."""
        has_conditions = self.where is not None or bool(self.wanted) or self.spec.filter is not None
        return not has_conditions and self.spec.tags is None and self.last is None

    def batches(self, store: StoreParts) -> Iterator[pa.RecordBatch]:
        """Return the messages of a store as batches with the columns of ``spec``."""
        if self.include_pending:
            store.require_store("`include_pending`")
        counted = self  # or the same scan, which reports its progress
        if self.progress is not ignore_progress:
            tally = Tally(self.progress)
            is_by_queue = self.by == "queue" and not self.wanted
            advance = tally.add_records if is_by_queue else tally.add_bytes
            counted = replace(self, tally=tally, spec=replace(self.spec, advance=advance))
        batches = counted._read(store)  # noqa: SLF001 - another one of this class
        if self.include_pending:
            batches = chain(batches, self.kept(self._pending(store)))
        return batches

    def n_planned(self, store: StoreParts) -> int | None:
        """Return the number of messages if the ends of queues give it, None if they do not.

        They do where each queue offset gives a row or an error.
        """
        spec = self.spec
        is_chosen_by_queue = self.by == "queue" and self.where is None and not self.wanted
        if self.last is not None:
            return None
        if not is_chosen_by_queue or self.include_pending or spec.tags is not None or spec.filter:
            return None
        if spec.mode != FAILFAST or not spec.fail_on_data_loss:
            return None
        slices = plan_queues(store, self.selection, spec)
        if find_lost(store, slices, spec):
            return None
        count = store.store_queues.n_messages
        return sum(count(*piece) for piece in slices)

    def count(self, store: StoreParts, limit: int | None) -> int:
        """Return the number of messages, at most ``limit``; by the ends of queues if they give it.

        If not, few columns are read, except where damaged rows count: which rows are damaged may
        depend on the columns.
        """
        count = self.n_planned(store)
        if count is not None:
            return count if limit is None else min(count, limit)
        request = self
        if self.spec.mode == FAILFAST:
            schema = select_columns(["queueOffset"])
            if self.where is not None:
                schema = columns_to_read(schema, self.where)
            request = replace(self, spec=replace(self.spec, schema=schema))
        batches = request.batches(store)
        return sum(
            batch.num_rows for batch in (batches if limit is None else first_rows(batches, limit))
        )

    def rows(self, store: StoreParts) -> Iterator[pa.RecordBatch]:
        """Return the messages of a store as batches with the columns that are returned."""
        batches = self.batches(store)
        if self.spec.schema == self.schema:
            return batches
        return (batch.select(self.schema.names) for batch in batches)

    def _expect(self, amount: Callable[[], int]) -> None:
        if self.tally is not None:
            self.tally.expect(amount())

    def _read(self, store: StoreParts) -> Iterator[pa.RecordBatch]:
        if self.where is not None and not self.where.pruning.keeps_broker(store.broker_name):
            return iter(())
        if self.wanted:
            return self.kept(self._look_up(store))
        if self.by == "queue":
            return self._by_queue(store)
        return self.kept(self._by_log(store))

    def kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that meet the condition."""
        if self.where is None:
            return batches
        matching = map(self.where.keep, batches)
        return (batch for batch in matching if batch.num_rows)

    def _by_queue(self, store: StoreParts) -> Iterator[pa.RecordBatch]:
        store.ranges.require_topics(self.selection)
        store.warn_without_queues()
        store.warn_of_messages_elsewhere()
        if self.last is not None:
            pruning = NO_PRUNING if self.where is None else self.where.pruning
            slices = plan_queues(store, self.selection, self.spec, pruning)
            deque(refuse_spans(find_lost(store, slices, self.spec), self.spec), maxlen=0)
            return self._newest(store, slices, self.last)
        if self.where is not None:
            return self._pruned(store, self.where)
        slices = plan_queues(store, self.selection, self.spec)
        self._expect(lambda: _n_messages(slices))
        lost = refuse_spans(find_lost(store, slices, self.spec), self.spec)
        return chain(lost, read_queues(store, slices, self.spec))

    def _pruned(self, store: StoreParts, where: Where) -> Iterator[pa.RecordBatch]:
        """Return the messages in ranges of queues that meet the condition.

        What pruning rules out is not read.
        """
        slices = plan_queues(store, self.selection, self.spec, where.pruning)
        pruned = StorePruner(store, where.pruning).queues(slices)
        n_single = 0 if pruned.single is None else len(pruned.single.physical_offsets)
        logger.info(
            "%s: the condition leaves %d of %d messages of the queues that it allows, "
            "and %d that the index gives: %s",
            store.paths.root, _n_messages(pruned.every), _n_messages(slices), n_single,
            where.pruning,
        )  # fmt: skip
        self._expect(lambda: _n_messages(pruned.every) + n_single)
        lost = self.kept(refuse_spans(find_lost(store, (), self.spec), self.spec))
        messages = self.kept(read_queues(store, pruned.slices, self.spec))
        if pruned.single is not None:
            single = self.kept(read_units(store, pruned.single, self.spec))
            messages = merge_by_place(messages, single)
        in_tier = self.kept(read_queues(store, pruned.in_tier, self.spec))
        return chain(lost, in_tier, messages)

    def _by_log(self, store: StoreParts) -> Iterator[pa.RecordBatch]:
        store.require_local(BY_LOG)
        chosen = log_filter(self.selection, self.spec.schema.names)
        store.ranges.warn_unknown_topics(self.selection)
        pieces = [store.log_slice()]
        if self.where is not None:
            pieces = StorePruner(store, self.where.pruning).log(pieces[0])
        if self.last is not None:
            return self._newest_by_log(store, pieces, chosen, self.last)
        self._expect(lambda: n_written(store, pieces))
        return chain.from_iterable(read_log(store, piece, self.spec, chosen) for piece in pieces)

    def newest(
        self, store: StoreParts, slices: Sequence[QueueSlice], count: int
    ) -> Iterator[pa.RecordBatch]:
        """Return the newest messages of ranges of queues, with the columns that are returned."""
        batches = self._newest(store, slices, count)
        return (batch.select(self.schema.names) for batch in batches)

    def _newest(
        self, store: StoreParts, slices: Sequence[QueueSlice], count: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the newest messages of each queue, in the order of the log."""
        order = "storeTimestamp" if store.is_tiered else PLACE
        needed = [ALL_COLUMNS.field(name) for name in (*QUEUE_COLUMNS, order)]
        added = [field for field in needed if field.name not in self.spec.schema.names]
        spec = replace(self.spec, schema=pa.schema([*self.spec.schema, *added]))

        def read(parts: list[QueueSlice]) -> Iterator[pa.RecordBatch]:
            self._expect(lambda: _n_messages(parts))
            return self.kept(read_queues(store, parts, spec))

        newest = newest_of_queues(slices, count, read, spec.schema)
        rows = newest.take(pc.sort_indices(newest.column(order)))
        yield from rows.select(self.spec.schema.names).to_batches()

    def _newest_by_log(
        self, store: StoreParts, pieces: list[LogSlice], chosen: LogFilter, count: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the newest records of parts of the log."""
        parts = [part.piece for part in log_parts(store, pieces, log_heads(store))]

        def read(part: LogSlice) -> Iterator[pa.RecordBatch]:
            self._expect(lambda: n_written(store, [part]))
            return self.kept(read_log(store, part, self.spec, chosen))

        yield from newest_of_log(parts, count, read, self.spec.schema).to_batches()

    def _look_up(self, store: StoreParts) -> Iterator[pa.RecordBatch]:
        chosen = log_filter(self.selection, self.spec.schema.names, self.wanted)
        store.ranges.warn_unknown_topics(self.selection)
        if not self.index_only:  # the index of tiered storage is not used
            slices = plan_look_up(store, self.selection, self.spec)
            if self.tally is not None:
                n_bytes = 0
                for piece in slices:
                    samples = take_samples(store, piece, _SIZE_SAMPLES)
                    mean_bytes = fmean([sample.mean_bytes for sample in samples] or [0])
                    n_bytes += round(mean_bytes * (piece.end - piece.start))
                self.tally.expect(n_bytes)
            yield from look_up(store, slices, self.spec, chosen)
        candidates = find_wanted(store, self.wanted, self.selection)
        if self.tally is not None:
            places = candidates.places
            n_bytes = round(len(places) * finder(store).mean_size(places))
            if not self.index_only:
                n_bytes += candidates.n_uncovered_bytes
            self.tally.expect(n_bytes)
        yield from finder(store).read(candidates, self.spec, chosen, index_only=self.index_only)

    def _pending(self, store: StoreParts) -> Iterator[pa.RecordBatch]:
        pending = find_pending(store, self.selection, self.spec)
        yield from read_pending(store, pending, self.spec, self.selection)


def _n_messages(slices: Iterable[QueueSlice]) -> int:
    return sum(piece.end - piece.start for piece in slices)


def parse_scan(
    selection: Selection,
    *,
    where: str | pc.Expression | None,
    sql92: str | None,
    tags: str | None,
    columns: str | Iterable[str] | pa.Schema | None,
    mode: str,
    corrupt_column: str,
    check_crc: bool,
    fail_on_data_loss: bool,
    last: int | None,
    by: str = "queue",
    wanted: Wanted = _NOTHING_WANTED,
    index_only: bool = False,
    include_pending: bool = False,
    verbatim: bool = False,
    places: tuple[int | None, int | None] = (None, None),
    broker_name: str = "",
    progress: Progress = ignore_progress,
) -> MessageScan:
    """Check the arguments of a scan, which ``MessageStore.scan`` describes.

    Raises:
        OptionError: one is out of its domain, or some contradict one another.
    """
    schema = returned_schema(
        columns,
        include_pending=include_pending,
        verbatim=verbatim,
        mode=mode,
        corrupt_column=corrupt_column,
    )
    known = known_columns(schema, include_pending=include_pending)
    start, end = places
    for name, offset in (("starting_physical_offset", start), ("ending_physical_offset", end)):
        if offset is not None and offset < 0:
            raise OptionError(f"`{name}` {offset}: must not be negative")
    if start is not None and end is not None and start > end:
        raise OptionError(f"`starting_physical_offset` {start}: lies after the end {end}")
    condition = within_places(parse_where(where, known), *places)
    tag_set = parse_tags(tags)
    spec = ReadSpec(
        schema=schema if condition is None else columns_to_read(schema, condition),
        mode=mode,
        corrupt_column=corrupt_column,
        check_crc=check_crc,
        fail_on_data_loss=fail_on_data_loss,
        tags=tag_set if condition is None else condition.pruning.tagged(tag_set),
        filter=parse_filter(sql92),
        broker_name=broker_name,
        inflate=not verbatim,
    )
    return MessageScan(
        schema,
        selection,
        spec,
        by,
        wanted,
        condition,
        index_only,
        include_pending,
        last,
        progress,
    )
