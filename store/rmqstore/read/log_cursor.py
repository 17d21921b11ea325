"""A cursor in a log that is written to: it follows new records and notices if the log was cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.format.columns.checks import sound_crcs
from rmqstore.format.columns.decode import stored_bodies
from rmqstore.format.columns.heads import Heads, check_heads
from rmqstore.format.framing import FrameNumbers, StopKind
from rmqstore.format.layout import FRAME_HEAD, Bytes, Mask
from rmqstore.storage.log.commitlog import CommitLog, Place, is_blank, numbers_of
from rmqstore.storage.log.walks import WINDOW_BYTES, Window, window_at
from rmqstore.storage.recovery.log_end import last_record_before

_FIRST_BYTES: Final = 64 << 10  # walked first: bytes that were never written are not to be touched
_GROWTH: Final = 8


class LogMark(NamedTuple):
    """A record by which a log is recognized.

    If a recovery cut the log before it and the log was written on, another record is in its place.
    """

    physical_offset: int
    store_timestamp: int  # ms

    @classmethod
    def at(cls, log: CommitLog, physical_offset: int | None) -> LogMark | None:
        """Return the mark of the record at a physical offset, None where there is none."""
        if physical_offset is None:
            return None
        try:
            return cls(physical_offset, log.store_timestamp(physical_offset))
        except (CorruptRecordError, OffsetOutOfRangeError):
            return None

    def stands_in(self, log: CommitLog) -> bool:
        """Tell whether the record still stands there, or was deleted with its file as too old."""
        if self.physical_offset < log.min_offset:
            return True
        return LogMark.at(log, self.physical_offset) == self


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
    newest: LogMark | None = None
    refused: bytes = b""
    is_disturbed: bool = False

    @classmethod
    def at(cls, log: CommitLog, position: int) -> LogCursor:
        """Return a cursor at a physical offset where a record will begin."""
        return cls(position, LogMark.at(log, last_record_before(log, position)))

    def is_good(self, log: CommitLog) -> bool:
        """Tell whether the log is still what it was up to here, and goes on here."""
        if self.is_disturbed or self.position < log.min_offset:
            return False
        newest = self.newest
        if newest is None or newest.physical_offset < log.min_offset:
            return True
        return newest.stands_in(log) and self._follows(log, newest.physical_offset)

    def _follows(self, log: CommitLog, physical_offset: int) -> bool:
        """Tell whether the cursor stands right after a record, or after the blank after it."""
        place = log.locate(physical_offset)
        end = physical_offset + log.frame(place)[0]
        if end == self.position:
            return True
        segment = place.segment
        if segment.end != self.position or not segment.start <= end < segment.end:
            return False
        return is_blank(log, log.locate(end))

    def _numbers(self, log: CommitLog) -> FrameNumbers | None:
        """Return the numbers of the frame before the cursor; None if they are not known."""
        newest = self.newest
        if newest is None or log.find(newest.physical_offset) is None:
            return None
        if not self._follows(log, newest.physical_offset):
            return None
        return numbers_of(log, newest.physical_offset)

    def step(self, log: CommitLog, run_started: int) -> Iterator[tuple[Bytes, Heads]]:
        """Yield the heads of the records that follow, and move past them.

        Args:
            log: the CommitLog of the store.
            run_started: when the running broker was started, in ms; 0 if that is not known.
        """
        size = _FIRST_BYTES
        after = self._numbers(log)
        while (segment := log.find(self.position)) is not None:
            end = segment.start + log.size(segment)
            window = window_at(log, segment, self.position, end, size, after)
            walked = self._without_unsure(window, run_started)
            if walked is not window and window.records.kind is StopKind.END and size < WINDOW_BYTES:
                size = WINDOW_BYTES  # a later record may vouch for the one that was refused
                continue
            for _, heads, whole in walked.heads():
                last = heads.take(slice(len(heads) - 1, None))
                self.newest = LogMark(*(int(last.column(name)[0]) for name in LogMark._fields))
                yield window.data, heads.take(window.without_torn(window.data, heads, whole))
            stop = walked.records
            after = stop.last
            position = walked.stopped
            if stop.kind is StopKind.BLANK and _has_content(log, segment.end):
                position = segment.end
            is_stuck = position == self.position
            self.position = position
            refused = b""
            if stop.kind in (StopKind.DAMAGE, StopKind.STALE):
                refused = window.data[stop.position :][: FRAME_HEAD.itemsize].tobytes()
            self._note(refused, is_stuck=is_stuck)
            if is_stuck or walked.damage is not None:
                return
            size = min(_GROWTH * size, WINDOW_BYTES)

    def _without_unsure(self, window: Window, run_started: int) -> Window:
        """Leave out the first record that may not belong to the log, and all that follow.

        A broker appends one record after the other, so the last one that the present run wrote
        vouches for all before it. After it, a torn record ends the log: the broker is still writing
        it, or a recovery will cut it off. A whole record of an earlier run ends the log as well: a
        recovery has cut it off, and it is not written over yet.
        """
        starts = window.records.starts
        if not len(starts):
            return window
        sound, times = _check(window)
        vouching = np.flatnonzero(sound & (times >= run_started))
        is_vouched = len(vouching) > 0 or (
            self.newest is not None and self.newest.store_timestamp >= run_started
        )
        first = int(vouching[-1]) + 1 if len(vouching) else 0
        refused = np.flatnonzero(~sound[first:] | is_vouched)
        if not len(refused):
            return window
        row = first + int(refused[0])
        reason = "torn, or cut off by a recovery"
        position = int(starts[row]) - window.records.head_bytes
        sure = window.records._replace(
            starts=starts[:row], kind=StopKind.DAMAGE, position=position, reason=reason
        )
        return replace(window, records=sure)

    def _note(self, refused: bytes, *, is_stuck: bool) -> None:
        """Note the bytes at the cursor; they are empty if nothing there was refused."""
        has_changed = bool(self.refused and refused) and refused != self.refused
        self.is_disturbed = is_stuck and has_changed
        self.refused = refused


def _check(window: Window) -> tuple[Mask, NDArray[np.int64]]:
    """Return a mask (n,) of the sound records of a window, and the store times (n,) of all, ms.

    A sound record is whole and has the right CRC.
    """
    masks, times = [], []
    for _, heads, whole in window.heads():
        sound = whole & check_heads(heads, window.segment.start)
        good = heads.take(sound)
        sound[sound] = sound_crcs(window.data, good, stored_bodies(window.data, good))
        masks.append(sound)
        times.append(heads.column("store_timestamp"))
    return np.concatenate(masks), np.concatenate(times)


def _has_content(log: CommitLog, physical_offset: int) -> bool:
    """Tell whether the segment that begins at a physical offset holds anything.

    For a moment a commit of ours has a blank before an empty segment. Then a record replaces it.
    """
    segment = log.find(physical_offset)
    return segment is not None and log.frame(Place(segment, 0)) != (0, 0)
