"""Filters of records by what they say: topic, queue, times, keys and tags.

What queues or topics.json know plays no part. A unit that holds an address in place of the tags
code leads to the file of extensions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError, OptionError
from rmqstore.format.columns.buffers import in_calendar, mask_of, texts
from rmqstore.format.columns.decode import decode_columns
from rmqstore.format.columns.dispatch_requests import rows_by_queue
from rmqstore.format.columns.property_decode import parse_entries, property_column
from rmqstore.format.columns.record_headers import RecordHeaders
from rmqstore.format.hashing import may_match
from rmqstore.format.layout import (
    MAX_EXT_ADDRESS,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    Bytes,
    Mask,
    SysFlag,
)
from rmqstore.format.schema import ALL_COLUMNS
from rmqstore.format.topics import is_system_topic
from rmqstore.query.damage import DROPMALFORMED, FAILFAST
from rmqstore.query.selection import BY_LOG, KEY_SEPARATOR, NO_LOOKUP_KEYS, LookupKeys, Selection
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.rows import UnitRows
from rmqstore.storage.queue.consumequeue import ConsumeQueueExt

logger = logging.getLogger(__name__)

OpenExt = Callable[[str, int], ConsumeQueueExt]


def resolve_codes(units: UnitRows, open_ext: OpenExt) -> NDArray[np.int64]:
    """Return the tags codes (n,) of units; an address that leads to no valid unit stays."""
    codes = units.tags_codes
    rows = np.flatnonzero(codes <= MAX_EXT_ADDRESS)
    if not len(rows):
        return codes
    codes = codes.copy()
    for members in rows_by_queue(units.topic_codes[rows], units.queue_ids[rows]):
        own = rows[members]
        ext = open_ext(*units.key(own[0]))
        ext_units = ext.units(codes[own])
        codes[own[ext_units.valid]] = ext_units.tags_codes[ext_units.valid]
    return codes


def keep_resolved(units: UnitRows, open_ext: OpenExt, spec: ReadSpec) -> UnitRows:
    """Return the units whose messages are read if column ``tagsCode`` is.

    In mode PERMISSIVE a message whose code is lost stays, with null in the column and the reason.

    Raises:
        CorruptQueueError: a code is lost, and the mode is FAILFAST.
    """
    lost = np.flatnonzero(units.tags_codes <= MAX_EXT_ADDRESS)
    if not len(lost) or spec.mode not in (FAILFAST, DROPMALFORMED):
        return units
    first = units.expected(int(lost[0]))
    path, byte = open_ext(first.topic, first.queue_id).location(int(units.tags_codes[lost[0]]))
    queue = f"{first.topic}-{first.queue_id}"
    reason = (
        f"no unit of consumequeue_ext, where queue offset {first.queue_offset} of {queue} "
        "keeps its tags code: leave column tagsCode out to read the message"
    )
    if spec.mode == FAILFAST:
        raise CorruptQueueError(path, byte, reason)
    logger.warning("dropped %d messages, the first: %s, byte %d: %s", len(lost), path, byte, reason)
    return units.take(units.tags_codes > MAX_EXT_ADDRESS)


def matched_groups(
    ext: ConsumeQueueExt, code: int, topic: str, groups: Mapping[str, int]
) -> list[str] | None:
    """Return the groups whose filter a message may match, by the Bloom bit map of its unit.

    None if there is no bit map.

    Args:
        ext: the consumequeue_ext of its queue.
        code: the tags code of its queue unit.
        topic: topic of the message.
        groups: the groups to check, each with the time (ms) when its filter was made. A message
            that was stored before that time may match.

    Source: ExpressionMessageFilter.java#isMatchedByConsumeQueue.
    """
    if code > MAX_EXT_ADDRESS:
        return None
    address = np.array([code], np.int64)
    bit_map = ext.bit_maps(address)[0].as_py()
    if bit_map is None:
        return None
    stored = int(ext.units(address).store_timestamps[0])
    return [
        group
        for group, filter_made in groups.items()
        if stored <= filter_made or may_match(bit_map, group, topic)
    ]


class LogFilter(NamedTuple):
    """The filter of a scan in physical order; what is None, or no keys, lets all records pass."""

    # The queue ids of each topic; None for all of its queues.
    queues: Mapping[str, frozenset[int] | None] | None = None
    topic_pattern: re.Pattern[str] | None = None
    start_timestamp: int | None = None  # ms
    end_timestamp: int | None = None
    without_system_topics: bool = False
    # A record has one of the keys as UNIQ_KEY or among its KEYS, one of the ids as msgId or as
    # offsetMsgId, and one of the tags as TAGS; a rollback has only the offsetMsgId.
    lookup_keys: LookupKeys = NO_LOOKUP_KEYS

    @property
    def chooses_topics(self) -> bool:
        """Whether only some topics are wanted, by name or by pattern."""
        return self.queues is not None or self.topic_pattern is not None

    def keep(self, data: Bytes, headers: RecordHeaders) -> Mask:
        """Return a mask (n,) of the records that pass."""
        mask = np.ones(len(headers), np.bool_)
        if self == ALL_RECORDS:
            return mask
        times = headers.column("store_timestamp")
        if self.start_timestamp is not None:
            mask &= times >= self.start_timestamp
        if self.end_timestamp is not None:
            mask &= times < self.end_timestamp
        mask |= ~in_calendar(times)  # such a record is damaged, and when it was stored not known
        if self.chooses_topics or self.without_system_topics:
            topics = decode_columns(data, headers, pa.schema([ALL_COLUMNS.field("topic")]))[0]
            encoded = topics.dictionary_encode()
            names = encoded.dictionary.to_pylist()
            codes = encoded.indices.to_numpy()
            mask &= np.array([self._wants(name) for name in names], np.bool_)[codes]
            for code, name in enumerate(names):
                queue_ids = (self.queues or {}).get(name)
                if queue_ids is not None:
                    mask &= (codes != code) | np.isin(headers.column("queue_id"), list(queue_ids))
        keys, msg_ids, tags = self.lookup_keys
        if keys:
            mask &= has_key(data, headers, keys)
        if msg_ids:
            schema = pa.schema([ALL_COLUMNS.field(name) for name in ("msgId", "offsetMsgId")])
            own_ids, offset_ids = decode_columns(data, headers, schema)
            has_own_id = _is_in(own_ids, msg_ids) & ~_are_rollbacks(headers)
            mask &= has_own_id | _is_in(offset_ids, msg_ids)
        if tags:
            entries = parse_entries(data, headers.property_starts, headers.property_lengths)
            own_tags = property_column(entries, PROPERTY_TAGS)
            mask &= _is_in(own_tags, tags) & ~_are_rollbacks(headers)
        return mask

    def _wants(self, topic: str) -> bool:
        if self.without_system_topics and is_system_topic(topic):
            return False
        if self.queues is not None:
            return topic in self.queues
        return self.topic_pattern is None or bool(self.topic_pattern.fullmatch(topic))


ALL_RECORDS: Final = LogFilter()


def has_key(data: Bytes, headers: RecordHeaders, keys: Collection[str]) -> Mask:
    """Return a mask (n,) of the records that have one of some keys as UNIQ_KEY or in KEYS.

    Rollbacks have none: they are in no index either.

    Source: IndexService.java#buildIndex.
    """
    entries = parse_entries(data, headers.property_starts, headers.property_lengths)
    mask = _is_in(property_column(entries, PROPERTY_UNIQ_KEY), keys)
    lists = pc.split_pattern(property_column(entries, PROPERTY_KEYS), KEY_SEPARATOR)
    hits = _is_in(lists.flatten(), keys)
    if hits.any():
        mask[pc.list_parent_indices(lists).to_numpy()[hits]] = True
    mask &= ~_are_rollbacks(headers)
    return mask


def _are_rollbacks(headers: RecordHeaders) -> Mask:
    types = headers.column("sys_flag") & np.int32(SysFlag.TRANSACTION_TYPE)
    mask: Mask = types == SysFlag.TRANSACTION_TYPE
    return mask


def _is_in(values: pa.Array, allowed: Collection[str]) -> Mask:
    return mask_of(pc.is_in(values, value_set=texts([*allowed]), skip_nulls=True))


def log_filter(
    selection: Selection, columns: list[str], lookup_keys: LookupKeys = NO_LOOKUP_KEYS
) -> LogFilter:
    """Return what a selection means for a scan in the order of the log.

    Args:
        selection: topics and times. Without topics a scan reads all, a look-up those of users.
        columns: the columns to read.
        lookup_keys: the keys, ids or tags of a look-up.

    Raises:
        OptionError: the selection has queue offsets, or a column is one that only a queue has.
    """
    selection.require_by_log()
    if "tagsCode" in columns:
        raise OptionError(
            f"tagsCode stands in the ConsumeQueue, which {BY_LOG} and look-ups do not read"
        )
    queues: Mapping[str, frozenset[int] | None] | None = selection.assign
    if selection.subscribe is not None:
        queues = dict.fromkeys(selection.subscribe)
    pattern = selection.subscribe_pattern
    return LogFilter(
        queues,
        None if pattern is None else re.compile(pattern),
        selection.start.timestamp,
        selection.end.timestamp,
        bool(lookup_keys) and selection.is_open and not selection.include_system_topics,
        lookup_keys,
    )
