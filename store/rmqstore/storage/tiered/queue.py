"""One queue that has a log of its own: in tiered storage, or compacted.

Physical offsets in a unit, and in the record that it points to, are offsets in the log of the
queue. Everything else in a record is as the broker first stored it.

Source: FlatMessageFile.java, FlatCommitLogFile.java, FlatConsumeQueueFile.java, CompactionLog.java.
"""

from __future__ import annotations

from contextlib import suppress

from rmqstore.errors import OffsetOutOfRangeError, StoreFormatError
from rmqstore.format.layout import SysFlag
from rmqstore.format.schema import Message
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.sparse_consumequeue import SparseConsumeQueue
from rmqstore.storage.tiered.segments import Misfit, SegmentLister

_SYS_FLAG = slice(36, 40)  # of a record; see ``layout.FIXED_PART``


class TieredQueue:
    """One queue in tiered storage.

    Args:
        units: its units.
        log: the log that they point into.
        listers: what lists the files of the two.
    """

    is_sparse = False  # whether queue offsets between those of messages may have no message

    def __init__(self, units: Queue, log: CommitLog, listers: tuple[SegmentLister, ...]) -> None:
        self.units, self.log, self._listers = units, log, listers

    def misfits(self) -> list[Misfit]:
        """Return the files that contradict their names or one another."""
        return [misfit for lister in self._listers for misfit in lister.misfits]

    def range(self) -> tuple[int, int]:
        """Return the first queue offset whose record is there, and the one after the last unit.

        Retention deletes units and records each for itself, so the first units may point at
        records that are gone.

        Source: FlatMessageFile.java#getConsumeQueueMinOffset.
        """
        end = self.units.end()
        return self.units.first(end, self.log.min_offset), end

    def message(self, queue_offset: int) -> Message:
        """Return the message that a unit points at; raises as ``CommitLog.get`` does."""
        return self.log.get(self.units.unit(queue_offset)[0], check_crc=False)

    def holds_inner_batches(self, start: int, end: int) -> bool:
        """Tell whether the first or the last record of a range holds an inner batch.

        A broker uploads such a record with each of its messages.
        """
        for queue_offset in {start, end - 1}:
            with suppress(StoreFormatError, OffsetOutOfRangeError):
                place = self.log.locate(self.units.unit(queue_offset)[0])
                head = self.log.read(*place, _SYS_FLAG.stop)
                if int.from_bytes(head.data[_SYS_FLAG]) & SysFlag.INNER_BATCH:
                    return True
        return False

    def refresh(self) -> None:
        """List the files again."""
        self.units.refresh()
        self.log.refresh()

    def close(self) -> None:
        """Close the files."""
        self.units.close()
        self.log.close()


class CompactedQueue(TieredQueue):
    """One queue of a topic with ``cleanup.policy=COMPACTION``, whose messages have gaps between.

    Source: CompactionLog.java.
    """

    is_sparse = True

    def __init__(self, units: SparseConsumeQueue, log: CommitLog) -> None:
        super().__init__(units, log, ())
        self._sparse = units

    def misfits(self) -> list[Misfit]:
        """Return the files of units without one of the log, and the reverse; see #sanityCheck."""
        found = [Misfit(file, 0, reason) for file, reason in self._sparse.overlaps()]
        logged = {segment.path.name: segment.file for segment in self.log.segments}
        named = self._sparse.files()
        for files, others, wanted in ((named, logged, "log"), (logged, named, "units")):
            found += [
                Misfit(files[name], 0, f"there is no file of the {wanted} with its name")
                for name in sorted(files.keys() - others.keys())
            ]
        return found

    def range(self) -> tuple[int, int]:
        """Return 0, and the queue offset after the last message.

        The broker serves the first message that is left for any offset before it.
        """
        return 0, self.units.end()

    def holds_inner_batches(self, _start: int, _end: int) -> bool:
        """Return False: such a record has no keys of its own, and so it is not in this log."""
        return False
