"""What queues and index need of many records: queue units and index keys.

Source: CommitLog.java#checkMessageAndReturnSize, which makes a DispatchRequest of each record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import array_bytes
from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.heads import Heads
from rmqstore.format.columns.property_decode import Entries, parse_entries, property_column
from rmqstore.format.hashing import appended_hashes, java_hash, java_hashes
from rmqstore.format.layout import (
    DELAY_LEVELS_MS,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    QUEUE_UNIT,
    SCHEDULE_TOPIC,
    Bytes,
    Mask,
    SysFlag,
)
from rmqstore.format.utf8 import decode_text

_KEY_SEPARATOR = " "
_TAG_TYPE, _TYPE_SEPARATOR = "T", "#"  # Source: MessageConst.java#INDEX_TAG_TYPE
_FEW = 1 << 16
_MAX_BUFFERED = 1 << 20  # units of some 50 bytes each

# Pairs of (topic, queue id) and the rows of that queue.
Groups = list[tuple[tuple[str, int], NDArray[np.int64]]]


class QueueUnits(NamedTuple):
    """Units of n records, in the order of the log."""

    topics: list[str]  # distinct topics
    topic_codes: NDArray[np.int32]  # (n,) index of each record's topic in topics
    queue_ids: NDArray[np.int32]
    queue_offsets: NDArray[np.int64]
    units: NDArray[np.void]  # layout.QUEUE_UNIT
    store_timestamps: NDArray[np.int64]  # ms

    def take(self, rows: Mask) -> QueueUnits:
        """Return the chosen rows."""
        return QueueUnits(
            self.topics,
            self.topic_codes[rows],
            self.queue_ids[rows],
            self.queue_offsets[rows],
            self.units[rows],
            self.store_timestamps[rows],
        )

    def by_queue(self) -> Groups:
        """Return the rows of each queue, in their order, by topic and queue id."""
        return _groups(self.topics, self.topic_codes, self.queue_ids)


class UnitBuffer:
    """Holds units back until there are many, so that a queue is visited for many units at once.

    A window of the log has a few units of each queue; visiting all queues for every window would
    cost more than the units do.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._codes: dict[str, int] = {}  # of topics
        self._parts: list[QueueUnits] = []
        self._n_rows = 0

    def add(self, units: QueueUnits) -> None:
        """Add units that follow those before them in the log."""
        if not len(units.units):
            return
        codes = [self._codes.setdefault(topic, len(self._codes)) for topic in units.topics]
        topic_codes = np.array(codes, np.int32)[units.topic_codes]
        self._parts.append(units._replace(topics=[], topic_codes=topic_codes))
        self._n_rows += len(units.units)

    @property
    def is_full(self) -> bool:
        """Whether the units take so much memory that they should be taken."""
        return self._n_rows >= _MAX_BUFFERED

    def take(self) -> QueueUnits | None:
        """Return all units in the order of the log, None if there are none; none are held then."""
        if not self._parts:
            return None
        columns = zip(*(part[1:] for part in self._parts), strict=True)
        units = QueueUnits([*self._codes], *(np.concatenate(column) for column in columns))
        self._clear()
        return units._replace(units=units.units.astype(QUEUE_UNIT, copy=False))


class Places(NamedTuple):
    """The fields of n records that are known only when they are stored."""

    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]  # ms

    @classmethod
    def of(cls, heads: Heads) -> Places:
        """Return the fields as the records hold them."""
        return cls(
            heads.column("queue_offset"),
            heads.column("physical_offset"),
            heads.column("store_timestamp"),
        )


class Requests(NamedTuple):
    """What dispatching needs of n records."""

    units: QueueUnits
    has_unit: Mask  # (n,) False for half messages and rollbacks
    key_rows: NDArray[np.int32]  # (m,) the record of each key, rising
    key_hashes: NDArray[np.int32]  # (m,) never negative


def have_units(sys_flags: NDArray[np.int32]) -> Mask:
    """Return a mask (n,) of the records that get a unit: all but half messages and rollbacks."""
    kind = sys_flags & np.int32(SysFlag.TRANSACTION_TYPE)
    mask: Mask = (kind == 0) | (kind == SysFlag.TRANSACTION_COMMIT)
    return mask


def rows_by_queue(
    topic_codes: NDArray[np.int32], queue_ids: NDArray[np.int32]
) -> list[NDArray[np.int64]]:
    """Return the rows of each queue that has any, in their order."""
    if not len(queue_ids):
        return []
    width = int(queue_ids.max()) + 1
    keys: NDArray[np.integer[Any]]
    if int(queue_ids.min()) >= 0 and (int(topic_codes.max()) + 1) * width <= _FEW:
        # numpy sorts integers of 16 bits by radix, which is faster.
        keys = (topic_codes * width + queue_ids).astype(np.uint16)
    else:
        keys = topic_codes.astype(np.int64) << 32 | queue_ids.astype(np.int64) & 0xFFFFFFFF
    order = np.argsort(keys, kind="stable")
    by_queue = keys[order]
    return np.split(order, np.flatnonzero(by_queue[1:] != by_queue[:-1]) + 1)


def topic_names(encoded: pa.DictionaryArray) -> list[str]:
    """Return the distinct topics as text; bytes that are not UTF-8 are replaced."""
    return [decode_text(name) for name in encoded.dictionary.cast(pa.binary()).to_pylist()]


def group_by_queue(topics: pa.StringArray, queue_ids: NDArray[np.int32]) -> Groups:
    """Return the rows of each queue, in their order, by topic and queue id."""
    encoded = topics.dictionary_encode()
    names = topic_names(encoded)
    # to_numpy would import pandas.
    codes = np.from_dlpack(encoded.indices).astype(np.int32, copy=False)
    return _groups(names, codes, queue_ids)


def _groups(
    names: list[str], topic_codes: NDArray[np.int32], queue_ids: NDArray[np.int32]
) -> Groups:
    groups: Groups = []
    for rows in rows_by_queue(topic_codes, queue_ids):
        first = rows[0]
        groups.append(((names[int(topic_codes[first])], int(queue_ids[first])), rows))
    return groups


class TagKeys(NamedTuple):
    """The index keys of the tags of m records, in the order of the log."""

    physical_offsets: NDArray[np.int64]  # (m,)
    hashes: NDArray[np.int32]  # (m,)


def read_requests(buf: Bytes, heads: Heads, places: Places | None = None) -> Requests:
    """Read what dispatching needs of whole records.

    Args:
        buf: the buffer that ``heads`` was read from.
        heads: heads of the records.
        places: offsets and store times of the records, if the heads do not hold them yet.
    """
    encoded = topics(buf, heads).dictionary_encode()
    names = topic_names(encoded)
    codes = encoded.indices.to_numpy()
    places = places or Places.of(heads)
    entries = parse_entries(buf, heads.property_starts, heads.property_lengths)
    units = np.empty(len(heads), QUEUE_UNIT)
    units["physical_offset"] = places.physical_offsets
    units["size"] = heads.column("total_size")
    units["tags_code"] = _tags_codes(entries, names, codes, places.store_timestamps)
    sys_flags = heads.column("sys_flag")
    key_rows, hashes = _keys(entries, names, codes, _are_indexed(sys_flags))
    queue_units = QueueUnits(
        names,
        codes,
        heads.column("queue_id"),
        places.queue_offsets,
        units,
        places.store_timestamps,
    )
    return Requests(queue_units, have_units(sys_flags), key_rows.astype(np.int32), hashes)


def _are_indexed(sys_flags: NDArray[np.int32]) -> Mask:
    """Return a mask (n,) of the records that are indexed: all but rollbacks."""
    mask: Mask = sys_flags & np.int32(SysFlag.TRANSACTION_TYPE) != SysFlag.TRANSACTION_TYPE
    return mask


def _tags_codes(
    entries: Entries,
    names: list[str],
    codes: NDArray[np.int32],
    store_timestamps: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return what units hold in ``tags_code``, int64 (n,).

    It is the hash code of the tags, but the due time for delayed messages.
    """
    tags = property_column(entries, PROPERTY_TAGS).dictionary_encode()
    hashes = np.array([java_hash(tag) for tag in tags.dictionary.to_pylist()] + [0], np.int64)
    without_tags = len(hashes) - 1
    tags_codes: NDArray[np.int64] = hashes[pc.fill_null(tags.indices, without_tags).to_numpy()]
    if SCHEDULE_TOPIC in names:
        levels = property_column(entries, PROPERTY_DELAY).to_pylist()
        for row in np.flatnonzero(codes == names.index(SCHEDULE_TOPIC)).tolist():
            delay = delay_ms(levels[row])
            if delay is not None:
                tags_codes[row] = int(store_timestamps[row]) + delay
    return tags_codes


def delay_ms(level: str | None) -> int | None:
    """Return the delay in ms of the level that property DELAY holds, None if it has none.

    Source: ScheduleMessageService.java#computeDeliverTimestamp;
    CommitLog.java#checkMessageAndReturnSize.
    """
    try:
        number = min(int(level or 0), len(DELAY_LEVELS_MS))
    except ValueError:
        return None
    return DELAY_LEVELS_MS[number - 1] if number > 0 else None


def _keys(
    entries: Entries, names: list[str], codes: NDArray[np.int32], indexed: Mask
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the record and the hash of each key, (m,), record by record.

    The UNIQ_KEY of a record comes first, then each of its KEYS.

    Source: IndexService.java#buildIndex, #buildKey; IndexFile.java#indexKeyHashMethod.
    """
    columns = [
        property_column(entries, PROPERTY_UNIQ_KEY),
        _split_keys(property_column(entries, PROPERTY_KEYS)),
    ]
    parts = []
    for rank, column in enumerate(columns):
        if pa.types.is_list(column.type):
            counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
            rows = np.repeat(np.arange(len(counts)), counts)
            keys = column.flatten()
        else:
            rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            keys = column.drop_null()
        parts.append((rows, np.full(len(rows), rank), *_hashed(keys)))
    rows, ranks, suffixes, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    filled = np.flatnonzero(indexed[rows] & (lengths > 0))
    # The sort is stable, so KEYS keep their order.
    order = filled[np.lexsort((ranks[filled], rows[filled]))]
    rows = rows[order]
    return rows, _key_hashes(names, codes[rows], suffixes[order], lengths[order])


def read_tag_keys(buf: Bytes, heads: Heads) -> TagKeys:
    """Read the keys under which brokers from 5.4 on index the tags of records: ``topic#T#tags``.

    Source: IndexService.java#buildIndex, MessageConst.java#INDEX_TAG_TYPE.
    """
    encoded = topics(buf, heads).dictionary_encode()
    entries = parse_entries(buf, heads.property_starts, heads.property_lengths)
    tags = property_column(entries, PROPERTY_TAGS)
    has_tags = tags.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(has_tags & _are_indexed(heads.column("sys_flag")))
    indexed_tags = tags.take(pa.array(rows))
    keys = pc.binary_join_element_wise(_TAG_TYPE, indexed_tags, _TYPE_SEPARATOR)
    suffixes, lengths = _hashed(keys)
    codes = encoded.indices.to_numpy()[rows].astype(np.int32)
    offsets = heads.column("physical_offset")[rows].astype(np.int64)
    return TagKeys(offsets, _key_hashes(topic_names(encoded), codes, suffixes, lengths))


def key_hashes(topics: list[str], keys: list[str]) -> NDArray[np.int32]:
    """Return the hash in the index of every key under every topic, never negative.

    Returns:
        int32 (len(topics), len(keys)).

    Source: IndexService.java#buildKey; IndexFile.java#indexKeyHashMethod.
    """
    n_topics = len(topics)
    suffixes, lengths = _hashed(pa.array(keys, pa.string()))
    codes = np.repeat(np.arange(n_topics, dtype=np.int32), len(keys))
    hashes = _key_hashes(topics, codes, np.tile(suffixes, n_topics), np.tile(lengths, n_topics))
    return hashes.reshape(n_topics, len(keys))


def _key_hashes(
    names: list[str],
    codes: NDArray[np.int32],
    suffixes: NDArray[np.int32],
    lengths: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Return the hashes in the index of ``topic#key``, (m,).

    Args:
        names: the distinct topics.
        codes: (m,), the index in ``names`` of each key's topic.
        suffixes: (m,), hash codes of the keys.
        lengths: (m,), lengths of the keys in UTF-16 code units.
    """
    prefixes = np.array([java_hash(f"{name}#") for name in names] or [0], np.int32)[codes]
    hashes = appended_hashes(prefixes, suffixes, lengths)
    absolute = np.where(hashes == np.iinfo(np.int32).min, 0, np.abs(hashes))
    return absolute.astype(np.int32)


def _split_keys(keys: pa.Array) -> pa.Array:
    """Return KEYS split into lists, or unchanged if no record has several keys."""
    if not pc.any(pc.match_substring(keys, _KEY_SEPARATOR)).as_py():
        return keys
    return pc.split_pattern(keys, _KEY_SEPARATOR)


def _hashed(texts: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the hash codes of strings, and their lengths in UTF-16 code units."""
    data, offsets = array_bytes(texts.cast(pa.binary()))
    lengths = np.diff(offsets)
    if len(data) and (data[int(offsets[0]) : int(offsets[-1])] & 0x80).any():
        n_units = [len(text.encode("utf-16-be")) // 2 for text in texts.to_pylist()]
        lengths = np.array(n_units, np.int64)
    return java_hashes(data, offsets), lengths
