"""What queues and index need of many records: queue units and index keys.

Source: CommitLog.java#checkMessageAndReturnSize, which makes a DispatchRequest of each record;
IndexService.java#buildIndex, #buildKey; IndexFile.java#indexKeyHashMethod.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import StoreStateError
from rmqstore.format.columns.buffers import (
    are_filled,
    array_bytes,
    as_binary,
    booleans,
    bounded,
    codes_of,
    find_byte,
    numbers,
    texts,
)
from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.property_decode import Entries, parse_entries, property_column
from rmqstore.format.columns.record_headers import RecordHeaders
from rmqstore.format.hashing import appended_hashes, java_hash, java_hashes
from rmqstore.format.layout import (
    DELAY_LEVELS_MS,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    QUEUE_UNIT,
    SCHEDULE_TOPIC,
    Bytes,
    Mask,
    Positions,
    SysFlag,
)
from rmqstore.format.text import decode_text

_KEY_SEPARATOR = ord(" ")
_TAG_TYPE, _TYPE_SEPARATOR = "T", "#"  # Source: MessageConst.java#INDEX_TAG_TYPE

_FEW = 1 << 16
_MOST_MESSAGES = 1 << 17  # that take a row each at once
_MAX_BUFFERED = 1 << 20  # units of some 50 bytes each

# Pairs of (topic, queue id) and the rows of that queue.
Groups = list[tuple[tuple[str, int], NDArray[np.int64]]]


def index_keys(
    names: list[str],
    codes: NDArray[np.int32],
    indexed: Mask,
    uniq_keys: pa.StringArray | None,
    keys: pa.StringArray | None,
    tags: pa.StringArray | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the record and the hash of each key, (m,), record by record.

    The UNIQ_KEY of a record comes first, then each of its KEYS, then the key of its tags.

    Args:
        names: the distinct topics.
        codes: (n,), the index in ``names`` of each record's topic.
        indexed: (n,), False for records that are not indexed.
        uniq_keys, keys: the properties UNIQ_KEY and KEYS, string (n,), null where a record lacks
            them; None if no record has them.
        tags: the property TAGS in the same form; None if tags are not indexed.
    """
    kinds = [_single_keys(uniq_keys, indexed), _split_keys(keys, indexed)]
    if tags is not None:
        tag_rows, chosen_tags = _single_keys(tags, indexed)
        kinds.append((tag_rows, tag_keys(chosen_tags)))
    kinds = [(of_rows, words) for of_rows, words in kinds if len(of_rows)]
    every = np.arange(len(codes), dtype=np.int32)
    if all(np.array_equal(of_rows, every) for of_rows, _ in kinds):  # mostly
        hashed = [topic_key_hashes(names, codes, *hash_texts(words)) for _, words in kinds]
        columns = np.column_stack(hashed) if hashed else np.empty(0, np.int32)
        return np.repeat(every, len(kinds)), columns.ravel()
    counts = [np.bincount(of_rows, minlength=len(codes)) for of_rows, _ in kinds]
    ends = [np.cumsum(count) for count in counts]
    rows = np.empty(sum(len(of_rows) for of_rows, _ in kinds), np.int32)
    hashes = np.empty(len(rows), np.int32)
    for kind, (of_rows, words) in enumerate(kinds):
        # A key comes after all keys of earlier records, and after the earlier keys of its record.
        key_numbers = np.arange(len(of_rows))
        for other, (count, end) in enumerate(zip(counts, ends, strict=True)):
            if other != kind:
                key_numbers += (end if other < kind else end - count)[of_rows]
        rows[key_numbers] = of_rows
        hashes[key_numbers] = topic_key_hashes(names, codes[of_rows], *hash_texts(words))
    return rows, hashes


def tag_key(tags: str) -> str:
    """Return the key of tags; see :func:`tag_keys`."""
    return f"{_TAG_TYPE}{_TYPE_SEPARATOR}{tags}"


def tag_keys(tags: pa.StringArray) -> pa.StringArray:
    """Return the keys under which brokers from 5.4 on index tags, without their topic.

    Source: IndexService.java#buildIndex, #buildKey.
    """
    return pc.binary_join_element_wise(_TAG_TYPE, tags, _TYPE_SEPARATOR)


def _single_keys(keys: pa.StringArray | None, indexed: Mask) -> tuple[Positions, pa.StringArray]:
    """Return the records that have a key, and their keys."""
    if keys is None:
        return np.empty(0, np.int64), pa.nulls(0, pa.string())
    rows = np.flatnonzero(indexed & are_filled(keys))
    return rows, keys if len(rows) == len(keys) else keys.take(numbers(rows))


def _split_keys(keys: pa.StringArray | None, indexed: Mask) -> tuple[Positions, pa.StringArray]:
    """Return KEYS split at their spaces: the record of each key, and the keys; none is empty."""
    rows, keys = _single_keys(keys, indexed)
    data, offsets = array_bytes(keys)
    used = data[int(offsets[0]) : int(offsets[-1])]
    spaces = find_byte(used, _KEY_SEPARATOR) + int(offsets[0])
    if not len(spaces):
        return rows, keys
    # Every space ends a key and becomes a key of its own, which is left out again.
    bounds = np.sort(np.concatenate((offsets, spaces, spaces + 1))).astype(np.int32)
    starts, lengths = bounds[:-1], np.diff(bounds)
    is_key = (lengths > 0) & (data[np.minimum(starts, len(data) - 1)] != _KEY_SEPARATOR)
    parts = bounded(pa.string(), bounds, data)
    key_of_part = np.searchsorted(offsets, starts[is_key], side="right") - 1
    return rows[key_of_part], parts.filter(booleans(is_key))


def key_hashes(topics: list[str], keys: list[str]) -> NDArray[np.int32]:
    """Return the hash in the index of every key under every topic, never negative.

    Returns:
        int32 (len(topics), len(keys)).

    Source: IndexService.java#buildKey; IndexFile.java#indexKeyHashMethod.
    """
    n_topics = len(topics)
    suffixes, lengths = hash_texts(pa.array(keys, pa.string()))
    codes = np.repeat(np.arange(n_topics, dtype=np.int32), len(keys))
    hashes = topic_key_hashes(
        topics, codes, np.tile(suffixes, n_topics), np.tile(lengths, n_topics)
    )
    return hashes.reshape(n_topics, len(keys))


def topic_key_hashes(
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


def hash_texts(texts: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the hash codes of strings, and their lengths in UTF-16 code units."""
    data, offsets = array_bytes(texts)
    lengths = np.diff(offsets)
    if len(data) and (data[int(offsets[0]) : int(offsets[-1])] & 0x80).any():
        decoded = [decode_text(text) for text in as_binary(texts).to_pylist()]
        n_units = [len(text.encode("utf-16-be", "surrogatepass")) // 2 for text in decoded]
        lengths = np.array(n_units, np.int64)
    return java_hashes(data, offsets), lengths


class QueueUnits(NamedTuple):
    """Units of n records, in the order of the log."""

    topics: list[str]  # distinct topics
    topic_codes: NDArray[np.int32]  # (n,) index of each record's topic in topics
    queue_ids: NDArray[np.int32]
    queue_offsets: NDArray[np.int64]
    units: NDArray[np.void]  # layout.QUEUE_UNIT
    store_timestamps: NDArray[np.int64]  # ms

    def take(self, rows: Mask | Positions) -> QueueUnits:
        """Return the chosen rows."""
        return QueueUnits._make([self.topics, *(column[rows] for column in self[1:])])

    def topics_of(self, rows: Mask) -> set[str]:
        """Return the topics of chosen rows."""
        return {self.topics[code] for code in np.unique(self.topic_codes[rows]).tolist()}

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


class PlacedFields(NamedTuple):
    """The fields of n records that are known only when they are stored."""

    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]  # ms

    @classmethod
    def of(cls, headers: RecordHeaders) -> PlacedFields:
        """Return the fields as the records hold them."""
        return cls(
            headers.column("queue_offset"),
            headers.column("physical_offset"),
            headers.column("store_timestamp"),
        )


class DispatchRules(NamedTuple):
    """What a broker's settings and its version say about units and keys."""

    index_tags: bool = False  # the index holds tags too, as that of brokers from 5.4 on
    # The delay of each level in ms, level 1 first; None where the store's broker has others than
    # RocketMQ's own, and nothing says which. Source: MessageStoreConfig.java#messageDelayLevel.
    delay_levels: tuple[int, ...] | None = DELAY_LEVELS_MS


USUAL_RULES = DispatchRules()
# In place of the time of delivery of a message whose level has an unknown delay.
UNKNOWN_TIME: Final = -(1 << 63)


class DispatchRequests(NamedTuple):
    """What dispatching needs of n records."""

    units: QueueUnits
    has_unit: Mask  # (n,) False for half messages and rollbacks
    key_rows: NDArray[np.int32]  # (m,) the record of each key, rising
    key_hashes: NDArray[np.int32]  # (m,) never negative
    may_name_lmqs: bool = True  # whether a record may be a message of several queues

    def units_of_messages(
        self, counts: NDArray[np.int64], batch_topics: Container[str]
    ) -> Iterator[QueueUnits]:
        """Yield the units of the records that have one, in their order.

        Each message of an inner batch gets a row. A few bytes may say that a record holds thousands
        of messages, so they come in groups of not too many.

        Args:
            counts: the number of messages of each record, (n,), see ``count_messages``.
            batch_topics: the topics whose queues are BatchConsumeQueues; others have one unit for a
                record, whatever it holds.
        """
        in_batches = np.array([topic in batch_topics for topic in self.units.topics], np.bool_)
        counts = np.where(in_batches[self.units.topic_codes], counts, 1) * self.has_unit
        group = (np.cumsum(counts) - counts) // _MOST_MESSAGES
        cuts = (np.flatnonzero(np.diff(group)) + 1).tolist()
        for low, high in pairwise([0, *cuts, len(counts)]):
            n_rows = counts[low:high]
            rows = np.repeat(np.arange(low, high), n_rows)
            ranks = np.arange(len(rows)) - np.repeat(np.cumsum(n_rows) - n_rows, n_rows)
            units = self.units.take(rows)
            yield units._replace(queue_offsets=units.queue_offsets + ranks)


def have_units(sys_flags: NDArray[np.int32]) -> Mask:
    """Return a mask (n,) of the records that get a unit: all but half messages and rollbacks."""
    kind = sys_flags & np.int32(SysFlag.TRANSACTION_TYPE)
    mask: Mask = (kind == 0) | (kind == SysFlag.TRANSACTION_COMMIT)
    return mask


def order_by_queue(
    topic_codes: NDArray[np.int32], queue_ids: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows ordered by queue, (n,), and where each queue begins among them, (k,)."""
    if not len(queue_ids):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    width = int(queue_ids.max()) + 1
    keys: NDArray[np.integer[Any]]
    if int(queue_ids.min()) >= 0 and (int(topic_codes.max()) + 1) * width <= _FEW:
        # numpy sorts integers of 16 bits by radix, which is faster.
        keys = (topic_codes * width + queue_ids).astype(np.uint16)
    else:
        keys = topic_codes.astype(np.int64) << 32 | queue_ids.astype(np.int64) & 0xFFFFFFFF
    order = np.argsort(keys, kind="stable")
    by_queue = keys[order]
    is_first = np.append(True, by_queue[1:] != by_queue[:-1])
    return order, np.flatnonzero(is_first)


def rows_by_queue(
    topic_codes: NDArray[np.int32], queue_ids: NDArray[np.int32]
) -> list[NDArray[np.int64]]:
    """Return the rows of each queue that has any, in their order."""
    order, starts = order_by_queue(topic_codes, queue_ids)
    return np.split(order, starts[1:]) if len(order) else []


def topic_names(encoded: pa.DictionaryArray) -> list[str]:
    """Return the distinct topics as text; bytes that are not UTF-8 are replaced."""
    return [decode_text(name) for name in encoded.dictionary.cast(pa.binary()).to_pylist()]


def group_by_queue(topics: pa.StringArray, queue_ids: NDArray[np.int32]) -> Groups:
    """Return the rows of each queue, in their order, by topic and queue id."""
    encoded = topics.dictionary_encode()
    names = topic_names(encoded)
    return _groups(names, codes_of(encoded), queue_ids)


def queue_keys(topics: pa.StringArray, queue_ids: NDArray[np.int32]) -> set[tuple[str, int]]:
    """Return the topic and id of each queue that any of the records is of."""
    encoded = topics.dictionary_encode()
    names, codes = topic_names(encoded), codes_of(encoded)
    pairs = {*zip(codes.tolist(), queue_ids.tolist(), strict=True)}
    return {(names[code], queue_id) for code, queue_id in pairs}


def _groups(
    names: list[str], topic_codes: NDArray[np.int32], queue_ids: NDArray[np.int32]
) -> Groups:
    groups: Groups = []
    for rows in rows_by_queue(topic_codes, queue_ids):
        first = rows[0]
        groups.append(((names[int(topic_codes[first])], int(queue_ids[first])), rows))
    return groups


_DISPATCHED = (PROPERTY_TAGS, PROPERTY_DELAY, PROPERTY_UNIQ_KEY, PROPERTY_KEYS)
_IN_UNITS = (PROPERTY_TAGS, PROPERTY_DELAY)


class DispatchProperties(NamedTuple):
    """The properties of n records that queues and index need, string (n,) each.

    They are null where a record lacks them, and None if no record has them.
    """

    tags: pa.StringArray | None
    delays: pa.StringArray | None
    uniq_keys: pa.StringArray | None
    keys: pa.StringArray | None

    @classmethod
    def choose(cls, column: Callable[[str], pa.StringArray | None]) -> DispatchProperties:
        """Return the properties that a function returns by their names."""
        return cls(*(column(name) for name in _DISPATCHED))

    @classmethod
    def of(cls, entries: Entries, names: Container[str] = _DISPATCHED) -> DispatchProperties:
        """Return the properties among those that were parsed, or only those of some names."""
        known = [name for name in entries.names if name in names]
        return cls.choose(lambda name: property_column(entries, name) if name in known else None)

    def take(self, rows: slice) -> DispatchProperties:
        """Return consecutive rows."""
        return DispatchProperties(*(None if column is None else column[rows] for column in self))


class UnplacedRequests(NamedTuple):
    """What dispatching needs of n records, but for their places."""

    topics: list[str]  # distinct topics
    topic_codes: NDArray[np.int32]  # (n,) index of each record's topic in topics
    queue_ids: NDArray[np.int32]
    sizes: NDArray[np.int32]
    has_unit: Mask  # (n,) False for half messages and rollbacks
    tags_codes: NDArray[np.int64]  # (n,), to which the store time of delayed messages is added
    is_delayed: Mask | None  # (n,), None if no message is
    key_rows: NDArray[np.int32]  # (m,) the record of each key, rising
    key_hashes: NDArray[np.int32]  # (m,) never negative

    def placed(self, stored: PlacedFields) -> DispatchRequests:
        """Return the requests of the records where they were stored."""
        units = np.empty(len(self.sizes), QUEUE_UNIT)
        units["physical_offset"] = stored.physical_offsets
        units["size"] = self.sizes
        tags_codes = self.tags_codes
        if self.is_delayed is not None:
            tags_codes = tags_codes + np.where(self.is_delayed, stored.store_timestamps, 0)
        units["tags_code"] = tags_codes
        queue_units = QueueUnits(
            self.topics,
            self.topic_codes,
            self.queue_ids,
            stored.queue_offsets,
            units,
            stored.store_timestamps,
        )
        return DispatchRequests(queue_units, self.has_unit, self.key_rows, self.key_hashes)


def unplaced_requests(
    topics: list[str],
    topic_codes: NDArray[np.int32],
    queue_ids: NDArray[np.int32],
    sizes: NDArray[np.int32],
    sys_flags: NDArray[np.int32],
    properties: DispatchProperties,
    rules: DispatchRules = USUAL_RULES,
) -> UnplacedRequests:
    """Return what dispatching needs of n records from their columns, (n,) each.

    Args:
        topics: the distinct topics.
        topic_codes: the index of each record's topic in ``topics``.
        queue_ids: queue ids.
        sizes: bytes of the records.
        sys_flags: ``sysFlag`` as stored.
        properties: the properties that queues and index need.
        rules: those of the broker.
    """
    # What units hold is the hash code of the tags, but the due time of delayed messages: here
    # their delay in ms.
    tags_codes = np.zeros(len(topic_codes), np.int64)
    if properties.tags is not None:
        # A record without tags has the hash code of the empty text, which is 0.
        encoded = properties.tags.fill_null(texts([""])[0]).dictionary_encode()
        tag_hashes = np.array([java_hash(tag) for tag in topic_names(encoded)], np.int64)
        tags_codes = tag_hashes[codes_of(encoded)]
    is_delayed: Mask | None = None
    if SCHEDULE_TOPIC in topics and properties.delays is not None:
        is_delayed = np.zeros(len(topic_codes), np.bool_)
        for row in np.flatnonzero(topic_codes == topics.index(SCHEDULE_TOPIC)).tolist():
            level = properties.delays[row].as_py()
            delay = delay_ms(level, rules.delay_levels or DELAY_LEVELS_MS)
            if delay is not None:
                is_delayed[row] = rules.delay_levels is not None
                tags_codes[row] = delay if is_delayed[row] else UNKNOWN_TIME
    key_rows, hashes = index_keys(
        topics,
        topic_codes,
        are_indexed(sys_flags),
        properties.uniq_keys,
        properties.keys,
        properties.tags if rules.index_tags else None,
    )
    return UnplacedRequests(
        topics,
        topic_codes,
        queue_ids,
        sizes,
        have_units(sys_flags),
        tags_codes,
        is_delayed,
        key_rows,
        hashes,
    )


def read_requests(
    buf: Bytes, headers: RecordHeaders, rules: DispatchRules = USUAL_RULES
) -> DispatchRequests:
    """Read what dispatching needs of whole records.

    Args:
        buf: the buffer that the headers were read from.
        headers: headers of the records.
        rules: those of the broker.
    """
    entries = parse_entries(buf, headers.property_starts, headers.property_lengths)
    requests = _requests_of(buf, headers, DispatchProperties.of(entries), rules)
    return requests._replace(may_name_lmqs=PROPERTY_MULTI_DISPATCH in entries.names)


def read_queue_units(
    buf: Bytes, headers: RecordHeaders, rules: DispatchRules = USUAL_RULES
) -> QueueUnits:
    """Read the units of whole records, without the keys that the index needs.

    The arguments are those of :func:`read_requests`.
    """
    entries = parse_entries(buf, headers.property_starts, headers.property_lengths)
    properties = DispatchProperties.of(entries, names=_IN_UNITS)
    rules = rules._replace(index_tags=False)
    return _requests_of(buf, headers, properties, rules).units


def _requests_of(
    buf: Bytes, headers: RecordHeaders, properties: DispatchProperties, rules: DispatchRules
) -> DispatchRequests:
    if headers.common_topic is not None:
        names = [decode_text(headers.common_topic)]
        codes: NDArray[np.int32] = np.zeros(len(headers), np.int32)
    else:
        encoded = topics(buf, headers).dictionary_encode()
        names = topic_names(encoded)
        codes = codes_of(encoded)
    requests = unplaced_requests(
        names,
        codes,
        headers.column("queue_id"),
        headers.column("total_size"),
        headers.column("sys_flag"),
        properties,
        rules,
    )
    return requests.placed(PlacedFields.of(headers))


def are_indexed(sys_flags: NDArray[np.int32]) -> Mask:
    """Return a mask (n,) of the records that are indexed: all but rollbacks."""
    mask: Mask = sys_flags & np.int32(SysFlag.TRANSACTION_TYPE) != SysFlag.TRANSACTION_TYPE
    return mask


def unknown_delay() -> StoreStateError:
    """Return the error for unknown delays of the levels."""
    return StoreStateError(
        "the units of delayed messages need the broker's table of levels: the store has other "
        "times of delivery than RocketMQ's usual messageDelayLevel gives; name the broker's "
        "properties file, `conf=`"
    )


def delay_ms(level: str | None, delay_levels: tuple[int, ...] = DELAY_LEVELS_MS) -> int | None:
    """Return the delay in ms of the level that property DELAY holds, None if it has none.

    Source: ScheduleMessageService.java#computeDeliverTimestamp;
    CommitLog.java#checkMessageAndReturnSize.
    """
    try:
        number = min(int(level or 0), len(delay_levels))
    except ValueError:
        return None
    return delay_levels[number - 1] if number > 0 else None
