"""From records of the log to queue units and index items: for what was just appended, and for rebuilding.

Source: DefaultMessageStore.java#ReputMessageService, #CommitLogDispatcherBuildConsumeQueue, #…BuildIndex.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np

from rmqstore.commitlog import CommitLog
from rmqstore.config import StoreConfig
from rmqstore.errors import CorruptQueueError, CorruptRecordError
from rmqstore.files.disk import Disk
from rmqstore.files.mapped_file_queue import Segment
from rmqstore.files.paths import can_have_queue
from rmqstore.findings import Finding
from rmqstore.format.frames import StopKind, find_next_record, heads_of, walk
from rmqstore.format.heads import Heads
from rmqstore.format.layout import Bytes
from rmqstore.format.multi_dispatch import lmq_heads
from rmqstore.format.requests import QueueUnits, Requests, have_units, read_requests, rows_by_queue
from rmqstore.index_sizes import IndexSizes
from rmqstore.indexfile import IndexFile, IndexKeys, index_files, next_name
from rmqstore.queuewriter import QueueAppender

_WINDOW_BYTES = 128 << 20
_KEYS_AT_ONCE = 1 << 20
_MAX_FINDINGS = 1000

Progress = Callable[[int, int], None]  # told now and then: bytes of the log done, and all of them


def untold(done: int, total: int) -> None:
    """Take progress that nobody asked for."""


class Dispatcher:
    """Builds queues and index of a store from its log.

    Args:
        open_queue: gives the end of a queue, by topic and queue id.
        is_tolerant: pass over what is damaged, and name it in :attr:`findings`; queues that do not fit the log stand in
            :attr:`misfits`, and nothing more is put into them.
    """

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        index_folder: Path,
        config: StoreConfig,
        open_queue: Callable[[str, int], QueueAppender],
        *,
        is_tolerant: bool = False,
    ) -> None:
        self._disk, self._log, self._config = disk, log, config
        self._open_queue, self._is_tolerant = open_queue, is_tolerant
        self._index = IndexAppender(disk, index_folder, IndexSizes.of(config))
        self._touched: dict[tuple[str, int], QueueAppender] = {}
        self.findings: list[Finding] = []
        self.misfits: dict[tuple[str, int], CorruptQueueError] = {}

    def dispatch(self, start: int, end: int, progress: Progress = untold) -> None:
        """Build units and items of the records in ``[start, end)``; those that are there already are stepped over.

        Raises:
            CorruptRecordError: the range holds something that is not a record, and the dispatcher is not tolerant.
        """
        for low, high, segment in self._log.stretches(start, end):
            if segment is None:
                self._meet(self._log.folders, low, f"no file holds the log from {low} to {high}")
            else:
                self._dispatch_segment(segment, low - segment.start, high - segment.start)
                progress(high - start, end - start)

    def _dispatch_segment(self, segment: Segment, at: int, stop: int) -> None:
        data, path = self._log.data(segment), str(segment.path)
        while at < stop:
            found = walk(data, at, min(at + _WINDOW_BYTES, stop), segment.start)
            for starts, heads, whole in heads_of(data, found):
                sound = whole & (heads.column("physical_offset") == starts + segment.start)
                for row in np.flatnonzero(~sound).tolist():
                    self._meet(path, segment.start + int(starts[row]), "not a whole record of this place")
                kept = heads if sound.all() else heads.take(np.flatnonzero(sound))
                if len(kept):
                    self.put(read_requests(data, kept))
                    self._put_lmq(data, kept)
            at = found.position
            if found.kind is StopKind.BLANK:
                return
            if found.kind is not StopKind.END:
                self._meet(path, segment.start + at, found.reason or found.kind.value)
                at = find_next_record(data, at + 1, stop, segment.start)

    def _meet(self, path: str, physical_offset: int, reason: str) -> None:
        """Take notice of damage in the log.

        Raises:
            CorruptRecordError: it is not to be passed over.
        """
        if not self._is_tolerant:
            raise CorruptRecordError(path, physical_offset, f"{reason}; nothing is built after it")
        self._find("log", f"{path}, {physical_offset}", f"{reason}; nothing was built of it")

    def _find(self, part: str, place: str, text: str) -> None:
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(Finding(part, place, text))
        elif len(self.findings) == _MAX_FINDINGS:
            self.findings.append(Finding(part, self._log.folders, f"more than {_MAX_FINDINGS} findings"))

    def put(self, requests: Requests) -> None:
        """Append units and items of records that are in the log, in its order."""
        units = requests.units if requests.has_unit.all() else requests.units.take(requests.has_unit)
        self._put_units(units)
        if self._config.message_index_enable:
            offsets = requests.units.units["physical_offset"].astype(np.int64)
            keys = IndexKeys(
                requests.key_hashes, offsets[requests.key_rows], requests.units.store_timestamps[requests.key_rows]
            )
            self._index.add(keys)

    def _put_lmq(self, data: Bytes, heads: Heads) -> None:
        """Append units of the light message queues that records name. Source: LmqDispatch.java."""
        named = lmq_heads(data, heads.take(have_units(heads.column("sys_flag"))))
        if len(named):
            self._put_units(read_requests(data, named).units)

    def _put_units(self, units: QueueUnits) -> None:
        """Group units by queue, each queue's in the order of the log, and append them."""
        for rows in rows_by_queue(units.topic_codes, units.queue_ids):
            row = int(rows[0])
            key = (units.topics[int(units.topic_codes[row])], int(units.queue_ids[row]))
            if key in self.misfits:
                continue
            if self._is_tolerant and not can_have_queue(*key):
                for physical_offset in units.units["physical_offset"][rows].tolist():
                    text = f"the record at {physical_offset} names a topic or queue id that no folder can have"
                    self._find("queue", f"{key[0]!r}-{key[1]}", f"{text}; it has no unit")
                continue
            try:
                queue = self._touched.get(key)
                if queue is None:
                    queue = self._touched[key] = self._open_queue(*key)
                queue.append(units.queue_offsets[rows], units.units[rows])
            except CorruptQueueError as err:
                if not self._is_tolerant:
                    raise
                self.misfits[key] = err

    def flush(self) -> None:
        """Bring queues and index to the disk."""
        for (topic, queue_id), queue in self._touched.items():
            queue.settle()
            for _, text in queue.misplaced:
                self._find("queue", f"{topic}-{queue_id}", text)
            queue.misplaced.clear()
        self._disk.flush_all([path for queue in self._touched.values() for path in queue.touched])
        for queue in self._touched.values():
            queue.touched.clear()
        self._touched.clear()
        self._index.flush()


class IndexAppender:
    """The index as a whole: the file that has room, and the next one. Source: IndexService.java."""

    def __init__(self, disk: Disk, folder: Path, sizes: IndexSizes) -> None:
        self._disk, self._folder, self._sizes = disk, folder, sizes
        files = index_files(folder)
        self._last = IndexFile(disk, files[-1], sizes) if files else None
        # Source: IndexService.java#buildIndex: what lies before the end of the index is in it. Of the record at the end
        # some keys may have gone to a file that is lost: those that are there are counted.
        self._waiting: list[IndexKeys] = []
        self._n_waiting = 0
        self._reached, self._has_of_reached = -1, 0
        if self._last is not None and self._last.end_timestamp:
            self._reached = self._last.end_phy_offset
            self._has_of_reached = _items_of(self._reached, files, disk, sizes)

    def add(self, keys: IndexKeys) -> None:
        """Add keys; those that are there already are stepped over. They reach the files by and by."""
        self._waiting.append(keys)
        self._n_waiting += len(keys)
        if self._n_waiting >= _KEYS_AT_ONCE:
            self._put_waiting()

    def _put_waiting(self) -> None:
        """Put many keys at once: a put flushes several times, and reads and writes slots all over the file."""
        if self._n_waiting:
            columns = zip(*self._waiting, strict=True)
            hashes, offsets, times = (np.concatenate(column) for column in columns)
            self._put(IndexKeys(hashes, offsets, times))
        self._waiting.clear()
        self._n_waiting = 0

    def _put(self, keys: IndexKeys) -> None:
        at = int(np.searchsorted(keys.physical_offsets, self._reached))
        of_reached = int(np.searchsorted(keys.physical_offsets, self._reached, side="right")) - at
        at += min(of_reached, self._has_of_reached)
        while at < len(keys):
            if self._last is None or not self._last.room:
                if self._last is not None:
                    self._disk.flush(self._last.path)
                self._last = self._begin(self._last)
            count = min(self._last.room, len(keys) - at)
            self._last.put(keys.take(slice(at, at + count)))
            at += count

    def _begin(self, last: IndexFile | None) -> IndexFile:
        name = next_name(None if last is None else last.path.name, datetime.now().astimezone())
        return IndexFile.create(self._disk, self._folder / name, self._sizes, last)

    def flush(self) -> None:
        """Bring all keys to the disk."""
        self._put_waiting()
        if self._last is not None:
            self._disk.flush(self._last.path)
            self._disk.flush_folder(self._folder)


def _items_of(physical_offset: int, files: list[Path], disk: Disk, sizes: IndexSizes) -> int:
    """Return how many items at the end of the index are of one record; a record's keys may straddle files."""
    total = 0
    for path in reversed(files):
        file = IndexFile(disk, path, sizes)
        count = file.items_at_end(physical_offset)
        total += count
        if count < file.n_items:
            break
    return total
