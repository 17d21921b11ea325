"""The queues of one store: their names, and each of them, opened on demand.

Source: ConsumeQueueStore.java.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmqstore.errors import StoreStateError
from rmqstore.spans import FOREVER, QueueKey
from rmqstore.storage.files.mapped_file_queue import OpenFiles
from rmqstore.storage.files.paths import StorePaths, can_name_queues, ext_folders
from rmqstore.storage.files.recent import Recent
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import ConsumeQueue, ConsumeQueueExt
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.queue_set import RecoveredQueue, open_files
from rmqstore.storage.queue.queue_source import QueuePart
from rmqstore.storage.recovery.store_ends import StoreEnds
from rmqstore.storage.recovery.unit_checks import confirmed_end

_FILES_AT_ONCE = 32

_QUEUES_AT_ONCE = 1 << 16  # whose listings are kept, about a kilobyte each

_BATCH_QUEUES_AT_ONCE = 64


class _Opened:
    """The queues that were opened since the last refresh: plain ones, and others by their kind."""

    def __init__(self) -> None:
        self.plain: Recent[QueueKey, Queue] = Recent(_QUEUES_AT_ONCE)
        self.batches: Recent[QueueKey, Queue] = Recent(_BATCH_QUEUES_AT_ONCE)  # which keep units
        self.exts: Recent[QueueKey, ConsumeQueueExt] = Recent(_QUEUES_AT_ONCE)
        self.batch_topics: set[str] | None = None  # those with a folder


class Queues:
    """Queues by topic and id: those with a folder, and those that only the log of a crash has.

    They are the source of what the log of the store has of the queues.

    The listings of queues that were opened are kept until :meth:`refresh`; few of their files stay
    open. A thread that reads a queue meanwhile keeps the listing that it has.

    Args:
        paths: paths of the store.
        log: its CommitLog.
        ends: the ends of queues that their files lack, and the queues in RocksDB to which these
            belong; asked for on demand.
    """

    def __init__(self, paths: StorePaths, log: CommitLog, ends: StoreEnds) -> None:
        self._paths = paths
        self._log = log
        self._ends = ends
        self._files = OpenFiles(paths.storage, _FILES_AT_ONCE)
        self._opened = _Opened()

    def open(self, topic: str, queue_id: int) -> Queue:
        """Return a queue, as of the last :meth:`refresh` or of its first use since.

        Raises:
            StoreStateError: its files lack more units than memory should hold.
        """
        key = (topic, queue_id)
        opened = self._opened
        queue = opened.plain.get(key) or opened.batches.get(key)
        if queue is not None:
            return queue
        tail = self._ends.recovered.get(key)
        if tail is None:
            queue = self._open_files(opened, topic, queue_id)
        elif tail.is_short:
            raise StoreStateError(
                f"{topic}-{queue_id}: its files lack more units than memory should hold; "
                "read it with `scan=commitlog`, or build the queues with `rmqstore rebuild`"
            )
        else:
            files = self._open_files(opened, topic, queue_id, is_batch=tail.is_batch)
            queue = RecoveredQueue(files, tail)
        return (opened.batches if queue.is_batch else opened.plain).put(key, queue)

    def part(self, topic: str, queue_id: int) -> QueuePart:
        """Return the messages of a queue that are in the log.

        Damaged units between the first and the last count as messages; reading them reports the
        damage.
        """
        queue = self.open(topic, queue_id)
        end = queue.end()
        log_end = self._ends.log_end
        first = queue.first(end, self._log.min_offset)
        if log_end is not None and not queue.is_recovered:
            cut = queue.cut(first, end, log_end.physical_offset)
            end = confirmed_end(self._log, queue, (topic, queue_id), cut, log_end.physical_offset)
            first = min(first, end)
        return QueuePart(self._log, queue, first, end, self._log.folders)

    def part_of(self, key: QueueKey, start: int, end: int) -> QueuePart:
        """Return a range of a queue, whether or not its messages are in the log."""
        return QueuePart(self._log, self.open(*key), start, end, self._log.folders)

    def first(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message in the log, ``FOREVER`` without one."""
        queue = self.open(topic, queue_id)
        end = queue.end()
        first = queue.first(end, self._log.min_offset)
        return first if first < end else FOREVER

    def prefetch_ends(self, queues: Iterable[Queue]) -> None:
        """Begin to fetch the bytes that show the bounds of queues."""
        pairs = [queue.end_files for queue in queues if queue.end_files is not None]
        firsts, lasts = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
        self._paths.storage.prepare(firsts | lasts, first=firsts, last=lasts)

    def _open_files(
        self, opened: _Opened, topic: str, queue_id: int, *, is_batch: bool = False
    ) -> Queue:
        batch_topics = opened.batch_topics
        if batch_topics is None:
            batch_topics = opened.batch_topics = {*self._paths.batch_folders.topics()}
        in_rocksdb = self._ends.in_rocksdb
        if is_batch or topic in batch_topics or in_rocksdb is not None:
            return open_files(
                self._paths,
                topic,
                queue_id,
                is_batch=is_batch,
                files=self._files,
                in_rocksdb=in_rocksdb,
                log=self._log,
            )
        return ConsumeQueue(self._paths.queue_folders.queue_name(topic, queue_id), self._files)

    def open_ext(self, topic: str, queue_id: int) -> ConsumeQueueExt:
        """Return the extension of a queue, which is empty for most queues.

        It stays open until too many others are open.
        """
        key = (topic, queue_id)
        exts = self._opened.exts
        ext = exts.get(key)
        if ext is not None:
            return ext
        folder = ext_folders(self._paths).queue(topic, queue_id)
        return exts.put(key, ConsumeQueueExt([folder], self._files))

    @property
    def lack_records(self) -> bool:
        """Whether files of queues lack records that the log has, or may as they are damaged."""
        return self._ends.rocksdb_damage is not None or bool(self._ends.recovered)

    def topics(self) -> list[str]:
        """Return every topic with queues on the disk or recovered from the log, sorted."""
        on_disk = {*self._paths.queue_folders.topics(), *self._paths.batch_folders.topics()}
        in_rocksdb = self._ends.in_rocksdb
        if in_rocksdb is not None:
            on_disk |= in_rocksdb.topics()
        return sorted(on_disk | {topic for topic, _ in self._ends.recovered})

    def batch_topics(self) -> set[str]:
        """Return the topics with BatchConsumeQueues."""
        recovered = (topic for (topic, _), tail in self._ends.recovered.items() if tail.is_batch)
        return {*self._paths.batch_folders.topics(), *recovered}

    def ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        in_rocksdb = self._ends.in_rocksdb
        on_disk = set() if in_rocksdb is None else {*in_rocksdb.queue_ids(topic)}
        if can_name_queues(topic):
            on_disk.update(self._paths.queue_folders.queue_ids(topic))
            on_disk.update(self._paths.batch_folders.queue_ids(topic))
        return sorted(on_disk | {number for name, number in self._ends.recovered if name == topic})

    def plain(self) -> list[QueueKey]:
        """Return every queue that can be read from its files."""
        if self._ends.rocksdb_damage is not None:
            return []
        return [(topic, queue_id) for topic in self.topics() for queue_id in self.ids(topic)]

    def drop(self, key: QueueKey) -> None:
        """Give up a queue, so that it is opened from its files again."""
        self._opened.plain.drop(key)
        self._opened.batches.drop(key)

    def refresh(self) -> None:
        """List the files of a queue again when it is used next; it may be of another kind then."""
        self._files.forget()
        self._opened = _Opened()

    def close(self) -> None:
        """Close all files, and forget all listings."""
        self.refresh()
        self._files.close()
