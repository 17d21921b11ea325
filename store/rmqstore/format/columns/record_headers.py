"""The fixed parts of many records as columns, with every length checked, without a loop per record.

The plain form of the same checks is ``format.record.check_record``; tests/equivalence compares the
two.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import in_calendar, windows
from rmqstore.format.layout import (
    FIXED_PART,
    FIXED_PART_V4,
    MAX_V1_TOPIC_BYTES,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    PROPERTIES_LENGTH_BYTES,
    Bytes,
    Mask,
    Positions,
    SysFlag,
)

# Fields whose offset depends on the width of the hosts.
_SHIFTED = ("store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_length")


@dataclass(frozen=True, slots=True)
class RecordHeaders:
    """Columns of n records; positions are those in the buffer that the records were read from.

    Attributes:
        fixed: layout.FIXED_PART_V4 (n,), also of records with IPv6 hosts, without these hosts.
        common_topic: the topic of all records, if it was expected and confirmed.
    """

    starts: Positions
    fixed: NDArray[np.void]
    body_starts: Positions
    body_lengths: Positions
    topic_starts: Positions
    topic_lengths: Positions
    property_starts: Positions
    property_lengths: Positions
    common_topic: bytes | None = None
    _columns: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.starts)

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of the fixed part in native byte order, (n,).

        It is cached, because checks and columns share many fields.
        """
        column = self._columns.get(name)
        if column is None:
            stored = self.fixed[name]
            column = self._columns[name] = stored.astype(stored.dtype.newbyteorder("="))
        return column

    def hosts_v4(self, name: str) -> NDArray[np.uint64]:
        """Return the 8 bytes of an IPv4 host in memory order, (n,).

        They mean nothing for a record with IPv6 hosts.
        """
        n = len(self)
        if not n:
            return np.empty(0, np.uint64)
        field_offset = FIXED_PART_V4.fields[name][1]  # type: ignore[index]
        strides = (FIXED_PART_V4.itemsize,)
        return np.ndarray((n,), np.uint64, self.fixed, field_offset, strides).copy()

    def take(self, rows: Mask | Positions | slice) -> RecordHeaders:
        """Return the chosen rows."""
        # numpy copies named fields one by one, and a whole item at once.
        unnamed = self.fixed.view((np.void, FIXED_PART_V4.itemsize))
        return RecordHeaders(
            self.starts[rows],
            unnamed[rows].view(FIXED_PART_V4),
            self.body_starts[rows],
            self.body_lengths[rows],
            self.topic_starts[rows],
            self.topic_lengths[rows],
            self.property_starts[rows],
            self.property_lengths[rows],
            self.common_topic,
        )

    def placed(
        self, queue_ids: NDArray[np.int32], queue_offsets: NDArray[np.int64]
    ) -> RecordHeaders:
        """Return the same records with other queue ids and queue offsets, (n,) each."""
        fixed = self.fixed.copy()
        fixed["queue_id"] = queue_ids
        fixed["queue_offset"] = queue_offsets
        return replace(self, fixed=fixed, _columns={})


def read_headers(
    buf: Bytes, starts: Positions, topic: bytes | None = None
) -> tuple[RecordHeaders, Mask]:
    """Read the fixed parts of the records at ``starts`` and locate their variable parts.

    Args:
        buf: uint8 (nbytes,), a view of one CommitLog file; it is neither copied nor written.
        starts: int64 (n,), any positions, in any order.
        topic: the topic that all records should have, a hint that saves time if it is right.

    Returns:
        The headers, and a mask (n,) of the whole records: their lengths agree with one another and
        stay inside ``buf``. The fields of the others mean nothing, but it is safe to read at their
        positions.

    Source: CommitLog.java#checkMessageAndReturnSize.
    """
    if len(buf) < MIN_RECORD_BYTES:
        fixed = np.zeros(len(starts), FIXED_PART_V4)
        no = np.zeros(len(starts), np.int64)
        headers = RecordHeaders(starts, fixed, no, no, no, no, no, no)
        return headers, np.zeros(len(starts), np.bool_)
    whole = (starts >= 0) & (starts <= len(buf) - MIN_RECORD_BYTES)
    safe = starts if whole.all() else np.where(whole, starts, 0)
    fixed = windows(buf, FIXED_PART_V4.itemsize)[safe].view(FIXED_PART_V4)

    magics = fixed["magic"].astype(np.int32)
    sizes = fixed["total_size"].astype(np.int64)
    is_v2 = magics == MESSAGE_MAGIC_V2
    whole &= (magics == MESSAGE_MAGIC_V1) | is_v2
    whole &= (sizes >= MIN_RECORD_BYTES) & (sizes <= len(buf) - safe)

    widths = _normalise_hosts(buf, safe, fixed, sizes, whole)
    body_starts: Positions = np.add(safe, widths)
    body_lengths = fixed["body_length"].astype(np.int64)
    topic_width = np.where(is_v2, 2, 1) if is_v2.any() else 1
    rest = sizes - widths - topic_width - PROPERTIES_LENGTH_BYTES
    whole &= (body_lengths >= 0) & (body_lengths <= rest)
    body_lengths = _only(body_lengths, whole)

    tails = body_starts + body_lengths
    tail_lengths = rest - body_lengths  # of topic and properties
    topic_starts = tails + topic_width
    is_plain = not is_v2.any() and whole.all()
    if topic is not None and is_plain and _tails_match(buf, tails, topic, tail_lengths):
        topic_lengths = np.full(len(starts), len(topic), np.int64)
        property_starts = topic_starts + (len(topic) + PROPERTIES_LENGTH_BYTES)
        property_lengths = tail_lengths - len(topic)
    else:
        topic = None
        np.minimum(topic_starts, len(buf) - PROPERTIES_LENGTH_BYTES, out=topic_starts)
        topic_lengths = buf[topic_starts - 1].view(np.int8).astype(np.int64)
        if is_v2.any():
            high = buf[topic_starts - 2].view(np.int8).astype(np.int64) << 8
            topic_lengths = np.where(is_v2, high | (topic_lengths & 0xFF), topic_lengths)
        whole &= (topic_lengths >= 0) & (topic_lengths <= tail_lengths)
        topic_lengths = _only(topic_lengths, whole)

        property_starts = topic_starts + topic_lengths + PROPERTIES_LENGTH_BYTES
        np.minimum(property_starts, len(buf), out=property_starts)
        high = buf[property_starts - 2].view(np.int8).astype(np.int64) << 8
        property_lengths = high | buf[property_starts - 1]
        whole &= property_lengths == tail_lengths - topic_lengths
        property_lengths = _only(property_lengths, whole)
    headers = RecordHeaders(
        starts,
        fixed,
        body_starts,
        body_lengths,
        topic_starts,
        topic_lengths,
        property_starts,
        property_lengths,
        common_topic=topic,
    )
    return headers, whole


def _tails_match(buf: Bytes, tails: Positions, topic: bytes, tail_lengths: Positions) -> bool:
    """Return whether all V1 records have this topic, and properties that fill the rest.

    Args:
        tails: (n,), where the body of each record ends.
        topic: the topic that all should have.
        tail_lengths: (n,), bytes of topic and properties together.
    """
    expected = bytes([len(topic) & 0xFF]) + topic
    width = -(-(len(expected) + PROPERTIES_LENGTH_BYTES) // 8) * 8
    if not len(tails) or len(topic) > MAX_V1_TOPIC_BYTES or int(tails.max()) + width > len(buf):
        return False
    stored = windows(buf, width)[tails]
    words = stored.view(np.uint64).reshape(len(tails), -1)
    masks = np.frombuffer((b"\xff" * len(expected)).ljust(width, b"\0"), np.uint64)
    expected_words = np.frombuffer(expected.ljust(width, b"\0"), np.uint64)
    for word, mask, expected_word in zip(words.T, masks, expected_words, strict=True):
        if mask and ((word & mask) != expected_word).any():
            return False
    stored_bytes = stored.view(np.uint8).reshape(len(tails), width)
    high = stored_bytes[:, len(expected)].astype(np.int64)
    low = stored_bytes[:, len(expected) + 1].astype(np.int64)
    return bool(((high << 8 | low) == tail_lengths - len(topic)).all() and (high < 0x80).all())


def _normalise_hosts(
    buf: Bytes, starts: Positions, fixed: NDArray[np.void], sizes: Positions, whole: Mask
) -> Positions | int:
    """Bring records with IPv6 hosts into the IPv4 form.

    Returns:
        The width of each fixed part on disk, (n,), or one width if no record has IPv6 hosts.
    """
    bits = fixed["sys_flag"].astype(np.int32) & np.int32(SysFlag.HOSTS_V6)
    if not bits.any():
        return FIXED_PART_V4.itemsize
    widths = np.full(len(starts), FIXED_PART_V4.itemsize, np.int64)
    for flags, kind in FIXED_PART.items():
        rows = np.flatnonzero((bits == flags) & whole) if flags else np.empty(0, np.intp)
        if not len(rows):
            continue
        fits = sizes[rows] >= kind.itemsize + MIN_RECORD_BYTES - FIXED_PART_V4.itemsize
        whole[rows[~fits]] = False
        rows = rows[fits]
        wide = windows(buf, kind.itemsize)[starts[rows]].view(kind)
        v4_hosts = () if flags & SysFlag.STORE_HOST_V6 else ("store_host",)
        for name in (*_SHIFTED, *v4_hosts):
            fixed[name][rows] = wide[name]
        widths[rows] = kind.itemsize
    return widths


def _only(values: NDArray[Any], whole: Mask) -> NDArray[Any]:
    """Return the values of whole records, and 0 for the others."""
    return values if whole.all() else np.where(whole, values, 0)


def check_headers(
    headers: RecordHeaders, physical_base: int | Positions, *, any_time: bool = False
) -> Mask:
    """Return a mask (n,) of the records with the right physical offset and a store time in range.

    The range is the years 1 to 9999; with ``any_time`` it is not asked for. The time when a message
    was born is its client's, and no broker looks at it.

    Args:
        headers: whole records.
        physical_base: physical offset of the buffer's first byte; (n,) if it is another for each
            record.
    """
    valid: Mask = headers.column("physical_offset") == headers.starts + physical_base
    if not any_time:
        valid &= in_calendar(headers.column("store_timestamp"))
    return valid
