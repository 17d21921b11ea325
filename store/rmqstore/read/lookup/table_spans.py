"""Tells which parts of the log an index in RocksDB has all UNIQ_KEYs of.

The table says where it ends, but not where it begins, nor what a broker left out meanwhile: nothing
is indexed while ``indexRocksDBEnable`` is off. A broker puts records into the index in the order
of the log, so a record in each file, and the last one that the table vouches for, are looked up in
it. Files between two records that it has are taken for indexed, as an index file is trusted from
its first record to its last.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from rmqstore.errors import MessageNotFoundError, OffsetOutOfRangeError, StoreFormatError
from rmqstore.format.layout import PROPERTY_UNIQ_KEY, SysFlag
from rmqstore.format.schema import Message
from rmqstore.spans import Span
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.rocksdb.index_table import IndexTable

_RECORDS_TO_TRY = 64  # at the start of a file; some have no UNIQ_KEY, or are rollbacks


class _Mark(NamedTuple):
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
    for mark, following in pairwise(_marks(table, log, end)):
        if mark is None or following is None or table.may_lack_hours((mark.hour, following.hour)):
            continue
        if spans and spans[-1].end == mark.physical_offset:
            spans[-1] = Span(spans[-1].start, following.physical_offset)
        else:
            spans.append(Span(mark.start, following.physical_offset))
    return spans


def _marks(table: IndexTable, log: CommitLog, end: int) -> Iterator[_Mark | None]:
    """Yield what is known of each file, and then of the last record; None if it is not indexed."""
    last = table.last_offset
    if not log.min_offset <= last < end:
        return
    for segment in log.segments:
        if segment.start <= last:
            yield _first_mark(table, log, segment)
    yield _mark(table, log, _message(log, last), last)


def _first_mark(table: IndexTable, log: CommitLog, segment: Segment) -> _Mark | None:
    """Look up the first record of a file with a UNIQ_KEY, None if it is not in the table."""
    place = segment.start
    for _ in range(_RECORDS_TO_TRY):
        message = _message(log, place)
        if message is None:
            return None
        is_rollback = message.sysFlag & SysFlag.TRANSACTION_TYPE == SysFlag.TRANSACTION_TYPE
        if message.properties.get(PROPERTY_UNIQ_KEY) and not is_rollback:
            return _mark(table, log, message, segment.start)
        place += message.storeSize
    return None


def _message(log: CommitLog, place: int) -> Message | None:
    try:
        return log.get(place, check_crc=False)
    except (StoreFormatError, MessageNotFoundError):
        return None
    except OffsetOutOfRangeError:
        if log.find(place) is None:
            return None
        raise


def _mark(table: IndexTable, log: CommitLog, message: Message | None, start: int) -> _Mark | None:
    uniq_key = None if message is None else message.properties.get(PROPERTY_UNIQ_KEY)
    if message is None or not uniq_key:
        return None
    place = message.commitLogOffset
    hour = table.hour_of(message.topic, uniq_key, place, log.store_timestamp(place))
    return None if hour is None else _Mark(start, place, hour)
