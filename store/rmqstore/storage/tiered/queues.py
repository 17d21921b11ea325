"""The queues of one broker in tiered storage, each of them with a log of its own.

Physical offsets in a unit, and in the record that it points to, are offsets in the log of the
queue. Everything else in a record is as the broker first stored it.

Source: FlatMessageFile.java, FlatCommitLogFile.java, FlatConsumeQueueFile.java.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple

from rmqstore.errors import OffsetOutOfRangeError, StoreFormatError
from rmqstore.format.layout import QUEUE_UNIT, SysFlag
from rmqstore.format.schema import Message
from rmqstore.spans import QueueKey
from rmqstore.storage.files.open_files import OpenFiles
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.tiered.folders import COMMIT_LOG, CONSUME_QUEUE, Tier
from rmqstore.storage.tiered.segments import Misfit, SegmentLister

_SYS_FLAG = slice(36, 40)  # of a record; see ``layout.FIXED_PART``
_FILES_AT_ONCE = 32
_QUEUES_AT_ONCE = 1 << 14  # whose listings are kept


class TieredQueue(NamedTuple):
    """One queue: its units and the log that they point into."""

    units: Queue
    log: CommitLog
    listers: tuple[SegmentLister, SegmentLister]

    @property
    def misfits(self) -> list[Misfit]:
        """Files that contradict their names or one another."""
        return [misfit for lister in self.listers for misfit in lister.misfits]

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


class TieredQueues:
    """The queues of a broker by topic and id; few of their files stay open.

    The listings are kept until :meth:`refresh`.
    """

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self._unit_files = OpenFiles(tier.storage, _FILES_AT_ONCE)
        self._log_files = OpenFiles(tier.storage, _FILES_AT_ONCE)
        self._open: OrderedDict[QueueKey, TieredQueue] = OrderedDict()
        self._ids: dict[str, list[int]] | None = None

    def topics(self) -> list[str]:
        """Return every topic with a queue, sorted."""
        return [topic for topic, queue_ids in self._queue_ids().items() if queue_ids]

    def ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self._queue_ids().get(topic, [])

    def queue(self, topic: str, queue_id: int) -> TieredQueue:
        """Return a queue; it is empty if there are no files."""
        key = (topic, queue_id)
        queue = self._open.get(key)
        if queue is None:
            queue = self._open[key] = self._open_queue(topic, queue_id)
            if len(self._open) > _QUEUES_AT_ONCE:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(key)
        return queue

    def _open_queue(self, topic: str, queue_id: int) -> TieredQueue:
        folder = self.tier.queue_folder(topic, queue_id)
        listers = SegmentLister(QUEUE_UNIT.itemsize), SegmentLister()
        # A broker writes records before their units, so units are listed first.
        units = ConsumeQueue(folder / CONSUME_QUEUE, self._unit_files, listers[0])
        log = CommitLog([folder / COMMIT_LOG], files=self._log_files, lister=listers[1])
        return TieredQueue(units, log, listers)

    def _queue_ids(self) -> dict[str, list[int]]:
        if self._ids is None:
            self._ids = {topic: self.tier.queue_ids(topic) for topic in self.tier.topics()}
        return self._ids

    def refresh(self) -> None:
        """List the files again."""
        self.tier.storage.refresh()
        self.close()
        self._ids = None

    def close(self) -> None:
        """Close all files, and forget their listings."""
        self._unit_files.close()
        self._log_files.close()
        self._open.clear()
