"""Prunes reads of a store: which ranges of queues, units and parts of the log can meet conditions."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore.format.columns.dispatch_requests import rows_by_queue
from rmqstore.format.layout import Mask, Positions
from rmqstore.format.schema import select_columns
from rmqstore.query.conditions import ANY_NUMBER, LogParts, Pruning, parts_stored_within
from rmqstore.read.lookup.candidates import Found
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.rows import UnitRows
from rmqstore.read.scan.spec import DROPMALFORMED, ReadSpec
from rmqstore.read.session import StoreSession
from rmqstore.spans import LogSlice, QueueKey, QueueSlice, Span

logger = logging.getLogger(__name__)

# share of the log that the index may leave uncovered; with more it saves little
_MAX_UNCOVERED = 0.5
_HEADS = select_columns(["topic", "queueId", "queueOffset", "commitLogOffset"])


class PrunedQueues(NamedTuple):
    """What pruning leaves of ranges of queues: smaller ranges, and single messages that the index pointed out."""

    slices: list[QueueSlice]
    single: UnitRows | None


class StorePruner:
    """Prunes reads of one store."""

    def __init__(self, store: StoreSession, pruning: Pruning) -> None:
        self._store, self._pruning = store, pruning

    @cached_property
    def heads(self) -> list[int]:
        """Physical offsets where a scan of the log may be cut; see ``StoreSession.log_heads``."""
        return self._store.log_heads()

    def queues(self, slices: Sequence[QueueSlice]) -> PrunedQueues:
        """Return the parts of ranges of queues that have to be read."""
        pruning = self._pruning
        kept = [
            piece._replace(
                start=max(piece.start, pruning.queue_offsets.low),
                end=min(piece.end, pruning.queue_offsets.high + 1),
            )
            for piece in slices
            if pruning.keeps(piece.topic, piece.queue_id)
        ]
        kept = [piece for piece in kept if piece.start < piece.end]
        if not kept:
            return PrunedQueues([], None)
        whole = self._whole()
        parts = self._parts(whole)
        topics = self._store.indexed_topics({piece.topic for piece in kept})
        found = self._look_up(sorted(topics), whole)
        if found is None:
            return PrunedQueues(self._cut_all(kept, parts, whole), None)
        gaps = LogParts.of(found.uncovered)
        places = found.places[self._inside(found.places, parts) & ~self._inside(found.places, gaps)]
        indexed = [piece for piece in kept if piece.topic in topics]
        others = [piece for piece in kept if piece.topic not in topics]
        left = self._cut_all(indexed, parts.met(gaps), whole)
        single = self._units(places, indexed, left)
        return PrunedQueues(left + self._cut_all(others, parts, whole), single)

    def _cut_all(self, slices: list[QueueSlice], parts: LogParts, whole: Span) -> list[QueueSlice]:
        if parts.spans == (whole,):
            return slices
        return [part for piece in slices for part in self._store.slices_within(piece, parts.spans)]

    def log(self, whole: LogSlice) -> list[LogSlice]:
        """Return the parts of the log that have to be read.

        The index does not help: it may lack queueless records.
        """
        span = Span(whole.start, whole.end)
        parts = self._parts(span)
        if parts.spans != (span,):
            parts = self._from_heads(parts, span)
        return [whole._replace(start=part.start, end=part.end) for part in parts.spans]

    def _whole(self) -> Span:
        found = self._store.log_slice()
        return Span(found.start, found.end)

    def _parts(self, whole: Span) -> LogParts:
        """Return the parts of the log that the conditions on physical offsets and store times leave."""
        pruning = self._pruning
        parts = LogParts.of([whole])
        if pruning.places != ANY_NUMBER:
            span = Span(
                max(pruning.places.low, whole.start), min(pruning.places.high + 1, whole.end)
            )
            parts = LogParts.of([span])
        if pruning.has_times:
            points = self._store.log_points(lambda: self.heads)
            parts = parts.met(parts_stored_within(points, whole, pruning.store_timestamps))
        return parts

    def _look_up(self, topics: Sequence[str], whole: Span) -> Found | None:
        """Search the index; None if it cannot help, or if most of the log would have to be read anyway."""
        wanted = self._pruning.wanted
        if not wanted or not topics:
            return None
        found = self._store.find_in_index(wanted, topics)
        if found.n_uncovered_bytes > _MAX_UNCOVERED * (whole.end - whole.start):
            logger.info(
                "the index does not cover %d bytes of the log: the log is read",
                found.n_uncovered_bytes,
            )
            return None
        return found

    @staticmethod
    def _inside(places: Positions, parts: LogParts) -> Mask:
        bounds = np.array([bound for span in parts.spans for bound in span], np.int64)
        inside: Mask = np.searchsorted(bounds, places, side="right") % 2 == 1
        return inside

    def _from_heads(self, parts: LogParts, whole: Span) -> LogParts:
        """Widen parts of the log to physical offsets where a record surely begins."""
        heads = np.array(
            [whole.start, *(head for head in self.heads if whole.start < head < whole.end)]
        )
        widened = []
        for span in parts.spans:
            before = int(np.searchsorted(heads, span.start, side="right")) - 1
            after = int(np.searchsorted(heads, span.end))
            widened.append(
                Span(int(heads[before]), int(heads[after]) if after < len(heads) else whole.end)
            )
        return LogParts.of(widened)

    def _units(
        self, places: Positions, slices: Sequence[QueueSlice], but: Sequence[QueueSlice]
    ) -> UnitRows | None:
        """Return the units in ``slices``, but not in ``but``, that point at physical offsets, in the order of the log.

        None if there is no such unit.
        """
        spec = ReadSpec(_HEADS, mode=DROPMALFORMED, check_crc=False)
        read = [*self._store.finder.read_places(places, spec, LogFilter())]
        if not read:
            return None
        rows = pa.Table.from_batches(read).combine_chunks().to_batches()[0]
        queue_ids, offsets, at = (rows.column(name).to_numpy() for name in _HEADS.names[1:])
        encoded = rows.column("topic").dictionary_encode()
        topics, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        by_queue: dict[QueueKey, list[tuple[QueueSlice, bool]]] = defaultdict(list)
        for pieces, are_asked in ((slices, True), (but, False)):
            for piece in pieces:
                by_queue[piece.topic, piece.queue_id].append((piece, are_asked))
        found = []
        for members in rows_by_queue(codes, queue_ids):
            key = topics[int(codes[members[0]])], int(queue_ids[members[0]])
            asked = np.zeros(len(members), np.bool_)
            for piece, is_asked in by_queue[key]:
                asked[(offsets[members] >= piece.start) & (offsets[members] < piece.end)] = is_asked
            if asked.any():
                found.append(
                    self._store.units_at(*key, offsets[members[asked]], at[members[asked]])
                )
        parts = [part for part in found if len(part.sizes)]
        if not parts:
            return None
        joined = UnitRows.joined(parts)
        return joined.take(np.argsort(joined.physical_offsets, kind="stable"))
