"""Checks of many records that look beyond the heads: topics, checksums, compressed bodies.

The plain form of the first two is ``format.record.check_record``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import booleans, gather_spans, gather_words, mask_of, numbers, texts
from rmqstore.format.columns.heads import Heads
from rmqstore.format.compression import decompress
from rmqstore.format.hashing import body_crc, body_crcs
from rmqstore.format.layout import CRC_PROPERTY_BYTES, CRC_PROPERTY_HEAD, Bytes, Mask, Positions, SysFlag
from rmqstore.format.record import recorded_crc

# Bodies inflated for one batch; a batch ends before the body that would take it further.
_INFLATED_BYTES = 64 << 20


def sound_topics(buf: Bytes, heads: Heads, names: list[str], codes: NDArray[np.int32]) -> tuple[Mask, pa.Array | None]:
    """Return a mask (n,) of the records whose topic is the expected one, and the expected topics, string (n,).

    The topics are None where all heads have one in common.

    Args:
        buf: the buffer of the heads.
        heads: n records; of those that are not whole the answer means nothing.
        names: expected topics.
        codes: (n,), which of them each record should have.
    """
    expected = [name.encode() for name in names]
    if heads.common_topic is not None and expected == [heads.common_topic]:
        return np.full(len(heads), fill_value=True), None
    lengths = np.array([len(name) for name in expected])
    same_length: Mask = heads.topic_lengths == lengths[codes]
    found = gather_spans(buf, heads.topic_starts, heads.topic_lengths, pa.binary())
    wanted = texts(names).take(numbers(codes))
    same_length &= mask_of(pc.equal(found, wanted.view(pa.binary())))
    return same_length, wanted


def sound_crcs(buf: Bytes, heads: Heads, bodies: pa.Array) -> Mask:
    """Return a mask (n,) of the records whose body CRC is right, and the record CRC where the properties hold one.

    Args:
        buf: the buffer of the heads.
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
            sound[row] = body_crc(buf[start : start + int(sizes[row]) - CRC_PROPERTY_BYTES].data) == recorded
    return sound


def rows_with_crc(buf: Bytes, heads: Heads) -> Positions:
    """Return the rows (k,) of the records whose properties end with a CRC of the whole record."""
    rows = np.flatnonzero(heads.property_lengths >= CRC_PROPERTY_BYTES)
    tails = heads.property_starts[rows] + heads.property_lengths[rows] - CRC_PROPERTY_BYTES
    found: Positions = rows[gather_words(buf, tails) == np.frombuffer(CRC_PROPERTY_HEAD, np.uint64, 1)]
    return found


def inflate_bodies(stored: pa.Array, sys_flags: NDArray[np.int32]) -> tuple[pa.Array, int, dict[int, str]]:
    """Decompress the bodies that their sysFlag says are compressed.

    Args:
        stored: binary (n,).
        sys_flags: (n,).

    Returns:
        The bodies of the first rows, binary (k,); k, less than n where all would be too much at once; and for
        bodies that do not inflate the reason, by row (the array holds an empty body there).
    """
    compressed = (sys_flags & np.int32(SysFlag.COMPRESSED)) != 0
    inflated: list[bytes] = []
    broken: dict[int, str] = {}
    total, count = 0, len(stored)
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
