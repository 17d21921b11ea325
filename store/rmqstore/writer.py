"""A store opened for writing: the lock, the order in which log, queues, index and checkpoint reach the disk.

Source: DefaultMessageStore.java. What shows when, and why nothing is half there after a crash, is in FORMAT.md.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.brokerconfig import SYSTEM_TOPICS
from rmqstore.commitlog import CommitLog
from rmqstore.config import StoreConfig
from rmqstore.dispatch import Dispatcher, Progress, untold
from rmqstore.errors import (
    CommitError,
    CorruptRecordError,
    IllegalMessageError,
    RmqStoreError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.files.disk import Disk
from rmqstore.files.lock import StoreLock
from rmqstore.files.paths import StorePaths
from rmqstore.format.decode import topics
from rmqstore.format.encode import RecordColumns, Records, encode_batches, require_room, row_batches, stamp
from rmqstore.format.heads import Heads, read_heads
from rmqstore.format.hosts import pack_hosts
from rmqstore.format.layout import Bytes
from rmqstore.format.requests import Groups, Places, Requests, group_by_queue, have_units, read_requests
from rmqstore.format.schema import VERBATIM
from rmqstore.indexfile import IndexSizes, find_sizes, index_files, read_header, was_ended
from rmqstore.ledger import Ledger
from rmqstore.logwriter import LogAppend
from rmqstore.messages import MessageMaker, WriteSpec, now_ms
from rmqstore.queueoffsets import QueueOffsets
from rmqstore.queuewriter import QueueAppender
from rmqstore.repair import Repairer
from rmqstore.topicconfig import queue_nums, register_topics

logger = logging.getLogger(__name__)

_MAX_WAITING = 3_000_000  # rows, of some 50 bytes
_MAX_UNREAD = 3  # batches
_ENCODED_ROWS = 1 << 16


class StoreWriter:
    """The one writer of a store. Rows appended show at :meth:`flush`, all of them at once.

    A context manager: leaving it flushes and closes; leaving it by an exception takes back what was not flushed.

    Raises:
        StoreLockedError: a broker or another writer has the store.
    """

    def __init__(
        self,
        paths: StorePaths,
        config: StoreConfig,
        disk: Disk | None = None,
        *,
        spec: WriteSpec | None = None,
        truncate: bool = False,
    ) -> None:
        self.paths, self.config, self._truncate = paths, config, truncate
        self._spec = spec or WriteSpec(max_message_size=config.max_message_size)
        self._disk = disk or Disk()
        self._lock = StoreLock(paths.lock)
        try:
            self._open()
        except BaseException:
            self._disk.close()
            self._lock.release()
            raise

    def _open(self) -> None:
        if self.paths.has_rocksdb_queues:
            raise UnsupportedFeatureError(f"{self.paths.consumequeue} holds RocksDB queues, which cannot be written")
        self._log = CommitLog(self.paths.commitlogs)
        self.config = existing_config(self.paths, self._log, self.config)
        self._repairer = Repairer(self._disk, self.paths, self.config, self._log, truncate=self._truncate)
        repaired = self._repairer.repair()
        self._queues: dict[tuple[str, int], QueueAppender] = {}
        self._waiting = _Waiting()
        self._last_store_timestamp = repaired.last_store_timestamp
        self._checkpoint = repaired.checkpoint
        self._append = self._begin(repaired.end)
        self._offsets = QueueOffsets(self._next_queue_offset)
        self._highest_queue: dict[str, int] = {}
        self._is_whole = True  # queues and index hold all that the log holds
        self._batch_topics = self.paths.batch_topics()
        nums = {**self.queue_nums(), **self._spec.queue_nums}
        self._maker = MessageMaker(replace(self._spec, queue_nums=nums))
        self._ledger = Ledger(self._disk, self.paths.root)
        self._ledger.settle(self._log)
        self._protect()

    def _begin(self, end: int) -> LogAppend:
        return LogAppend(self._disk, self.paths.commitlogs, end, self._file_size, self.paths.append_intent)

    @property
    def _file_size(self) -> int:
        return self.config.mapped_file_size_commit_log

    def _protect(self) -> None:
        """Make what is there safe from a recovery, then say that the store is open.

        A broker's recovery deletes index files that are newer than the checkpoint, and builds anew only what its scan
        comes by: keys of older records would be lost.
        """
        files = index_files(self.paths.index)
        if files:
            self._disk.flush(files[-1])
            newest = int(read_header(files[-1])["end_timestamp"])
            self._checkpoint = self._checkpoint._replace(index_msg_timestamp=newest)
        self._save_checkpoint(built=self._last_store_timestamp)
        self._disk.write_new(self.paths.abort, str(os.getpid()).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()
        self.close()

    def append(self, batch: pa.RecordBatch, *, verbatim: bool = False, first_row: int = 0) -> None:
        """Append the rows of a batch; they show at :meth:`flush`. A batch that is refused leaves nothing.

        Args:
            batch: messages (``messages.WRITE_TYPES``), or with ``verbatim`` columns of ``format.schema.VERBATIM``.
            verbatim: bodies, properties, sysFlag, times, hosts and queue offsets are stored as given.
            first_row: number of its first row, for errors.

        Raises:
            IllegalMessageError: a row cannot be stored.
            UnsupportedFeatureError: a topic has queues of a kind that cannot be written.
        """
        if not len(batch):
            return
        columns = verbatim_columns(batch) if verbatim else self._maker.make(batch, first_row)
        self._require_plain(columns.topics)
        parts = list(encode_batches(columns))
        require_room(np.concatenate([np.diff(part.starts) for part in parts]), self._file_size, first_row)
        groups = group_by_queue(columns.topics, columns.queue_ids)
        if verbatim:
            times, queue_offsets = _millis(batch, "storeTimestamp"), batch.column("queueOffset").to_numpy()
            self._offsets.claim(columns.topics, columns.queue_ids, queue_offsets, have_units(columns.sys_flags))
        else:
            times, queue_offsets = self._now(len(columns)), self._offsets.assign(groups, len(columns))
        for rows, records in zip(row_batches(len(columns)), parts, strict=True):
            heads, _ = read_heads(records.data, records.starts[:-1])
            self._write(records, heads, queue_offsets[rows], times[rows])
        self._note_topics(groups)

    def _now(self, count: int) -> NDArray[np.int64]:
        # Source: CommitLog.java#asyncPutMessage; searches by time rely on times that never fall.
        return np.broadcast_to(np.int64(max(now_ms(), self._last_store_timestamp)), count)

    def append_encoded(self, data: Bytes, sizes: NDArray[np.int64]) -> None:
        """Append records that were encoded elsewhere and only lack their places: see ``format.encode.encode_records``.

        Args:
            data: uint8 (nbytes,), records one behind the other; they are written to.
            sizes: int64 (n,), bytes of each.

        Raises:
            CorruptRecordError: these are no records of these sizes.
        """
        bounds = np.concatenate(([0], np.cumsum(sizes)))
        for rows in row_batches(len(sizes), _ENCODED_ROWS):
            low, high = int(bounds[rows.start]), int(bounds[rows.stop])
            part, starts = data[low:high], bounds[rows.start : rows.stop + 1] - low
            heads, whole = read_heads(part, starts[:-1])
            if not (whole & (heads.column("total_size") == sizes[rows])).all():
                raise CorruptRecordError("encoded records", low, "no whole records of the sizes given")
            names = topics(part, heads)
            self._require_plain(names)
            require_room(sizes[rows], self._file_size, rows.start)
            groups = group_by_queue(names, heads.column("queue_id"))
            records = Records(part, starts, heads.column("sys_flag"))
            self._write(records, heads, self._offsets.assign(groups, len(heads)), self._now(len(heads)))
            self._note_topics(groups)

    def _write(
        self, records: Records, heads: Heads, queue_offsets: NDArray[np.int64], times: NDArray[np.int64]
    ) -> None:
        placement = self._append.place(np.diff(records.starts))
        stamp(records, queue_offsets, placement.physical_offsets, times)
        self._waiting.add(records, heads, Places(queue_offsets, placement.physical_offsets, times), placement.end)
        try:
            self._append.write(records, placement)
        except OSError as err:
            if err.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.abandon()
            raise StoreStateError(
                f"{self.paths.root}: CREATE_MAPPED_FILE_FAILED: the disk is full; nothing since the last flush is kept"
            ) from err
        self._last_store_timestamp = max(self._last_store_timestamp, int(times[-1]))

    def _require_plain(self, topics: pa.StringArray) -> None:
        others = {*self._batch_topics} & set(topics.unique().to_pylist()) if self._batch_topics else None
        if others:
            raise UnsupportedFeatureError(f"{', '.join(sorted(others))}: BatchConsumeQueues cannot be written yet")

    def _note_topics(self, groups: Groups) -> None:
        for (topic, queue_id), _ in groups:
            self._highest_queue[topic] = max(self._highest_queue.get(topic, -1), queue_id)

    def _register_topics(self) -> None:
        """Make a broker serve the topics that were written to."""
        least = {topic: highest + 1 for topic, highest in self._highest_queue.items() if topic not in SYSTEM_TOPICS}
        register_topics(self._disk, self.paths, least, self._maker.spec.default_queue_nums)
        self._highest_queue.clear()

    def queue_nums(self) -> dict[str, int]:
        """Return how many queues each topic may be written to in."""
        return queue_nums(self.paths)

    def done_version(self, app_id: str) -> int | None:
        """Return the newest version of an application's writes that is in the store, None for none."""
        return self._ledger.version(app_id, self._log)

    def flush(self, *, txn: tuple[str, int] | None = None) -> None:
        """Commit what was appended: log, then queues and index, then the checkpoint.

        Args:
            txn: the application and the version that this is, for :meth:`done_version`.
        """
        start, end = self._append.start, self._append.end
        if txn is not None:
            self._ledger.intend(*txn, *self._append.marks())
        if start != end:
            self._append.commit()
            self._is_whole = False
            try:
                self._complete(start, end)
            except (OSError, RmqStoreError) as err:
                raise CommitError(
                    f"{self.paths.root}: committed, but queues and index are not complete ({err}); "
                    "the next writer or broker that opens the store completes them"
                ) from err
            self._is_whole = True
        if txn is not None:
            self._ledger.done(txn[0])

    def abandon(self) -> None:
        """Take back what was appended since the last flush."""
        self._append.abandon()
        self._append = self._begin(self._append.start)
        self._waiting.clear()
        self._offsets.forget()
        self._highest_queue.clear()

    def rebuild(self, progress: Progress = untold) -> None:
        """Build queues and index anew from the CommitLog alone, whatever they hold now; flushes first.

        Args:
            progress: told now and then how many bytes of the log are done, and how many there are.
        """
        self.flush()
        self._save_checkpoint(built=0, index=0)  # what a recovery finds half built is built anew
        self._is_whole = False
        self._repairer.rebuild(self._append.end, progress)
        self._queues.clear()
        self._offsets.forget()
        self._is_whole = True
        self._protect()

    def _complete(self, start: int, end: int) -> None:
        """Build queues and index of what was committed. Should this be cut, the next one to open the store does it."""
        self._append = self._begin(end)
        self._log.refresh()
        # A recovery deletes index files that are newer than the checkpoint, older keys and all: so that comes first.
        self._save_checkpoint(index=self._last_store_timestamp)
        dispatcher = Dispatcher(self._disk, self._log, self.paths.index, self.config, self._queue)
        for requests in self._waiting.requests():
            dispatcher.put(requests)
        dispatcher.dispatch(self._waiting.end or start, end)
        dispatcher.flush()
        self._waiting.clear()
        self._register_topics()
        self._save_checkpoint(built=self._last_store_timestamp)

    def _queue(self, topic: str, queue_id: int) -> QueueAppender:
        key = (topic, queue_id)
        if key not in self._queues:
            self._queues[key] = self._repairer.open_queue(topic, queue_id)
        return self._queues[key]

    def _next_queue_offset(self, topic: str, queue_id: int) -> int | None:
        queue = self._queue(topic, queue_id)
        return None if queue.is_new else queue.end

    def _save_checkpoint(self, *, built: int | None = None, index: int | None = None) -> None:
        """Say up to which store times (ms) log and queues are on the disk, and which index files are to be kept."""
        if built is not None:
            self._checkpoint = self._checkpoint._replace(physic_msg_timestamp=built, logics_msg_timestamp=built)
        if index is not None:
            self._checkpoint = self._checkpoint._replace(index_msg_timestamp=index)
        self._disk.replace(self.paths.checkpoint, self._checkpoint.stored())

    def close(self) -> None:
        """Flush, say that the store is closed, let go of the lock."""
        try:
            self.flush()
            if self._is_whole:
                self._disk.delete(self.paths.abort)
                self._disk.flush_folder(self.paths.root)
        finally:
            self._waiting.close()
            self._disk.close()
            self._log.close()
            self._lock.release()


class _Waiting:
    """What dispatching will need of the records that wait for their commit, as far as memory should hold it.

    A thread reads it from the records while the next ones are written. Beyond so many rows they are read back from the
    log.
    """

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1, "rmqstore-requests")
        self.clear()

    def clear(self) -> None:
        """Forget all of it."""
        self._requests: deque[Future[Requests]] = deque()
        self.end: int | None = None  # physical offset behind the last record of these
        self._n_rows = 0
        self._is_full = False

    def add(self, records: Records, heads: Heads, places: Places, end: int) -> None:
        """Take records whose heads were read; their bytes behind the heads must not change."""
        self._is_full |= self._n_rows > _MAX_WAITING
        if self._is_full:
            return
        self._requests.append(self._reader.submit(read_requests, records.data, heads, places))
        if len(self._requests) > _MAX_UNREAD:
            self._requests[-_MAX_UNREAD].result()  # a reader that falls behind would hold the bytes of many
        self._n_rows += len(heads)
        self.end = end

    def requests(self) -> Iterator[Requests]:
        """Yield them in the order of the log, and forget each."""
        while self._requests:
            yield self._requests.popleft().result()

    def close(self) -> None:
        """End the thread."""
        self._reader.shutdown(cancel_futures=True)


def verbatim_columns(batch: pa.RecordBatch) -> RecordColumns:
    """Return the columns of records from a batch that holds them as they are stored.

    Raises:
        IllegalMessageError: a column is missing, of another type, or has nulls.
    """
    for field in VERBATIM:
        if field.name == "commitLogOffset":
            continue
        found = batch.schema.field(field.name) if field.name in batch.schema.names else None
        if found is None or found.type != field.type:
            raise IllegalMessageError(f"verbatim: column {field.name} must be {field.type}, got {found and found.type}")
        if batch.column(field.name).null_count:
            raise IllegalMessageError(f"verbatim: column {field.name} has nulls")

    def numbers(name: str) -> NDArray[Any]:
        found: NDArray[Any] = batch.column(name).to_numpy()
        return found

    return RecordColumns(
        topics=batch.column("topic"),
        queue_ids=numbers("queueId"),
        bodies=batch.column("body"),
        properties=batch.column("properties"),
        flags=numbers("flag"),
        sys_flags=numbers("sysFlag"),
        born_timestamps=_millis(batch, "bornTimestamp"),
        born_hosts=pack_hosts(batch.column("bornHost")),
        store_hosts=pack_hosts(batch.column("storeHost")),
        reconsume_times=numbers("reconsumeTimes"),
        prepared_transaction_offsets=numbers("preparedTransactionOffset"),
    )


def _millis(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    micros: NDArray[np.int64] = batch.column(name).view(pa.int64()).to_numpy()
    return micros // 1000


def existing_config(paths: StorePaths, log: CommitLog, config: StoreConfig) -> StoreConfig:
    """Return the sizes that a store's files have; those given where it has no such file yet.

    Raises:
        StoreStateError: files of one kind differ in length, or an index file fits no sizes.
    """
    changes: dict[str, int] = {}
    if log.segments:
        lengths = {segment.path.stat().st_size for segment in log.segments} - {0}
        if len(lengths) > 1:
            raise StoreStateError(f"{log.folders}: files of {sorted(lengths)} bytes; a broker wants them all alike")
        changes["mapped_file_size_commit_log"] = next(iter(lengths), config.mapped_file_size_commit_log)
    queue = next((queue for topic in paths.topics() for queue in paths.queue_files(topic)), None)
    if queue is not None:
        changes["mapped_file_size_consume_queue"] = queue.stat().st_size
    files = [path for path in index_files(paths.index) if was_ended(path)]
    if files:
        sizes = find_sizes(files, IndexSizes(config.max_hash_slot_num, config.max_index_num))
        changes |= {"max_hash_slot_num": sizes.n_slots, "max_index_num": sizes.n_items}
    return replace(config, **changes)  # type: ignore[arg-type]  # sizes all of them
