"""The files of a queue, of the kind of its folder, and its end in the log.

Source: ConsumeQueueStore.java, CombineConsumeQueueStore.java.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.format.layout import MAX_FILE_BYTES, QUEUE_UNIT, Mask
from rmqstore.format.text import decode_text
from rmqstore.spans import FOREVER, QueueKey
from rmqstore.storage.files.mapped_file_queue import OpenFiles
from rmqstore.storage.files.paths import StorePaths, has_queue_folder
from rmqstore.storage.files.storage import is_folder
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue import consumequeue
from rmqstore.storage.queue.batch_consumequeue import BatchConsumeQueue
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import (
    Queue,
    RecoveredUnits,
    Units,
    find_first,
    records_end,
    whole_end,
)
from rmqstore.storage.queue.rocksdb_queue import RocksDbQueue, RocksDbQueues


class RecoveredQueue:
    """The files of a queue up to a queue offset, and units from the log from there on.

    Args:
        files: the queue as its files have it.
        tail: the units from the log.
    """

    is_recovered = True
    is_present = True

    def __init__(self, files: Queue, tail: RecoveredUnits) -> None:
        self._files = files
        self._tail = tail

    @property
    def is_batch(self) -> bool:
        return self._files.is_batch

    @property
    def end_files(self) -> tuple[str, str] | None:
        """The first and the last file."""
        return self._files.end_files

    @property
    def n_full_bytes(self) -> int:
        """The length in bytes of all files but the last, and of the recovered units."""
        return self._files.n_full_bytes + self._tail.units.nbytes

    @property
    def begin(self) -> int:
        """The first queue offset that has a unit."""
        begin = self._files.begin
        return begin if begin < min(self._files.end(), self._tail.start) else self._tail.start

    def end(self) -> int:
        """Return the queue offset after the last recovered unit."""
        return self._tail.end

    def first(self, end: int, min_physical_offset: int) -> int:
        """Return the first queue offset before ``end`` whose record still exists, else ``end``."""
        files_end = min(end, self._tail.start)
        if self.begin < files_end:
            first = self._files.first(files_end, min_physical_offset)
            if first < files_end:
                return first
        return find_first(
            files_end, end, lambda offset: self.unit(offset)[0] >= min_physical_offset
        )

    def cut(self, start: int, end: int, log_end: int) -> int:
        """Return the queue offset in ``[start, end]`` after the last unit before the log end."""
        tail_start = min(max(self._tail.start, start), end)
        cut = find_first(tail_start, end, lambda offset: self.unit(offset)[0] >= log_end)
        return cut if cut > tail_start else self._files.cut(start, tail_start, log_end)

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that have units, rising."""
        low, high = max(start, self._tail.start), min(end, self._tail.end)
        tail = (low, high) if low < high else None
        for run in self._files.runs(start, min(end, self._tail.start)):
            if tail is not None and run[1] == tail[0]:
                tail = (run[0], tail[1])
            else:
                yield run
        if tail is not None:
            yield tail

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of one unit; zeros if there is none."""
        if queue_offset < self._tail.start:
            return self._files.unit(queue_offset)
        if queue_offset >= self._tail.end:
            return 0, 0, 0
        unit: tuple[int, int, int] = self._tail.units[queue_offset - self._tail.start].item()
        return unit

    def units(self, start: int, end: int) -> Units:
        """Return the units ``[start, end)``, which have to lie in one of :meth:`runs`.

        Raises:
            OffsetOutOfRangeError: some are missing.
        """
        files_end = max(min(end, self._tail.start), start)
        tail = self._whole_tail(files_end, end)
        if start >= files_end:
            return tail
        return Units.joined(self._files.units(start, files_end), tail)

    def units_of(self, queue_offsets: NDArray[np.int64]) -> Units:
        """Return the units with rising queue offsets; zeros where there is none."""
        bounds = np.searchsorted(queue_offsets, [self._tail.start, self._tail.end])
        tail_first, tail_stop = bounds.tolist()
        ordinals = queue_offsets[tail_first:tail_stop] - self._tail.start
        n_after = len(queue_offsets) - tail_stop
        return Units.joined(
            self._files.units_of(queue_offsets[:tail_first]),
            Units.of(self._tail.units[ordinals]),
            Units.of(np.zeros(n_after, QUEUE_UNIT)),
        )

    def prefetch(self, queue_offsets: NDArray[np.int64], count: int) -> None:
        """Begin to fetch ``count`` units from each queue offset (n,) on, which are read next."""
        self._files.prefetch(queue_offsets[queue_offsets < self._tail.start], count)

    def weights(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the bytes of the log that each message in ``[start, end)`` takes, (n,).

        Raises as :meth:`units` does.
        """
        files_end = max(min(end, self._tail.start), start)
        tail = self._whole_tail(files_end, end)
        weights = np.where(self._begin_records(tail), np.clip(tail.sizes, 0, MAX_FILE_BYTES), 0)
        if start >= files_end:
            return weights
        return np.concatenate((self._files.weights(start, files_end), weights))

    def count_units(self, start: int, end: int, min_physical_offset: int) -> int:
        """Return how many units of ``[start, end)`` point at or after ``min_physical_offset``."""
        files_end = max(min(end, self._tail.start), start)
        tail = self._tail_units(files_end, end)
        is_counted = self._begin_records(tail) & (tail.sizes > 0)
        is_counted &= tail.physical_offsets >= min_physical_offset
        n_in_files = self._files.count_units(start, files_end, min_physical_offset)
        return n_in_files + int(np.count_nonzero(is_counted))

    def location(self, queue_offset: int) -> tuple[str, int]:
        """Return the file of a unit and its position there; both may not exist yet."""
        return self._files.location(queue_offset)

    def refresh(self) -> None:
        """List the files again."""
        self._files.refresh()

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _tail_units(self, start: int, end: int) -> Units:
        """Return the recovered units in ``[start, end)``."""
        first = max(start - self._tail.start, 0)
        stop = max(end - self._tail.start, 0)
        return Units.of(self._tail.units[first:stop])

    def _whole_tail(self, start: int, end: int) -> Units:
        """Return the recovered units ``[start, end)``.

        Raises:
            OffsetOutOfRangeError: the log does not have all of them.
        """
        units = self._tail_units(start, end)
        if len(units.sizes) < end - start:
            raise OffsetOutOfRangeError(
                f"{self._files.location(start)[0]}: queue offsets {start} to {end}: "
                f"the log has only {self._tail.start} to {self._tail.end}"
            )
        return units

    def _begin_records(self, tail: Units) -> Mask:
        """Return a mask (n,) of the units that do not share the record of the unit before them."""
        begins = np.ones(len(tail.sizes), np.bool_)
        if self.is_batch:
            begins[1:] = tail.physical_offsets[1:] != tail.physical_offsets[:-1]
        return begins


def open_files(
    paths: StorePaths,
    topic: str,
    queue_id: int,
    *,
    is_batch: bool = False,
    files: OpenFiles | None = None,
    in_rocksdb: RocksDbQueues | None = None,
    log: CommitLog | None = None,
) -> Queue:
    """Return a queue as the disk has it. The folder that exists decides its kind.

    A queue that is in files and in RocksDB is read from where it reaches further into the log.

    Args:
        paths: paths of the store.
        topic: topic name.
        queue_id: queue id.
        is_batch: whether a queue without a folder is a BatchConsumeQueue.
        files: opens the files, and may be shared with other queues.
        in_rocksdb: the queues in RocksDB, None if the store has none there.
        log: the log of the store, whose records confirm units of batches that leap ahead, and whose
            begin shows whether the first files of a queue are missing.

    Raises:
        StoreStateError: the topic cannot name a folder.

    Source: CombineConsumeQueueStore.java.
    """
    files = files or OpenFiles(paths.storage)
    if in_rocksdb is not None and _in_rocksdb(paths, in_rocksdb, (topic, queue_id), files, log):
        return RocksDbQueue(in_rocksdb, (topic, queue_id))
    folder = paths.batch_folders.queue(topic, queue_id)
    plain = paths.queue_folders.queue(topic, queue_id)
    is_batch |= is_folder(paths.storage, folder)
    # A topic has queues of one kind, also where the folder of one of them is lost.
    if is_batch or (paths.batch_folders.has_topic(topic) and not is_folder(paths.storage, plain)):
        return BatchConsumeQueue(folder, files, log)
    return ConsumeQueue(plain, files)


def is_in_rocksdb(queue: Queue) -> bool:
    """Return whether a queue is read from RocksDB."""
    return isinstance(queue, RocksDbQueue)


def _in_rocksdb(
    paths: StorePaths,
    in_rocksdb: RocksDbQueues,
    key: QueueKey,
    files: OpenFiles,
    log: CommitLog | None,
) -> bool:
    """Return whether a queue has to be read from RocksDB, of a store that has queues there.

    A broker that writes both kinds keeps the files complete. It may also have changed from one kind
    to the other, or have left an empty folder.

    Source: CombineConsumeQueueStore.java.
    """
    topic, queue_id = key
    if not has_queue_folder(paths, topic):
        return True
    if is_folder(paths.storage, paths.batch_folders.queue(topic, queue_id)):
        return False
    bounds = in_rocksdb.bounds.get(key)
    in_files = ConsumeQueue(paths.queue_folders.queue_name(topic, queue_id), files)
    if bounds is None or not in_files.is_present:
        return not in_files.is_present
    begin, end = in_files.begin, in_files.end()
    if [*in_files.runs(begin, end)] != [(begin, end)]:  # one of them is missing, or cut
        return True
    unit_before = RocksDbQueue(in_rocksdb, key).unit(begin - 1)  # zeros without one
    if log is not None and unit_before[0] >= log.min_offset and unit_before[1] > 0:
        return True
    return end <= bounds.last or in_files.unit(end - 1)[0] < bounds.last_physical_offset


def kept_end(queue: Queue, log_end: int, *, is_cut: bool = False) -> int:
    """Return the queue offset after the last unit that a starting broker keeps.

    The arguments are those of :func:`consumequeue.kept_end`. In RocksDB a queue ends with the log.
    """
    if isinstance(queue, BatchConsumeQueue):
        return queue.kept_end(log_end, is_cut=is_cut)
    if isinstance(queue, ConsumeQueue):
        return consumequeue.kept_end(queue, log_end, is_cut=is_cut)
    return queue.cut(queue.begin, queue.end(), log_end)


def built_end(queue: Queue) -> int:
    """Return the physical offset up to which a starting broker takes the log for built by a queue.

    -1 if the queue does not show it, as where the files that are looked at begin with zeros. A
    BatchConsumeQueue shows where its last record begins.

    Source: ConsumeQueueInterface.java#getMaxPhysicOffset.
    """
    end = kept_end(queue, FOREVER)
    if begins_file(queue, end) and recovered_begin(queue) == end:
        return -1
    physical_offset, size, _ = queue.unit(end - 1)
    return physical_offset if queue.is_batch and size > 0 else records_end(queue, end)


def recovered_begin(queue: Queue) -> int:
    """Return the queue offset from which on a starting broker looks at units, in its last files."""
    if not isinstance(queue, ConsumeQueue):
        return queue.begin
    files = consumequeue.recovered_files(queue.segments)
    return files[0].start // queue.position(1) if files else 0


def begins_file(queue: Queue, queue_offset: int) -> bool:
    """Return whether a file of a ConsumeQueue begins with the unit of a queue offset."""
    if not isinstance(queue, ConsumeQueue):
        return False
    position = queue.position(queue_offset)
    return any(segment.start == position and segment.size for segment in queue.segments)


def ends_file(queue: Queue, queue_offset: int) -> bool:
    """Return whether the last file of a ConsumeQueue ends with the unit before a queue offset."""
    if not isinstance(queue, ConsumeQueue) or not queue.segments:
        return False
    return queue.segments[-1].end == queue.position(queue_offset)


def found_again(queue: Queue, kept: int, end: int, log_end: int) -> range:
    """Return the queue offsets of old units that follow on those that a broker has built.

    It looks through the last file when it has built, and takes the first unit whatever it holds.

    Args:
        queue: the queue as it was.
        kept: queue offset after the last unit that it kept before it built.
        end: queue offset after the last unit that it built.
        log_end: physical offset where it ends the log.

    Source: ConsumeQueue.java#truncateDirtyLogicFiles.
    """
    if isinstance(queue, ConsumeQueue):
        size = queue.position(1)
        for segment in queue.segments:
            first, file_end = segment.start // size, segment.end // size
            if first <= kept and end < file_end and queue.unit(first)[0] < log_end:
                start = max(end, first + 1)
                stop = min(file_end, queue.end())
                return range(start, whole_end(queue, start, stop, log_end))
    return range(end, end)


def misnamed_files(queue: Queue, key: QueueKey, log: CommitLog) -> Iterator[tuple[Path, int]]:
    """Yield the files of a queue that hold the units of a missing file, and where that begins.

    Files that follow on another one are left out: a crash shifts units within a queue.
    """
    if not isinstance(queue, ConsumeQueue):
        return
    size, before = queue.position(1), 0
    starts = {segment.start for segment in queue.segments}
    for segment in queue.segments:
        follows, before = segment.start == before, segment.end
        if follows or not segment.size:
            continue
        named = _named_offset(queue.unit(segment.start // size)[0], key, log)
        start = segment.start if named is None else queue.position(named)
        if start not in starts and (segment.start - start) % segment.size == 0:
            yield segment.path, start


def _named_offset(physical_offset: int, key: QueueKey, log: CommitLog) -> int | None:
    """Return the queue offset in a record; None if there is none of the queue."""
    try:
        record = log.parts(physical_offset)
    except (CorruptRecordError, OffsetOutOfRangeError):
        return None
    if (decode_text(record.topic), int(record.fixed["queue_id"])) != key:
        return None
    return int(record.fixed["queue_offset"])
