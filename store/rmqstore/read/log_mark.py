"""The record by which the log of a store or of a running broker is recognized."""

from __future__ import annotations

from typing import NamedTuple

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.storage.log.commitlog import CommitLog


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
        """Return whether the record still stands there, or was deleted with its file as too old."""
        if self.physical_offset < log.min_offset:
            return True
        return LogMark.at(log, self.physical_offset) == self
