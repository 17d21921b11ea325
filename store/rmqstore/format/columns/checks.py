"""Checks of many records that go beyond their headers: topics, checksums and compressed bodies.

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
from rmqstore.format.columns.record_headers import RecordHeaders
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

# Bytes of inflated bodies in one batch: once they are exceeded, no further body is inflated.
_INFLATED_BYTES = 64 << 20


def valid_topics(
    buf: Bytes, headers: RecordHeaders, names: list[str], codes: NDArray[np.int32]
) -> tuple[Mask, pa.Array | None]:
    """Return a mask (n,) of the records that have their expected topic, and these topics.

    The topics are a string array (n,), or None if all headers share one.

    Args:
        buf: the buffer that ``record_headers`` was read from.
        headers: n records; for a record that is not whole the mask means nothing.
        names: the distinct expected topics.
        codes: (n,), the index in ``names`` of the topic that each record should have.
    """
    expected = [name.encode() for name in names]
    if headers.common_topic is not None and expected == [headers.common_topic]:
        return np.full(len(headers), fill_value=True), None
    lengths = np.array([len(name) for name in expected])
    valid: Mask = headers.topic_lengths == lengths[codes]
    stored = gather_spans(buf, headers.topic_starts, headers.topic_lengths, pa.binary())
    topics = texts(names).take(numbers(codes))
    valid &= mask_of(pc.equal(stored, topics.view(pa.binary())))
    return valid, topics


def valid_crcs(
    buf: Bytes, headers: RecordHeaders, bodies: pa.Array, *, of_records: bool = True
) -> Mask:
    """Return a mask (n,) of the records whose CRCs are right.

    Every record has a CRC of its body, which nobody compares if the body is empty; some hold one of
    the whole record in their properties.

    Source: CommitLog.java#checkMessageAndReturnSize.

    Args:
        buf: the buffer that ``record_headers`` was read from.
        headers: n records.
        bodies: their bodies as stored, binary (n,).
        of_records: whether to compare CRCs of whole records.
    """
    valid: Mask = body_crcs(bodies.to_pylist()) == headers.column("body_crc")
    valid |= headers.body_lengths == 0
    if not of_records:
        return valid
    rows = rows_with_crc(buf, headers)
    tails = headers.property_starts[rows] + headers.property_lengths[rows] - CRC_PROPERTY_BYTES
    sizes = headers.column("total_size")
    for row, tail in zip(rows.tolist(), tails.tolist(), strict=True):
        recorded = recorded_crc(buf[tail : tail + CRC_PROPERTY_BYTES].tobytes())
        if recorded is not None and valid[row]:
            start = int(headers.starts[row])
            end = start + int(sizes[row]) - CRC_PROPERTY_BYTES
            valid[row] = body_crc(buf[start:end].data) == recorded
    return valid


def rows_with_crc(buf: Bytes, headers: RecordHeaders) -> Positions:
    """Return the rows (k,) of the records whose properties end with a CRC of the whole record."""
    rows = np.flatnonzero(headers.property_lengths >= CRC_PROPERTY_BYTES)
    tails = headers.property_starts[rows] + headers.property_lengths[rows] - CRC_PROPERTY_BYTES
    crc_head = np.frombuffer(CRC_PROPERTY_HEAD, np.uint64, 1)
    with_crc: Positions = rows[gather_words(buf, tails) == crc_head]
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
        would be too large; and by row the reason why a body does not inflate. The array holds an
        empty body in its place.
    """
    is_compressed = (sys_flags & np.int32(SysFlag.COMPRESSED)) != 0
    rows = np.flatnonzero(is_compressed).tolist()
    compressed = stored.filter(booleans(is_compressed)).to_pylist()
    inflated: list[bytes] = []
    n_inflated_bytes = 0
    reasons: dict[int, str] = {}
    count = len(stored)
    for row, body in zip(rows, compressed, strict=True):
        if n_inflated_bytes > _INFLATED_BYTES:
            count = row
            break
        try:
            inflated.append(decompress(body, int(sys_flags[row])))
        except ValueError as err:
            reasons[row] = str(err)
            inflated.append(b"")
        n_inflated_bytes += len(inflated[-1])
    mask = booleans(is_compressed[:count])
    bodies = pc.replace_with_mask(stored.slice(0, count), mask, pa.array(inflated, pa.binary()))
    return bodies, count, reasons
