"""Runs one scan of a store: plans, prunes and reads, and filters by the condition on columns."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import OptionError
from rmqstore.format.schema import ALL_COLUMNS, CORRUPT_RECORD, PENDING, VERBATIM, select_columns
from rmqstore.query.keys import Wanted
from rmqstore.query.selection import Selection, parse_tags
from rmqstore.query.sql92.filter import parse_filter
from rmqstore.query.where.where import Where, parse_where, within_places
from rmqstore.read.lookup.pending import find_pending, read_pending
from rmqstore.read.pruner import StorePruner
from rmqstore.read.scan.merge import PLACE, merge_by_place
from rmqstore.read.scan.record_filter import log_filter
from rmqstore.read.scan.spec import FAILFAST, PERMISSIVE, ReadSpec, first_rows, scan_schema
from rmqstore.read.session import StoreSession

logger = logging.getLogger(__name__)


def returned_schema(
    columns: str | Iterable[str] | pa.Schema | None = None,
    *,
    include_pending: bool = False,
    verbatim: bool = False,
    mode: str = FAILFAST,
    corrupt_column: str = CORRUPT_RECORD,
) -> pa.Schema:
    """Return the columns that a scan with these arguments returns."""
    if verbatim and columns is None:
        schema = VERBATIM
    else:
        schema = scan_schema(columns, include_pending=include_pending)
    if mode == PERMISSIVE and corrupt_column not in schema.names:
        schema = schema.append(pa.field(corrupt_column, pa.string()))
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
    """

    schema: pa.Schema
    selection: Selection
    spec: ReadSpec
    by: str
    wanted: Wanted
    where: Where | None
    index_only: bool
    include_pending: bool

    def __post_init__(self) -> None:
        """Refuse arguments that contradict one another."""
        if self.by not in ("queue", "commitlog"):
            raise OptionError(f"scan {self.by!r}: queue or commitlog")
        if self.include_pending and (self.wanted or self.by != "queue"):
            raise OptionError("include_pending: only a read by queue knows what is pending")

    def batches(self, session: StoreSession) -> Iterator[pa.RecordBatch]:
        """Return the messages of a store as batches with the columns of ``spec``."""
        if self.include_pending:
            session.require_store("include_pending")
        batches = self._read(session)
        if self.include_pending:
            batches = chain(batches, self._keep(self._pending(session)))
        return batches

    def n_planned(self, session: StoreSession) -> int | None:
        """Return the number of messages if the ends of queues tell it, None if they do not.

        They do where each queue offset gives a row or an error.
        """
        spec = self.spec
        is_chosen_by_queue = self.by == "queue" and self.where is None and not self.wanted
        if not is_chosen_by_queue or self.include_pending or spec.tags is not None or spec.filter:
            return None
        if spec.mode != FAILFAST or not spec.fail_on_data_loss:
            return None
        slices = session.plan_queues(self.selection, spec)
        if session.lost(slices, spec):
            return None
        return sum(piece.end - piece.start for piece in slices)

    def count(self, session: StoreSession, limit: int | None) -> int:
        """Return the number of messages, at most ``limit``; by the ends of queues if they tell it.

        If not, few columns are read, except where damaged rows count: which rows are damaged may
        depend on the columns.
        """
        count = self.n_planned(session)
        if count is not None:
            return count if limit is None else min(count, limit)
        request = self
        if self.spec.mode == FAILFAST:
            schema = select_columns(["queueOffset"])
            if self.where is not None:
                schema = columns_to_read(schema, self.where)
            request = replace(self, spec=replace(self.spec, schema=schema))
        batches = request.batches(session)
        return sum(
            batch.num_rows for batch in (batches if limit is None else first_rows(batches, limit))
        )

    def rows(self, session: StoreSession) -> Iterator[pa.RecordBatch]:
        """Return the messages of a store as batches with the columns that are returned."""
        batches = self.batches(session)
        if self.spec.schema == self.schema:
            return batches
        return (batch.select(self.schema.names) for batch in batches)

    def _read(self, session: StoreSession) -> Iterator[pa.RecordBatch]:
        if self.where is not None and not self.where.pruning.keeps_broker(session.broker_name):
            return iter(())
        if self.wanted:
            return self._keep(self._look_up(session))
        if self.by == "queue":
            return self._by_queue(session)
        return self._keep(self._by_log(session))

    def _keep(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that meet the condition."""
        if self.where is None:
            return batches
        matching = map(self.where.keep, batches)
        return (batch for batch in matching if batch.num_rows)

    def _by_queue(self, session: StoreSession) -> Iterator[pa.RecordBatch]:
        session.require_topics(self.selection)
        session.warn_without_queues()
        session.warn_of_messages_elsewhere()
        if self.where is not None:
            return self._pruned(session, self.where)
        slices = session.plan_queues(self.selection, self.spec)
        lost = session.read_lost(session.lost(slices, self.spec), self.spec)
        return chain(lost, session.read_queues(slices, self.spec))

    def _pruned(self, session: StoreSession, where: Where) -> Iterator[pa.RecordBatch]:
        """Return the messages in ranges of queues that meet the condition.

        What pruning rules out is not read.
        """
        slices = session.plan_queues(self.selection, self.spec, where.pruning)
        pruned = StorePruner(session, where.pruning).queues(slices)
        logger.info(
            "%s: the condition leaves %d of %d messages of the queues that it allows, "
            "and %d that the index gives: %s",
            session.paths.root, sum(piece.end - piece.start for piece in pruned.every),
            sum(piece.end - piece.start for piece in slices),
            0 if pruned.single is None else len(pruned.single.physical_offsets), where.pruning,
        )  # fmt: skip
        lost = self._keep(session.read_lost(session.lost((), self.spec), self.spec))
        messages = self._keep(session.read_queues(pruned.slices, self.spec))
        if pruned.single is not None:
            single = self._keep(session.read_units(pruned.single, self.spec))
            messages = merge_by_place(messages, single)
        in_tier = self._keep(session.read_queues(pruned.in_tier, self.spec))
        return chain(lost, in_tier, messages)

    def _by_log(self, session: StoreSession) -> Iterator[pa.RecordBatch]:
        session.require_local("scan=commitlog")
        chosen = log_filter(self.selection, self.spec.schema.names)
        session.warn_unknown_topics(self.selection)
        pieces = [session.log_slice()]
        if self.where is not None:
            pieces = StorePruner(session, self.where.pruning).log(pieces[0])
        return chain.from_iterable(session.read_log(piece, self.spec, chosen) for piece in pieces)

    def _look_up(self, session: StoreSession) -> Iterator[pa.RecordBatch]:
        chosen = log_filter(self.selection, self.spec.schema.names, self.wanted)
        session.warn_unknown_topics(self.selection)
        if not self.index_only:  # the index of tiered storage is not used
            slices = session.plan_look_up(self.selection, self.spec)
            yield from session.look_up(slices, self.spec, chosen)
        candidates = session.find(self.wanted, self.selection)
        yield from session.finder.read(candidates, self.spec, chosen, index_only=self.index_only)

    def _pending(self, session: StoreSession) -> Iterator[pa.RecordBatch]:
        pending = find_pending(session, self.selection, self.spec)
        yield from read_pending(session, pending, self.spec, self.selection)


def parse_scan(
    selection: Selection,
    *,
    where: str | pc.Expression | None,
    sql92: str | None,
    tags: str | None,
    columns: str | Iterable[str] | pa.Schema | None,
    by: str,
    wanted: Wanted,
    index_only: bool,
    include_pending: bool,
    mode: str,
    corrupt_column: str,
    check_crc: bool,
    fail_on_data_loss: bool,
    verbatim: bool,
    places: tuple[int | None, int | None],
    broker_name: str,
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
    return MessageScan(schema, selection, spec, by, wanted, condition, index_only, include_pending)
