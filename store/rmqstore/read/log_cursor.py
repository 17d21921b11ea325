"""A place in a log that is written to: steps over what is new, and notices that a recovery has cut the log."""

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
from rmqstore.format.columns.walk import StopKind, Walk
from rmqstore.format.layout import BLANK_MAGIC, FRAME_HEAD, Bytes, Mask
from rmqstore.storage.log.commitlog import CommitLog, Place
from rmqstore.storage.log.walks import WINDOW_BYTES, Window, window_at
from rmqstore.storage.recovery.log_end import last_record_before

_FIRST_BYTES: Final = 64 << 10  # walked first: bytes that were never written are not to be touched
_GROWTH: Final = 8


class LogMark(NamedTuple):
    """A record by which a log is known again: cut by a recovery and written on, another one stands in its place."""

    physical_offset: int
    store_timestamp: int  # ms

    @classmethod
    def at(cls, log: CommitLog, physical_offset: int | None) -> LogMark | None:
        """Return the mark of the record at a place, None where there is none."""
        if physical_offset is None:
            return None
        try:
            return cls(physical_offset, log.store_timestamp(physical_offset))
        except (CorruptRecordError, OffsetOutOfRangeError):
            return None

    def stands_in(self, log: CommitLog) -> bool:
        """Tell whether the record still stands there, or was deleted with its file because of its age."""
        return (
            self.physical_offset < log.min_offset or LogMark.at(log, self.physical_offset) == self
        )


@dataclass(slots=True)
class LogCursor:
    """The physical offset after the last record that was seen, and that record.

    ``refused`` holds the bytes last seen at the cursor if they were not a record. ``is_disturbed``
    says that these bytes changed into something that is still not a record, so the cursor is not
    where a record begins.
    """

    position: int
    newest: LogMark | None = None
    refused: bytes = b""
    is_disturbed: bool = False

    @classmethod
    def at(cls, log: CommitLog, position: int) -> LogCursor:
        """Return a cursor at a place where a record will begin."""
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
        """Tell whether the cursor stands right after a record, or after the blank that follows it."""
        place = log.locate(physical_offset)
        end = physical_offset + log.frame(place)[0]
        if end == self.position:
            return True
        segment = place.segment
        if segment.end != self.position or not segment.start <= end < segment.end:
            return False
        return log.frame(log.locate(end))[1] == BLANK_MAGIC

    def step(self, log: CommitLog, run_started: int) -> Iterator[tuple[Bytes, Heads]]:
        """Yield the heads of the records that follow, and move past them.

        Args:
            log: of the store.
            run_started: since when, in ms, the broker runs that has the store now; 0 where that is
                not known.
        """
        size = _FIRST_BYTES
        while (segment := log.find(self.position)) is not None:
            window = window_at(log, segment, self.position, segment.start + log.size(segment), size)
            walked = self._without_unsure(window, run_started)
            if walked is not window and window.records.kind is StopKind.END and size < WINDOW_BYTES:
                size = WINDOW_BYTES  # a later record may vouch for the one that was refused
                continue
            for _, heads, whole in walked.heads():
                last = heads.take(slice(len(heads) - 1, None))
                self.newest = LogMark(*(int(last.column(name)[0]) for name in LogMark._fields))
                yield window.data, heads.take(whole)
            stop = walked.records
            reached = (
                segment.end
                if stop.kind is StopKind.BLANK and _is_begun(log, segment.end)
                else walked.stopped
            )
            is_stuck, self.position = reached == self.position, reached
            refused = (
                window.data[stop.position :][: FRAME_HEAD.itemsize]
                if stop.kind is StopKind.DAMAGE
                else None
            )
            self._note(refused, is_stuck)
            if is_stuck or walked.damage is not None:
                return
            size = min(_GROWTH * size, WINDOW_BYTES)

    def _without_unsure(self, window: Window, run_started: int) -> Window:
        """Leave out records from the first on that may not be of the log.

        A broker appends one record after the other, so the last one that the present run wrote
        vouches for all before it. After it, a torn record ends the log: its broker is still writing
        it, or a recovery will cut it. There a whole record of an earlier run ends it as well: a
        recovery has cut it off, and it is not written over yet.
        """
        starts = window.records.starts
        if not len(starts):
            return window
        sound, times = _checked(window)
        vouching = np.flatnonzero(sound & (times >= run_started))
        is_vouched = len(vouching) > 0 or (
            self.newest is not None and self.newest.store_timestamp >= run_started
        )
        first = int(vouching[-1]) + 1 if len(vouching) else 0
        refused = np.flatnonzero(~sound[first:] | is_vouched)
        if not len(refused):
            return window
        row = first + int(refused[0])
        kept = Walk(
            starts[:row], StopKind.DAMAGE, int(starts[row]), "torn, or cut off by a recovery"
        )
        return replace(window, records=kept)

    def _note(self, damage: Bytes | None, is_stuck: bool) -> None:
        found = b"" if damage is None else damage.tobytes()
        self.is_disturbed = bool(is_stuck and self.refused and found and found != self.refused)
        self.refused = found


def _checked(window: Window) -> tuple[Mask, NDArray[np.int64]]:
    """Return which of the records that were walked are whole, CRC included, and their store times, ms; (n,) each."""
    masks, times = [], []
    for _, heads, whole in window.heads():
        sound = whole & check_heads(heads, window.segment.start)
        good = heads.take(sound)
        sound[sound] = sound_crcs(window.data, good, stored_bodies(window.data, good))
        masks.append(sound)
        times.append(heads.column("store_timestamp"))
    return np.concatenate(masks), np.concatenate(times)


def _is_begun(log: CommitLog, physical_offset: int) -> bool:
    """Tell whether something stands in the segment that begins here.

    A commit of ours puts a blank before an empty segment for a moment, and then a record in place
    of the blank.
    """
    segment = log.find(physical_offset)
    return segment is not None and log.frame(Place(segment, 0)) != (0, 0)
