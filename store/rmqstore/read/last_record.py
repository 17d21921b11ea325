"""The record by which the log of a store or of a running broker is recognized."""

from __future__ import annotations

from typing import NamedTuple

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.storage.log.commitlog import CommitLog


class LastRecord(NamedTuple):
    """The newest known record of a log, which identifies the log later.

    If a recovery cut the log before it and the log was written on, another record is in its place.
    """

    physical_offset: int
    store_timestamp: int  # ms

    @classmethod
    def at(cls, log: CommitLog, physical_offset: int | None) -> LastRecord | None:
        """Return the record at a physical offset, None where there is none."""
        if physical_offset is None:
            return None
        try:
            return cls(physical_offset, log.store_timestamp(physical_offset))
        except (CorruptRecordError, OffsetOutOfRangeError):
            return None

    def is_in(self, log: CommitLog) -> bool:
        """Return whether the record still stands there, or was deleted with its file as too old."""
        if self.physical_offset < log.min_offset:
            return True
        return LastRecord.at(log, self.physical_offset) == self
