"""Finds every disagreement between a store's log, queues and index.

Reads all of the store and changes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from functools import cached_property
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import Finding
from rmqstore.format.columns.checks import sound_crcs
from rmqstore.format.columns.decode import stored_bodies, topics
from rmqstore.format.columns.dispatch_requests import (
    QueueUnits,
    Requests,
    UnitBuffer,
    have_units,
    read_requests,
    topic_names,
)
from rmqstore.format.columns.heads import Heads
from rmqstore.format.columns.lmq import lmq_heads
from rmqstore.format.framing.framing import StopKind
from rmqstore.format.layout import MAX_EXT_ADDRESS, Bytes, Mask
from rmqstore.inspect.verify_index import KeysOfLog, index_findings, read_tag_keys
from rmqstore.progress import Progress, ignore_progress
from rmqstore.spans import FOREVER, QueueKey
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.open_files import OpenFiles
from rmqstore.storage.files.paths import StorePaths, can_have_queue
from rmqstore.storage.log.joined_walks import JoinedWindow, join_stretches
from rmqstore.storage.log.walks import Window, walk_forward
from rmqstore.storage.queue.consumequeue_ext import ConsumeQueueExt
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.queue.queue_set import is_in_rocksdb, open_files
from rmqstore.storage.recovery.log_end import damage_met
from rmqstore.storage.rocksdb.queue_tables import (
    RocksDbQueues,
    are_queues_unreadable,
    has_unreadable_queues,
)
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_MAX_FINDINGS = 1000  # damaged records that are reported one by one
_FILES_AT_ONCE = 64


def verify(store: MessageStore, progress: Progress = ignore_progress) -> Iterator[Finding]:
    """Yield every disagreement between the log, the queues and the index.

    These are missing files of the log, damaged records, wrong units and keys that cannot be found.
    Tables under ``config/`` that are damaged are findings of the part ``config``.

    Args:
        store: the store to check, opened for reading.
        progress: called now and then with the bytes that are done, and their total, the size of
            the log. It is read twice, so a byte that was read once counts half.
    """
    store.session.require_local("verify")
    for err in BrokerConfig(store.paths).damage():
        yield Finding("config", f"{err.path}, {err.offset}", err.reason)
    yield from _missing_files(store)
    n_bytes = store.session.n_written([store.session.log_slice()])
    yield from _damaged_records(store, lambda done: progress(min(done, n_bytes) // 2, n_bytes))
    end = store.session.log_slice().end
    log = store.session.log
    queues = _Queues(store.paths, log.min_offset)
    batch_topics = store.paths.batch_topics()
    has_entries = bool(log.entry_segments)
    keys = KeysOfLog()

    def second_pass(done: int, _total: int) -> None:
        progress((n_bytes + min(done, n_bytes)) // 2, n_bytes)

    for data, whole_heads in _whole_heads(store, end, second_pass):
        heads = queues.without_torn(data, whole_heads) if has_entries else whole_heads
        requests = read_requests(data, heads)
        queues.compare(requests)
        queues.compare(read_requests(data, _lmq_heads(data, heads, batch_topics)))
        keys.add(requests, read_tag_keys(data, heads))
    second_pass(end - log.min_offset, end - log.min_offset)
    if has_unreadable_queues(store.paths):
        logger.warning(
            "%s holds RocksDB queues, which are not compared with the log",
            store.paths.rocksdb_queues,
        )
    if not are_queues_unreadable(store.paths):
        yield from queues.findings(store.session.light_messages_apart)
        yield from _inner_findings(store)
    yield from index_findings(store.paths, keys, log.min_offset)


def _missing_files(store: MessageStore) -> Iterator[Finding]:
    whole = store.session.log_slice()
    for start, end, segment in store.session.log.stretches(whole.start, whole.end):
        if segment is None:
            text = f"no file holds the log from {start} to {end}: a file is missing or too short"
            yield Finding("log", f"{store.session.log.folders}, {start}", text)


def _damaged_records(store: MessageStore, reach: Callable[[int], None]) -> Iterator[Finding]:
    n_damaged = 0
    log = store.session.log_slice()
    batches = store.scan(
        scan="commitlog", columns=["commitLogOffset"], mode="PERMISSIVE", fail_on_data_loss=False
    )
    for batch in batches:
        for text in _corrupt([batch]):
            n_damaged += 1
            if n_damaged <= _MAX_FINDINGS:
                place, _, reason = text.partition(": ")
                yield Finding("log", place, reason)
        last = pc.max(batch.column("commitLogOffset")).as_py()
        if last is not None:
            reach(last - log.start)
    n_more = n_damaged - _MAX_FINDINGS
    if n_more > 0:
        yield Finding("log", str(store.paths.root), f"{n_more} more damaged records")


def _whole_heads(
    store: MessageStore, end: int, progress: Progress
) -> Iterator[tuple[Bytes, Heads]]:
    """Yield the heads of all whole records, in the order of the log, and the bytes that hold them.

    A record that is damaged otherwise, for instance by an impossible time, has its unit and its
    keys all the same.
    """
    log = store.session.log
    for part in join_stretches(log, log.min_offset, end):
        if isinstance(part, JoinedWindow):
            for _, heads, is_sound in part.heads():
                yield from _sound_heads(part.data, heads, is_sound)
            progress(part.end - log.min_offset, end - log.min_offset)
        elif part.segment is not None:
            for window in walk_forward(log, part.segment, part.start, part.end):
                yield from _heads_of_window(window)
                progress(min(window.stopped, end) - log.min_offset, end - log.min_offset)
                if window.records.kind is StopKind.EMPTY:
                    break
                if window.records.kind is StopKind.STALE and _is_end(store, window):
                    return


def _is_end(store: MessageStore, window: Window) -> bool:
    """Tell whether the log of a store that was closed ends where a walk ended."""
    queues_end = store.session.ranges.vouched_end()
    return damage_met(window, queues_end) is None


def _heads_of_window(window: Window) -> Iterator[tuple[Bytes, Heads]]:
    for starts, heads, whole in window.heads():
        is_in_place = heads.column("physical_offset") == starts + window.segment.start
        yield from _sound_heads(window.data, heads, whole & is_in_place)


def _sound_heads(data: Bytes, heads: Heads, is_sound: Mask) -> Iterator[tuple[Bytes, Heads]]:
    rows = np.flatnonzero(is_sound)
    if len(rows) == len(heads):
        yield data, heads
    elif len(rows):
        yield data, heads.take(rows)


def _lmq_heads(data: Bytes, heads: Heads, batch_topics: Collection[str]) -> Heads:
    return lmq_heads(data, heads.take(have_units(heads.column("sys_flag"))), batch_topics)


def _inner_findings(store: MessageStore) -> Iterator[Finding]:
    """Yield why messages of BatchConsumeQueues cannot be read.

    Units and records may disagree although all of them are whole.
    """
    topics = store.paths.batch_topics()
    if not topics:
        return
    batches = store.scan(
        subscribe=topics, columns=["queueOffset"], mode="PERMISSIVE", fail_on_data_loss=False
    )
    for text in islice(_corrupt(batches), _MAX_FINDINGS):
        place, _, reason = text.partition(": ")
        yield Finding("queue", place, reason)


def _corrupt(batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    for batch in batches:
        column = batch.column("_corrupt_record")
        if column.null_count < len(column):
            yield from column.drop_null().to_pylist()


class _Tally:
    """What the comparison of one queue has found so far."""

    def __init__(
        self, queue: Queue, flushed_until: int, open_ext: Callable[[], ConsumeQueueExt]
    ) -> None:
        self.queue, self._open_ext = queue, open_ext
        # physical offset from which on the queue may lack units, because they are flushed late
        self._flushed_until = flushed_until
        self.start = self.queue.begin
        self.end = self.queue.end()
        self.n_matched = self.n_missing = self.n_wrong = 0
        self.first_missing = self.first_wrong = -1

    def may_lack(self, physical_offsets: NDArray[np.int64]) -> Mask:
        """Return a mask (n,) of the records that need not be in the queue yet."""
        may_lack: Mask = physical_offsets >= self._flushed_until
        return may_lack

    @cached_property
    def _ext(self) -> ConsumeQueueExt:
        return self._open_ext()

    def have_codes(self, codes: NDArray[np.int64], of_records: NDArray[np.int64]) -> Mask:
        """Return a mask (n,) of the units whose tags code is that of their record.

        Args:
            codes: tags codes of units, or addresses in the extension of the queue, which holds the
                codes then, (n,).
            of_records: tags codes of their records, (n,).
        """
        same: Mask = codes == of_records
        rows = np.flatnonzero(codes <= MAX_EXT_ADDRESS)
        if len(rows):
            ext_units = self._ext.units(codes[rows])
            same[rows] = ext_units.sound & (ext_units.tags_codes == of_records[rows])
        return same


class _Queues:
    def __init__(self, paths: StorePaths, log_start: int) -> None:
        self._paths, self._log_start = paths, log_start
        self._tallies: dict[tuple[str, int], _Tally] = {}
        self._without_queue: Counter[tuple[str, int]] = Counter()
        self._waiting = UnitBuffer()
        self._files = OpenFiles(paths.storage, _FILES_AT_ONCE)
        self._in_rocksdb = RocksDbQueues.of(paths)
        self._flushed_until = FOREVER
        if self._in_rocksdb is not None and paths.has_abort:
            self._flushed_until = self._in_rocksdb.checkpoint

    def _tally(self, topic: str, queue_id: int) -> _Tally:
        key = (topic, queue_id)
        if key not in self._tallies:
            self._tallies[key] = self._new_tally(key)
        return self._tallies[key]

    def _new_tally(self, key: QueueKey) -> _Tally:
        queue = open_files(self._paths, *key, files=self._files, in_rocksdb=self._in_rocksdb)
        in_rocksdb = self._in_rocksdb
        is_in_files = in_rocksdb is None or not is_in_rocksdb(
            self._paths, in_rocksdb, key, self._files
        )

        def open_ext() -> ConsumeQueueExt:
            return ConsumeQueueExt(self._paths.queue_ext(*key), self._files)

        return _Tally(queue, FOREVER if is_in_files else self._flushed_until, open_ext)

    def compare(self, requests: Requests) -> None:
        """Compare the units that records should have with those that exist, soon or later."""
        self._waiting.add(requests.units.take(requests.has_unit))
        if self._waiting.is_full:
            self._compare_waiting()

    def _compare_waiting(self) -> None:
        units = self._waiting.take()
        if units is None:
            return
        for key, rows in units.by_queue():
            if can_have_queue(*key) or self._is_in_rocksdb(key):
                self._compare_queue(self._tally(*key), units, rows)
            else:
                self._without_queue[key] += len(rows)

    def _is_in_rocksdb(self, key: QueueKey) -> bool:
        return self._in_rocksdb is not None and key in self._in_rocksdb.bounds

    def without_torn(self, data: Bytes, heads: Heads) -> Heads:
        """Leave out torn records that no unit points at.

        A DLedger log keeps them, and a broker gives them no unit.
        """
        keeps = sound_crcs(data, heads, stored_bodies(data, heads))
        for row in np.flatnonzero(~keeps):
            torn = heads.take(np.array([row]))
            topic = topic_names(topics(data, torn).dictionary_encode())[0]
            queue_id = int(torn.column("queue_id")[0])
            if can_have_queue(topic, queue_id):
                unit = self._tally(topic, queue_id).queue.unit(int(torn.column("queue_offset")[0]))
                keeps[row] = unit[0] == int(torn.column("physical_offset")[0]) and unit[1] > 0
        return heads if keeps.all() else heads.take(keeps)

    @staticmethod
    def _compare_queue(tally: _Tally, units: QueueUnits, rows: NDArray[np.int64]) -> None:
        offsets = units.queue_offsets[rows]
        exists = np.zeros(len(rows), np.bool_)
        wrong = np.zeros(len(rows), np.bool_)
        low = max(int(offsets.min()), tally.start)
        high = min(int(offsets.max()) + 1, tally.end)
        for start, stop in tally.queue.runs(low, high) if low < high else ():
            stored = tally.queue.units(start, stop)
            inside = np.flatnonzero((offsets >= start) & (offsets < stop))
            places = offsets[inside] - start
            sizes, tags_codes = stored.sizes[places], stored.tags_codes[places]
            expected = units.units[rows[inside]]
            same = stored.physical_offsets[places] == expected["physical_offset"]
            same &= sizes == expected["size"]
            same &= tally.have_codes(tags_codes, expected["tags_code"].astype(np.int64))
            exists[inside] = sizes != 0
            wrong[inside] = ~same & (sizes != 0)
        missing = np.flatnonzero(~exists & ~tally.may_lack(units.units["physical_offset"][rows]))
        if len(missing) and not tally.n_missing:
            tally.first_missing = int(offsets[missing[0]])
        if wrong.any() and not tally.n_wrong:
            tally.first_wrong = int(offsets[np.flatnonzero(wrong)[0]])
        tally.n_missing += len(missing)
        tally.n_wrong += int(wrong.sum())
        tally.n_matched += int(exists.sum())

    def findings(self, apart: Container[str]) -> Iterator[Finding]:
        """Yield the findings queue by queue.

        Args:
            apart: light message queues that lie in RocksDB and are left out.
        """
        self._compare_waiting()
        in_rocksdb = () if self._in_rocksdb is None else self._in_rocksdb.bounds
        for key in (*self._paths.queues(), *self._paths.batch_queues(), *in_rocksdb):
            self._tally(*key)
        for (topic, queue_id), tally in sorted(self._tallies.items()):
            if topic in apart:
                continue
            place = f"{topic}-{queue_id}"
            if tally.n_missing:
                text = (
                    f"{tally.n_missing} records have no unit, "
                    f"the first at queue offset {tally.first_missing}"
                )
                yield Finding("queue", place, text)
            if tally.n_wrong:
                text = (
                    f"{tally.n_wrong} units differ from their record, "
                    f"the first at queue offset {tally.first_wrong}"
                )
                yield Finding("queue", place, text)
            n_units = tally.queue.count_units(tally.start, tally.end, self._log_start)
            n_extra = n_units - tally.n_matched
            if n_extra > 0:
                text = f"{n_extra} units do not point to a record of the queue"
                yield Finding("queue", place, text)
        self._files.close()
        for (topic, queue_id), count in sorted(self._without_queue.items()):
            text = (
                f"{count} records have no unit: "
                "their topic or queue id cannot be the name of a folder"
            )
            yield Finding("queue", f"{topic!r}-{queue_id}", text)
