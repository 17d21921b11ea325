"""Runs one scan of a store: plans, prunes and reads, and filters by the condition on columns."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from rmqstore.errors import OptionError
from rmqstore.format.schema import ALL_COLUMNS, PENDING
from rmqstore.query.keys import Wanted
from rmqstore.query.selection import Selection
from rmqstore.query.where.where import Where
from rmqstore.read.lookup.pending import find_pending, read_pending
from rmqstore.read.pruner import StorePruner
from rmqstore.read.scan.merge import PLACE, merge_by_place
from rmqstore.read.scan.record_filter import log_filter
from rmqstore.read.scan.spec import ReadSpec, first_rows
from rmqstore.read.session import StoreSession

logger = logging.getLogger(__name__)


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
        selection: topics and bounds.
        spec: how records are read; its columns include those that the condition names.
        by: ``queue`` or ``commitlog``.
        wanted: keys, ids or tags, for a look-up.
        where: the condition on columns; None for all rows.
        index_only: whether a look-up skips what the index does not cover.
        include_pending: whether pending messages follow at the end.
    """

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

    def reader(
        self, session: StoreSession, schema: pa.Schema, limit: int | None
    ) -> pa.RecordBatchReader:
        """Return the messages of a store as a stream of batches.

        Args:
            session: the store.
            schema: the columns to return; the columns of ``spec`` include them.
            limit: return only this many messages, the first ones; reading stops then.

        Raises:
            OptionError: the limit is not a positive integer.
        """
        batches = self.batches(session)
        if self.spec.schema != schema:
            batches = (batch.select(schema.names) for batch in batches)
        if limit is not None:
            batches = first_rows(batches, limit)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def batches(self, session: StoreSession) -> Iterator[pa.RecordBatch]:
        """Return the messages of a store as batches with the columns of ``spec``."""
        if self.include_pending:
            session.require_store("include_pending")
        batches = self._read(session)
        if self.include_pending:
            batches = chain(batches, self._keep(self._pending(session)))
        return batches

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
