"""Reads the records at the offsets that look-ups propose, and keeps those that match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from statistics import fmean

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.format.layout import Positions
from rmqstore.format.schema import select_columns
from rmqstore.query.keys import Wanted
from rmqstore.query.selection import parse_selection
from rmqstore.read.lookup.candidates import SMALL_GAPS, Found, Lookup, QueryResult
from rmqstore.read.scan.record_filter import LogFilter, log_filter
from rmqstore.read.scan.record_scan import PlaceScan
from rmqstore.read.scan.spec import DROPMALFORMED, ReadSpec
from rmqstore.spans import LogSlice
from rmqstore.storage.log.commitlog import CommitLog

_SIZE_SAMPLES = 64  # records, at least, whose sizes make a mean
_OVERREAD = 4  # candidates read per requested message, newest first

Find = Callable[[Wanted, Sequence[str], int | None, int | None], Found]
ReadLog = Callable[[LogSlice, ReadSpec, LogFilter], Iterator[pa.RecordBatch]]


class Finder:
    """Reads the candidates of look-ups in one store.

    Args:
        log: the CommitLog of the store.
        lookup: finds the candidates.
        find: ``candidates.Lookup.find``, repeated if retention deletes a file meanwhile.
        read_log: reads a slice of the log.
        is_closed: whether the store was closed; see ``spans.LogSlice``.
    """

    def __init__(
        self,
        log: CommitLog,
        lookup: Lookup,
        find: Find,
        read_log: ReadLog,
        is_closed: Callable[[], bool],
    ) -> None:
        self._log, self._lookup, self._find = log, lookup, find
        self._read_log, self._is_closed = read_log, is_closed

    def query(
        self,
        topic: str,
        wanted: Wanted,
        times: tuple[int, int],
        limit: int | None,
        *,
        scan_uncovered: bool,
        broker_name: str,
    ) -> QueryResult:
        """Return the messages of a topic that have a key or tags; see ``MessageStore.query``.

        Args:
            times: first and last store time, ms, both included.
        """
        chosen = log_filter(parse_selection(subscribe=[topic]), [], wanted)._replace(
            start_timestamp=times[0], end_timestamp=times[1] + 1
        )
        spec = ReadSpec(select_columns(["commitLogOffset"]))
        candidates = self._find(wanted, [topic], *times)
        is_scanned = scan_uncovered or candidates.n_uncovered_bytes <= SMALL_GAPS
        pieces = self.uncovered(candidates) if is_scanned else []
        places = _places(batch for piece in pieces for batch in self._read_log(piece, spec, chosen))
        rest = candidates.places_outside(pieces)
        stop = 0 if limit is None else _OVERREAD * limit
        while len(rest) and (limit is None or len(places) < limit or places[-limit] < rest[-1]):
            newest = rest[-stop:]  # most candidates have the key, so the newest few suffice
            places = np.union1d(places, _places(self.read_places(newest, spec, chosen)))
            rest = rest[: len(rest) - len(newest)]
        if limit is not None:
            places = places[-limit:]
        messages = tuple(self._log.get(place, broker_name) for place in places.tolist())
        return QueryResult(messages, tuple(candidates.uncovered), is_scanned)

    def uncovered(self, found: Found) -> list[LogSlice]:
        """Return the parts of the log that the index does not cover, as slices to read."""
        is_closed = self._is_closed()
        return [LogSlice(span.start, span.end, is_closed=is_closed) for span in found.uncovered]

    def read(
        self,
        found: Found,
        spec: ReadSpec,
        wanted: LogFilter,
        *,
        index_only: bool = False,
        start: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a look-up in the order of the log.

        Args:
            found: where they may lie.
            spec: how to read them.
            wanted: which records match.
            index_only: whether parts of the log that the index does not cover are skipped.
            start: a physical offset; messages before it may be left out.
        """
        pieces = []
        if not index_only:
            pieces = [piece for piece in self.uncovered(found) if piece.end > start]
        places = found.places_outside(pieces)
        for piece in pieces:
            before = int(np.searchsorted(places, piece.start))
            yield from self.read_places(places[:before], spec, wanted)
            yield from self._read_log(piece, spec, wanted)
            places = places[before:]
        yield from self.read_places(places, spec, wanted)

    def mean_size(self, places: Positions) -> float:
        """Estimate the mean size in bytes of the records at physical offsets (n,) by a sample."""
        sizes = []
        for place in places[:: max(1, len(places) // _SIZE_SAMPLES)].tolist():
            with suppress(OffsetOutOfRangeError):
                if self._log.is_head(place):
                    sizes.append(max(self._log.frame(self._log.locate(place))[0], 0))
        return fmean(sizes) if sizes else 0.0

    def read_places(
        self, places: Positions, spec: ReadSpec, wanted: LogFilter
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records at physical offsets; see ``record_scan.PlaceScan``."""
        return PlaceScan(self._log, spec, wanted).batches(places)

    def copies(self, wanted: Wanted, topics: Sequence[str], start: int) -> Iterator[pa.RecordBatch]:
        """Yield topic, msgId and commitLogOffset of matching messages from a physical offset on.

        They are in the order of the log.
        """
        spec = ReadSpec(
            select_columns(["topic", "msgId", "commitLogOffset"]),
            mode=DROPMALFORMED,
            check_crc=False,
        )
        chosen = log_filter(parse_selection(subscribe=topics), spec.schema.names, wanted)
        candidates = self._find(wanted, topics, None, None)
        for batch in self.read(candidates, spec, chosen, start=start):
            yield batch.filter(pc.greater_equal(batch.column("commitLogOffset"), start))


def _places(batches: Iterable[pa.RecordBatch]) -> Positions:
    columns = [batch.column(0).to_numpy() for batch in batches]
    return np.concatenate(columns) if columns else np.empty(0, np.int64)
