"""A mark of one record, to tell later whether the record still stands at its physical offset."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.storage.log.commitlog import CommitLog


@dataclass(frozen=True, slots=True)
class RecordMark:
    """The physical offset of a record, its size and the digest of its bytes."""

    physical_offset: int
    size: int
    sha256: str

    @classmethod
    def of(cls, physical_offset: int, record: bytes) -> RecordMark:
        """Return the mark of a record."""
        return cls(physical_offset, len(record), hashlib.sha256(record).hexdigest())

    def stands(self, log: CommitLog) -> bool:
        """Tell whether this very record stands at the physical offset."""
        try:
            stored = log.read(*log.locate(self.physical_offset), self.size)
        except (OffsetOutOfRangeError, CorruptRecordError):
            return False
        return RecordMark.of(self.physical_offset, stored.tobytes()) == self
