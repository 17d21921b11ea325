"""A cursor in a log that is written to: it follows new records and notices if the log was cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rmqstore.format.columns.checks import valid_crcs
from rmqstore.format.columns.decode import stored_bodies
from rmqstore.format.columns.record_headers import RecordHeaders, check_headers
from rmqstore.format.framing import FrameNumbers, StopKind
from rmqstore.format.layout import FRAME_HEAD, Bytes
from rmqstore.read.last_record import LastRecord
from rmqstore.storage.log.commitlog import (
    CommitLog,
    SegmentPosition,
    is_blank,
    numbers_of,
    read_frame,
)
from rmqstore.storage.log.walks import WINDOW_BYTES, Window, window_at
from rmqstore.storage.recovery.log_end import last_record_before

_FIRST_BYTES: Final = 64 << 10  # walked first: bytes that were never written are not to be touched
_GROWTH: Final = 8


@dataclass(slots=True)
class LogCursor:
    """A position in the log after the last record that was seen.

    Attributes:
        position: its physical offset.
        newest: the last record that was seen.
        refused: the bytes last seen at the cursor if they were not a record.
        is_disturbed: whether these bytes changed into something that is still not a record, so that
            the cursor is not where a record begins.
    """

    position: int
    newest: LastRecord | None = None
    refused: bytes = b""
    is_disturbed: bool = False

    @classmethod
    def at(cls, log: CommitLog, position: int) -> LogCursor:
        """Return a cursor at a physical offset where a record will begin."""
        return cls(position, LastRecord.at(log, last_record_before(log, position)))

    def is_good(self, log: CommitLog) -> bool:
        """Return whether the log is still what it was up to here, and continues here."""
        if self.is_disturbed or self.position < log.min_offset:
            return False
        newest = self.newest
        if newest is None or newest.physical_offset < log.min_offset:
            return True
        return newest.is_in(log) and self._follows(log, newest.physical_offset)

    def _follows(self, log: CommitLog, physical_offset: int) -> bool:
        """Return whether the cursor stands right after a record, or after the blank after it."""
        located = log.locate(physical_offset)
        end = physical_offset + read_frame(log, located)[0]
        if end == self.position:
            return True
        segment = located.segment
        if segment.end != self.position or not segment.start <= end < segment.end:
            return False
        return is_blank(log, log.locate(end))

    def step(self, log: CommitLog, run_started: int) -> Iterator[tuple[Bytes, RecordHeaders]]:
        """Yield the headers of the records that follow, and move past them.

        Args:
            log: the CommitLog of the store.
            run_started: when the running broker was started, in ms; 0 if that is not known.
        """
        size = _FIRST_BYTES
        after: FrameNumbers | None = None  # not known, unless the cursor follows on a record
        if self.newest is not None:
            newest = self.newest.physical_offset
            if log.find(newest) is not None and self._follows(log, newest):
                after = numbers_of(log, newest)
        while (segment := log.find(self.position)) is not None:
            end = segment.start + log.file_of(segment).size
            window = window_at(log, segment, self.position, end, size, after)
            walked = self._without_unsure(window, run_started)
            if walked is not window and window.records.kind is StopKind.END and size < WINDOW_BYTES:
                size = WINDOW_BYTES  # a later record may confirm the one that was refused
                continue
            for _, headers, whole in walked.headers():
                last = headers.take(slice(len(headers) - 1, None))
                self.newest = LastRecord(
                    *(int(last.column(name)[0]) for name in LastRecord._fields)
                )
                yield window.data, headers.take(window.without_torn(window.data, headers, whole))
            stop = walked.records
            after = stop.last
            position = walked.stopped
            if stop.kind is StopKind.BLANK:
                # For a moment a commit of a writer has a blank before an empty segment. Then a
                # record replaces it.
                following = log.find(segment.end)
                if following is not None:
                    frame = read_frame(log, SegmentPosition(following, 0))
                    position = position if frame == (0, 0) else segment.end
            is_stuck = position == self.position
            self.position = position
            refused = b""
            if stop.kind in (StopKind.DAMAGE, StopKind.STALE):
                refused = window.data[stop.position :][: FRAME_HEAD.itemsize].tobytes()
            has_changed = bool(self.refused and refused) and refused != self.refused
            self.is_disturbed = is_stuck and has_changed
            self.refused = refused
            if is_stuck or walked.damage is not None:
                return
            size = min(_GROWTH * size, WINDOW_BYTES)

    def _without_unsure(self, window: Window, run_started: int) -> Window:
        """Leave out the first record that may be foreign to the log, and all after it.

        A broker appends one record after the other, so the last one that the present run wrote
        confirms all before it. After it, a torn record ends the log: the broker is still writing
        it, or a recovery will cut it off. A whole record of an earlier run ends the log as well: a
        recovery has cut it off, and it is not written over yet.
        """
        starts = window.records.starts
        if not len(starts):
            return window
        masks, store_times = [], []
        for _, headers, whole in window.headers():
            mask = whole & check_headers(headers, window.segment.start)
            good = headers.take(mask)
            mask[mask] = valid_crcs(window.data, good, stored_bodies(window.data, good))
            masks.append(mask)
            store_times.append(headers.column("store_timestamp"))
        valid = np.concatenate(masks)  # those that are whole and have the right CRC
        times = np.concatenate(store_times)
        confirming = np.flatnonzero(valid & (times >= run_started))
        is_confirmed = len(confirming) > 0 or (
            self.newest is not None and self.newest.store_timestamp >= run_started
        )
        first = int(confirming[-1]) + 1 if len(confirming) else 0
        refused = np.flatnonzero(~valid[first:] | is_confirmed)
        if not len(refused):
            return window
        row = first + int(refused[0])
        reason = "torn, or cut off by a recovery"
        position = int(starts[row]) - window.records.head_bytes
        sure = window.records._replace(
            starts=starts[:row], kind=StopKind.DAMAGE, position=position, reason=reason
        )
        return replace(window, records=sure)
