"""Checks of many records that go beyond their heads: topics, checksums and compressed bodies.

The plain form of the first two is ``format.record.check_record``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import (
    booleans,
    gather_spans,
    gather_words,
    mask_of,
    numbers,
    texts,
)
from rmqstore.format.columns.heads import Heads
from rmqstore.format.compression import decompress
from rmqstore.format.hashing import body_crc, body_crcs
from rmqstore.format.layout import (
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_HEAD,
    Bytes,
    Mask,
    Positions,
    SysFlag,
)
from rmqstore.format.record import recorded_crc

# The most bytes of inflated bodies in one batch: no further body is inflated once they are
# exceeded.
_INFLATED_BYTES = 64 << 20


def sound_topics(
    buf: Bytes, heads: Heads, names: list[str], codes: NDArray[np.int32]
) -> tuple[Mask, pa.Array | None]:
    """Return a mask (n,) of the records that have their expected topic, and the expected topics, string (n,).

    The topics are None if all heads share one.

    Args:
        buf: the buffer that ``heads`` was read from.
        heads: n records; for a record that is not whole the mask means nothing.
        names: the distinct expected topics.
        codes: (n,), the index in ``names`` of the topic that each record should have.
    """
    expected = [name.encode() for name in names]
    if heads.common_topic is not None and expected == [heads.common_topic]:
        return np.full(len(heads), fill_value=True), None
    lengths = np.array([len(name) for name in expected])
    sound: Mask = heads.topic_lengths == lengths[codes]
    stored = gather_spans(buf, heads.topic_starts, heads.topic_lengths, pa.binary())
    topics = texts(names).take(numbers(codes))
    sound &= mask_of(pc.equal(stored, topics.view(pa.binary())))
    return sound, topics


def sound_crcs(buf: Bytes, heads: Heads, bodies: pa.Array) -> Mask:
    """Return a mask (n,) of the records whose body CRC is right, and their record CRC if the properties hold one.

    Args:
        buf: the buffer that ``heads`` was read from.
        heads: n records.
        bodies: their bodies as stored, binary (n,).
    """
    sound: Mask = body_crcs(bodies.to_pylist()) == heads.column("body_crc")
    rows = rows_with_crc(buf, heads)
    tails = heads.property_starts[rows] + heads.property_lengths[rows] - CRC_PROPERTY_BYTES
    sizes = heads.column("total_size")
    for row, tail in zip(rows.tolist(), tails.tolist(), strict=True):
        recorded = recorded_crc(buf[tail : tail + CRC_PROPERTY_BYTES].tobytes())
        if recorded is not None and sound[row]:
            start = int(heads.starts[row])
            sound[row] = (
                body_crc(buf[start : start + int(sizes[row]) - CRC_PROPERTY_BYTES].data) == recorded
            )
    return sound


def rows_with_crc(buf: Bytes, heads: Heads) -> Positions:
    """Return the rows (k,) of the records whose properties end with a CRC of the whole record."""
    rows = np.flatnonzero(heads.property_lengths >= CRC_PROPERTY_BYTES)
    tails = heads.property_starts[rows] + heads.property_lengths[rows] - CRC_PROPERTY_BYTES
    with_crc: Positions = rows[
        gather_words(buf, tails) == np.frombuffer(CRC_PROPERTY_HEAD, np.uint64, 1)
    ]
    return with_crc


def inflate_bodies(
    stored: pa.Array, sys_flags: NDArray[np.int32]
) -> tuple[pa.Array, int, dict[int, str]]:
    """Decompress the bodies that are compressed according to their sysFlag.

    Args:
        stored: bodies as stored, binary (n,).
        sys_flags: (n,).

    Returns:
        The bodies of the first k rows, binary (k,); k, which is less than n if all bodies together
        would be too large; and by row the reason why a body does not inflate (the array holds an
        empty body there).
    """
    compressed = (sys_flags & np.int32(SysFlag.COMPRESSED)) != 0
    inflated: list[bytes] = []
    broken: dict[int, str] = {}
    total = 0
    count = len(stored)
    packed = stored.filter(booleans(compressed)).to_pylist()
    rows = np.flatnonzero(compressed).tolist()
    for row, body in zip(rows, packed, strict=True):
        if total > _INFLATED_BYTES:
            count = row
            break
        try:
            inflated.append(decompress(body, int(sys_flags[row])))
        except ValueError as err:
            broken[row] = str(err)
            inflated.append(b"")
        total += len(inflated[-1])
    mask = booleans(compressed[:count])
    bodies = pc.replace_with_mask(stored.slice(0, count), mask, pa.array(inflated, pa.binary()))
    return bodies, count, broken
