"""Look-ups by key and id: an index or a table proposes records, and the records decide.

The table of an index in RocksDB says where it ends, but not where it begins, nor what a broker left
out meanwhile: nothing is indexed while ``indexRocksDBEnable`` is off. A broker puts records into
the index in the order of the log, so a record in each file of the log, and the last one before the
end of the table, are looked up in it. Files between two records that it has are taken for indexed,
as an index file is trusted from its first record to its last.

The index of brokers from 5.4 on has tags too, but no file says which records it has them of.
Units have the tags code of every message. They take 20 bytes a message and are read in their order,
while items of the index are found one by one, so units are as fast unless the tags are rare.

Source: DefaultMessageStore.java#queryMessage; MQAdminImpl.java#queryMessage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, overload

import numpy as np

from rmqstore.errors import (
    MessageNotFoundError,
    OffsetOutOfRangeError,
    StoreFormatError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.format.columns.dispatch_requests import key_hashes, tag_key
from rmqstore.format.hashing import tags_code
from rmqstore.format.layout import (
    LMQ_PREFIX,
    MAX_EXT_ADDRESS,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
    Positions,
    SysFlag,
)
from rmqstore.format.record import parse_message_id
from rmqstore.format.schema import Message
from rmqstore.notebook import MAX_ROWS, line, table
from rmqstore.query.conditions import LogSpans, lie_in
from rmqstore.query.selection import KEY_SEPARATOR, LookupKeys, is_offset_id
from rmqstore.read.record_filter import resolve_codes
from rmqstore.read.rows import UnitRows
from rmqstore.read.split import total_length
from rmqstore.spans import FOREVER, LogSlice, Span
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.index_files import IndexSizes
from rmqstore.storage.index_search import IndexSearch, IndexTable, ItemKind, item_prefix
from rmqstore.storage.log.commitlog import (
    CommitLog,
    SegmentPosition,
    frame_of,
    is_blank,
    read_frame,
    stored_start,
)
from rmqstore.storage.queue.queue import chunks
from rmqstore.storage.recovery.queues import Queues
from rmqstore.storage.recovery.store_ends import StoreEnds

logger = logging.getLogger(__name__)

_RECORDS_TO_TRY = 64  # at the start of a file; some have no UNIQ_KEY, or are rollbacks
# the columns of a message that a notebook shows
_SHOWN: Final = (
    "topic", "queueId", "queueOffset", "tags", "keys", "storeTimestamp", "reconsumeTimes", "body",
)  # fmt: skip

SMALL_GAPS: Final = 64 << 10  # bytes; uncovered parts of the log up to this total are always read


def tagged_offsets(
    queues: Queues, topics: Sequence[str], tags: Collection[str]
) -> Positions | None:
    """Return the physical offsets of all records of some topics that may have one of some tags.

    None if queues do not show them: none of the topics has queues, or one cannot be read.

    Args:
        queues: the queues of the store.
        topics: names of topics. Light message queues have no records of their own.
        tags: whole tags.
    """
    own = [topic for topic in topics if not topic.startswith(LMQ_PREFIX)]
    keys = [(topic, queue_id) for topic in own for queue_id in queues.ids(topic)]
    if not keys:
        return None
    codes = np.array([tags_code(text) for text in tags], np.int64)
    parts = [np.empty(0, np.int64)]
    try:
        for key in keys:
            queue = queues.open(*key)
            for low, high in chunks(queue, queue.begin, queue.end()):
                rows = UnitRows.of_queue(*key, np.arange(low, high), queue.units(low, high))
                stored = resolve_codes(rows, queues.open_ext)
                # In place of a code, some units have an address that leads nowhere, or a time.
                may_have = np.isin(stored, codes) | (stored <= MAX_EXT_ADDRESS)
                may_have |= key[0] == SCHEDULE_TOPIC
                parts.append(rows.physical_offsets[may_have & (rows.sizes > 0)].astype(np.int64))
    except (StoreFormatError, UnsupportedFeatureError) as err:
        logger.warning("%s; its units are not used to find tags", err)
        return None
    return np.unique(np.concatenate(parts))


class _IndexedRecord(NamedTuple):
    """A record that was looked up in the table."""

    start: int  # physical offset of the file's first record, or of this one if it is the last
    physical_offset: int
    hour: int  # of its item, ms


def table_spans(table: IndexTable, log: CommitLog, end: int) -> list[Span]:
    """Return the parts of the log that the table has all UNIQ_KEYs of, ascending.

    Each is the range from its first record to its last.

    Args:
        table: the index.
        log: the log.
        end: physical offset where the log ends.

    Raises:
        CorruptDatabaseError: a block of the database is damaged.
        FileDeletedError: a file of the log was deleted after it was listed.
    """
    spans: list[Span] = []
    for record, following in pairwise(_indexed_records(table, log, end)):
        if record is None or following is None:
            continue
        if table.may_lack_hours((record.hour, following.hour)):
            continue
        if spans and spans[-1].end == record.physical_offset:
            spans[-1] = Span(spans[-1].start, following.physical_offset)
        else:
            spans.append(Span(record.start, following.physical_offset))
    return spans


def _indexed_records(
    table: IndexTable, log: CommitLog, end: int
) -> Iterator[_IndexedRecord | None]:
    """Yield what is known of each file, and then of the last record; None if it is not indexed."""
    last = table.last_offset
    if not log.min_offset <= last < end:
        return
    for segment in log.segments:
        if segment.start > last:
            continue
        # The first record of a file with a UNIQ_KEY is looked up.
        record = None
        physical_offset = segment.start
        for _ in range(_RECORDS_TO_TRY):
            message = _message(log, physical_offset)
            if message is None:
                break
            is_rollback = message.sysFlag & SysFlag.TRANSACTION_TYPE == SysFlag.TRANSACTION_TYPE
            if message.properties.get(PROPERTY_UNIQ_KEY) and not is_rollback:
                record = _indexed_record(table, log, message, segment.start)
                break
            physical_offset += message.storeSize
        yield record
    yield _indexed_record(table, log, _message(log, last), last)


def _message(log: CommitLog, physical_offset: int) -> Message | None:
    try:
        return log.get(physical_offset, with_body=False)
    except (StoreFormatError, MessageNotFoundError):
        return None
    except OffsetOutOfRangeError:
        if log.find(physical_offset) is None:
            return None
        raise


def _indexed_record(
    table: IndexTable, log: CommitLog, message: Message | None, start: int
) -> _IndexedRecord | None:
    uniq_key = None if message is None else message.properties.get(PROPERTY_UNIQ_KEY)
    if message is None or not uniq_key:
        return None
    physical_offset = message.commitLogOffset
    hour = table.hour_of(
        message.topic, uniq_key, physical_offset, log.store_timestamp(physical_offset)
    )
    return None if hour is None else _IndexedRecord(start, physical_offset, hour)


class Found(NamedTuple):
    """Where matching messages may lie.

    The index is not trusted, so the records have to be read and compared.
    """

    physical_offsets: Positions  # ascending
    uncovered: list[Span]  # parts of the log that the index does not cover, ascending

    @property
    def n_uncovered_bytes(self) -> int:
        """The number of bytes of the log that the index does not cover."""
        return total_length(self.uncovered)

    def outside(self, log_slices: Sequence[LogSlice]) -> Positions:
        """Return the physical offsets outside of parts of the log that are read as a whole."""
        return self.physical_offsets[~lie_in(self.physical_offsets, log_slices)]


@dataclass(frozen=True, repr=False)
class QueryResult(Sequence[Message]):
    """The messages that a query found, as a sequence in the order of the log.

    Attributes:
        messages: the matching messages, oldest first.
        uncovered: the parts of the log, by physical offset, that the index does not cover.
        was_scanned: whether those parts were read too. If not, messages in them were not found.
    """

    messages: tuple[Message, ...]
    uncovered: tuple[Span, ...]
    was_scanned: bool

    @property
    def is_complete(self) -> bool:
        """Whether no part of the log was left out because the index does not cover it."""
        return self.was_scanned or not self.uncovered

    def __repr__(self) -> str:
        """Return how many messages there are: a notebook would show all bodies."""
        left_out = "" if self.is_complete else ", and the index does not cover all of the log"
        return f"QueryResult of {len(self)} messages{left_out}"

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with a table of the first messages."""
        rows = [[getattr(message, name) for name in _SHOWN] for message in self.messages[:MAX_ROWS]]
        return line(repr(self)) + table(_SHOWN, rows, n_left_out=len(self) - len(rows))

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, row: int) -> Message: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, row: int | slice) -> Message | tuple[Message, ...]:
        return self.messages[row]


class Lookup:
    """Finds candidates for look-ups in one store.

    Where there are no index files, the index is used that a broker keeps in RocksDB. After a crash,
    items may be lost of messages that were stored later than index files were surely on the disk.

    Args:
        paths: the files of the store.
        log: its CommitLog.
        ends: where the log ends, and the index.
    """

    def __init__(self, paths: StorePaths, log: CommitLog, ends: StoreEnds) -> None:
        self._paths = paths
        self._log = log
        self._ends = ends
        self._index = IndexSearch(paths.index, IndexSizes.of(StoreConfig()), paths.storage)
        # Physical offset of the last record whose keys were all found in the index.
        self._indexed_record = -1

    def find(
        self,
        lookup_keys: LookupKeys,
        topics: Sequence[str],
        begin: int | None = None,
        end: int | None = None,
        tagged: Positions | None = None,
    ) -> Found:
        """Return where messages with the wanted keys, ids or tags may lie.

        An index that contradicts itself covers nothing. None covers a file of the log that has the
        name of another place, or files that are missing, if it leads there. No file says whether
        its items are also of tags, so the index never covers these.

        In RocksDB only records with a UNIQ_KEY are indexed. So such an index covers look-ups by id,
        but never those by key, which may also be a word in KEYS of another record.

        Args:
            lookup_keys: the keys, ids and tags.
            topics: topics to search, which the index hashes together with the key.
            begin: earliest store time, ms.
            end: latest store time, ms, included.
            tagged: physical offsets, (n,), of all records that may have the wanted tags, as queues
                show them; None if they do not.

        Raises:
            FileDeletedError: a file that may hold a message was deleted after it was listed.
        """
        # The uncovered parts are found before the index is searched: a record that the broker
        # indexes in between is then found twice rather than not at all.
        whole = self._whole()
        by_id = [
            parse_message_id(msg_id)[1] for msg_id in lookup_keys.msg_ids if is_offset_id(msg_id)
        ]
        physical_offsets = np.array(by_id, np.int64)
        times = begin or 0, FOREVER if end is None else end
        try:
            found = self._find_in_table(lookup_keys, topics, times)
            if found is None:
                is_covered = bool(topics) and not lookup_keys.tags
                not_in_files = self.uncovered() if is_covered else [self._whole()]
                names = sorted(
                    {*lookup_keys.keys, *lookup_keys.msg_ids, *map(tag_key, lookup_keys.tags)}
                )
                hashes = key_hashes(list(topics), names).ravel()
                found = self._index.find(hashes, *times), not_in_files
            by_key, uncovered = found
            physical_offsets = np.union1d(by_key, physical_offsets)
        except StoreStateError as err:
            logger.warning("the index is not used: %s", err)
            uncovered = [whole]
        if tagged is not None:
            uncovered, physical_offsets = [], np.union1d(physical_offsets, tagged)
        spans = LogSpans.of(sorted([*uncovered, *self._misplaced(physical_offsets, whole)])).spans
        return Found(physical_offsets[lie_in(physical_offsets, [whole])], list(spans))

    def _misplaced(self, physical_offsets: Positions, whole: Span) -> Iterator[Span]:
        """Yield parts of the log to which items lead, and where their records do not lie.

        Items lead before the log also if its first file has the name of a later place.
        """
        physical_offsets = np.maximum(physical_offsets, whole.start)
        for low, high, segment in self._log.segment_spans(*whole):
            first, stop = np.searchsorted(physical_offsets, (low, high))
            if first == stop:
                continue
            if segment is None or (
                stored_start(self._log.file_of(segment), segment.start) != segment.start
            ):
                yield Span(low, high)

    def _find_in_table(
        self, lookup_keys: LookupKeys, topics: Sequence[str], times: tuple[int, int]
    ) -> tuple[Positions, list[Span]] | None:
        """Search the index in RocksDB, None if there is none that can be used."""
        if self._index.has_files():
            return None
        try:
            table = IndexTable.of(self._paths)
            if table is None:
                return None
            is_covered = bool(topics) and not (lookup_keys.keys or lookup_keys.tags)
            spans = table_spans(table, self._log, self._whole().end) if is_covered else []
            names = (
                *((ItemKind.KEY, key) for key in lookup_keys.keys),
                *((ItemKind.UNIQUE_KEY, key) for key in lookup_keys.keys | lookup_keys.msg_ids),
                *((ItemKind.TAGS, tags) for tags in lookup_keys.tags),
            )
            prefixes = {item_prefix(topic, *name) for topic in topics for name in names}
            return table.find(prefixes, *times), self._outside(spans, lambda _: True)
        except (StoreFormatError, UnsupportedFeatureError) as err:
            logger.warning("%s; the index in it is not used", err)
            return None

    def _whole(self) -> Span:
        log_slice = self._ends.log_slice()
        return Span(log_slice.start, log_slice.end)

    def uncovered(self) -> list[Span]:
        """Return the parts of the log whose keys may be in no index file.

        Each part begins where the frame of a record does. An index file covers the records from
        that of its first item to that of its last item. At both ends a record may be covered in
        part: its other keys may be in an older file or in the next one, which may be lost. A broker
        may still be adding keys to the newest file.

        For example, ten records of 100 bytes each, and files that cover the records at 200 to 400,
        400 to 500, and 700 to 800, leave three parts uncovered::

            [0, 300)     no file covers the first two records,
                         and the record at 200 may be covered in part
            [600, 800)   the same before the third file;
                         the second file continues where the first ends
            [900, 1000)  after the newest file

        The second and the third begin with the record before them, at 500 or 800, if the index
        lacks a key of it.
        """
        return self._outside(
            self._index.spans(self._ends.index_flushed_until()), self._has_all_keys
        )

    def _outside(self, spans: list[Span], has_all_keys: Callable[[int], bool]) -> list[Span]:
        """Return the parts of the log outside of what an index covers.

        Each part begins where a record does.

        Args:
            spans: what is covered, each part from its first record to its last, ascending.
            has_all_keys: returns whether a record before a gap is covered in whole.
        """
        whole = self._whole()
        gaps: list[Span] = []
        covered_until = whole.start
        newest = (-1, whole.start)  # the last record that is covered, and its frame

        def begin_of_gap() -> int:
            last, last_frame = newest
            return covered_until if last < 0 or has_all_keys(last) else last_frame

        for span in spans:
            first, last = max(span.start, whole.start), min(span.end, whole.end)
            first_frame = first if first == whole.start else frame_of(self._log, first)
            last_frame = last if last == whole.end else frame_of(self._log, last)
            if first_frame is None or last_frame is None or last_frame < covered_until:
                continue
            if first_frame > covered_until:
                gaps.append(Span(begin_of_gap(), self._after(first, whole)))
            newest = (last, last_frame)
            covered_until = self._after(last, whole)
        covered_until = begin_of_gap()
        # Only a log that was closed and is not covered to its end has to be read.
        end = whole.end if covered_until >= whole.end else self._ends.end_of_records()
        return [*gaps, Span(covered_until, end)] if covered_until < end else gaps

    def _has_all_keys(self, physical_offset: int) -> bool:
        """Return whether the index holds every key of the record at a physical offset.

        Source: IndexService.java#buildIndex.
        """
        if physical_offset == self._indexed_record:
            return True
        try:
            message = self._log.get(physical_offset, with_body=False)
        except (StoreFormatError, LookupError, OffsetOutOfRangeError):
            return False
        uniq_key = message.properties.get(PROPERTY_UNIQ_KEY, "")
        words = (message.keys or "").split(KEY_SEPARATOR)
        keys = [key for key in (uniq_key, *words) if key]
        hashes = key_hashes([message.topic], keys).ravel()
        if all(
            physical_offset in self._index.find(hashes[row : row + 1]) for row in range(len(hashes))
        ):
            self._indexed_record = physical_offset
        return physical_offset == self._indexed_record

    def _after(self, physical_offset: int, whole: Span) -> int:
        """Return where the frame after the record at a physical offset begins.

        It is the end of the log if no record follows.
        """
        segment = self._log.find(physical_offset)
        if segment is None:
            return physical_offset
        position = physical_offset - segment.start
        size = max(read_frame(self._log, SegmentPosition(segment, position))[0], 0)
        following = position + min(size, segment.size - position)
        if following >= segment.size or is_blank(self._log, SegmentPosition(segment, following)):
            return min(segment.end, whole.end)
        is_written = read_frame(self._log, SegmentPosition(segment, following)) != (0, 0)
        if not is_written and segment.end >= self._log.max_offset:
            return whole.end
        return segment.start + following
