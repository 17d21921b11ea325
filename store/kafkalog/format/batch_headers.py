"""Positions and headers of batches as columns: v2 batches and legacy messages."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from struct import Struct
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kafkalog.format.layout import (
    BATCH_HEAD,
    CRC_FROM,
    CREATE_TIME,
    LEAST_LENGTH,
    LEAST_LENGTH_V1,
    LEGACY_CRC_FROM,
    LEGACY_HEAD,
    LEGACY_TIMESTAMP_AT,
    LENGTH_AT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
    NO_TIMESTAMP_TYPE,
    RECORDS_AT,
    Attribute,
)
from rmqstore.errors import UnsupportedFeatureError, install
from rmqstore.format.columns.buffers import windows

Data: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
Longs: TypeAlias = NDArray[np.int64]
Ints: TypeAlias = NDArray[np.int32]
Mask: TypeAlias = NDArray[np.bool_]

_LENGTH = Struct(">i")
_LOW_BYTE = 0xFF  # Kafka knows no other attributes


@dataclass(frozen=True, slots=True)
class BatchHeaders:
    """What the headers of batches say, in the order of the segment.

    A batch is one of format v2, or one message of format v0 or v1, which wraps others if it is
    compressed. Fields that a format lacks are -1. An index or a mask chooses batches.

    Attributes:
        base_position: position in the segment of the data that was walked.
        position: where each batch begins in the segment, (n,), as all that follow.
        size: bytes.
        magic: the format; Kafka reads every magic above 2 as 2.
        base_offset: lower bound of the offsets in a v2 batch; the offset of a legacy message, which
            is the last offset if that wraps others.
        last_offset: last offset of the batch, whose record may be gone.
        crc: checksum as stored.
        attributes: bits of ``layout.Attribute``.
        leader_epoch: -1 if unknown.
        base_timestamp: what the deltas of records are added to; of a v1 message its timestamp.
        max_timestamp: largest timestamp; -1 if there is none, as always in v0.
        producer_id: -1 if the producer is not idempotent.
        producer_epoch: the same.
        base_sequence: the same.
        record_count: number of records; -1 for legacy messages.
        reason: why no batch follows the last one of the walk; None if the data ends there.
    """

    base_position: int
    position: Longs
    size: Longs
    magic: NDArray[np.int8]
    base_offset: Longs
    last_offset: Longs
    crc: NDArray[np.uint32]
    attributes: Ints
    leader_epoch: Ints
    base_timestamp: Longs
    max_timestamp: Longs
    producer_id: Longs
    producer_epoch: Ints
    base_sequence: Ints
    record_count: Ints
    reason: str | None

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, chosen: slice | NDArray[Any]) -> BatchHeaders:
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return replace(self, **columns)

    @property
    def is_v2(self) -> Mask:
        return self.magic >= 2

    @property
    def codec(self) -> Ints:
        return self.attributes & np.int32(Attribute.CODEC)

    @property
    def is_log_append_time(self) -> Mask:
        mask: Mask = self._has(Attribute.LOG_APPEND_TIME) & (self.magic != 0)
        return mask

    @property
    def timestamp_type(self) -> Ints:
        """The type of the timestamps of each batch, as in ``layout``."""
        types = np.where(self.is_log_append_time, LOG_APPEND_TIME, CREATE_TIME)
        return np.where(self.magic == 0, NO_TIMESTAMP_TYPE, types).astype(np.int32)

    @property
    def is_transactional(self) -> Mask:
        return self._has(Attribute.TRANSACTIONAL) & self.is_v2

    @property
    def is_control(self) -> Mask:
        return self._has(Attribute.CONTROL) & self.is_v2

    @property
    def has_delete_horizon(self) -> Mask:
        return self._has(Attribute.DELETE_HORIZON) & self.is_v2

    def check_crcs(self, data: Data) -> Mask:
        """Return a mask (n,) of the batches whose checksum is right.

        Args:
            data: the data that was walked.

        Raises:
            UnsupportedFeatureError: a library is not installed.
        """
        view = view_of(data)
        is_v2 = self.is_v2
        of_batch = crc32c() if is_v2.any() else zlib.crc32
        starts = (self.position - self.base_position).tolist()
        sizes = self.size.tolist()
        computed = np.array(
            [
                of_batch(view[start + CRC_FROM : start + size])
                if is_batch
                else zlib.crc32(view[start + LEGACY_CRC_FROM : start + size])
                for start, size, is_batch in zip(starts, sizes, is_v2.tolist(), strict=True)
            ],
            np.uint32,
        )
        mask: Mask = computed == self.crc
        return mask

    def _has(self, attribute: Attribute) -> Mask:
        return (self.attributes & np.int32(attribute)).astype(np.bool_)


_COLUMNS = tuple(
    name for name in BatchHeaders.__dataclass_fields__ if name not in {"base_position", "reason"}
)


@cache
def crc32c() -> Callable[[memoryview], int]:
    """Return the function that computes CRC-32C (Castagnoli).

    Raises:
        UnsupportedFeatureError: its library is not installed.
    """
    try:
        from crc32c import crc32c as function
    except ImportError as err:
        needed = f"checksums of Kafka's batches need crc32c: {install('kafka')}"
        raise UnsupportedFeatureError(needed) from err
    checked: Callable[[memoryview], int] = function
    return checked


def view_of(data: Data) -> memoryview:
    """Return the bytes of data without a copy."""
    return data.data if isinstance(data, np.ndarray) else memoryview(data)


def walk_batches(data: Data, at: int = 0, base_position: int = 0) -> BatchHeaders:
    """Read the headers of all batches from one on, up to the first place that has none.

    Checksums are not compared. Whatever the bytes are, no error is raised.

    Args:
        data: a part of a segment.
        at: position in ``data`` of the first batch.
        base_position: position in the segment of ``data``.

    Source: FileLogInputStream.java#nextBatch.
    """
    view = view_of(data)
    starts, _, reason = follow(view, at)
    content = np.frombuffer(view, np.uint8)
    begins = np.array(starts, np.int64)
    legacy = windows(content, LEGACY_HEAD.itemsize)[begins].view(LEGACY_HEAD)
    magic = legacy["magic"].astype(np.int8)
    base_offset = legacy["offset"].astype(np.int64)
    columns: dict[str, NDArray[Any]] = {
        "position": begins + base_position,
        "size": legacy["length"].astype(np.int64) + LOG_OVERHEAD,
        "magic": magic,
        "base_offset": base_offset,
        "last_offset": base_offset.copy(),
        "crc": legacy["crc"].astype(np.uint32),
        "attributes": legacy["attributes"].astype(np.int32),
    }
    for name in ("base_timestamp", "max_timestamp", "producer_id"):
        columns[name] = np.full(len(begins), -1, np.int64)
    for name in ("leader_epoch", "producer_epoch", "base_sequence", "record_count"):
        columns[name] = np.full(len(begins), -1, np.int32)
    rows = np.flatnonzero(magic == 1)
    if len(rows):
        stored = windows(content, 8)[begins[rows] + LEGACY_TIMESTAMP_AT].view(">i8")
        columns["base_timestamp"][rows] = columns["max_timestamp"][rows] = stored
    rows = np.flatnonzero(magic >= 2)
    if len(rows):
        headers = windows(content, RECORDS_AT)[begins[rows]].view(BATCH_HEAD)
        columns["last_offset"][rows] = base_offset[rows] + headers["last_delta"]
        columns["attributes"][rows] = headers["attributes"].astype(np.int32) & _LOW_BYTE
        for name in (
            "crc", "leader_epoch", "base_timestamp", "max_timestamp", "producer_id",
            "producer_epoch", "base_sequence", "record_count",
        ):  # fmt: skip
            columns[name][rows] = headers[name]
    return BatchHeaders(base_position=base_position, reason=reason, **columns)


def follow(view: memoryview, at: int) -> tuple[list[int], int, str | None]:
    """Return the positions of batches, the end of the chain, and its reason."""
    starts: list[int] = []
    n_bytes = len(view)
    read_length = _LENGTH.unpack_from
    last_header = n_bytes - LOG_OVERHEAD - LEAST_LENGTH
    while at <= last_header:
        (length,) = read_length(view, at + LENGTH_AT)
        magic = view[at + MAGIC_AT]
        least = RECORDS_AT - LOG_OVERHEAD
        if magic == 1:
            least = LEAST_LENGTH_V1
        elif magic == 0 or magic > 0x7F:
            least = LEAST_LENGTH
        if length < least:
            is_zero = not any(view[at : at + RECORDS_AT])
            return starts, at, "zeros" if is_zero else f"a batch cannot have the length {length}"
        end = at + LOG_OVERHEAD + length
        if end > n_bytes:
            return starts, at, f"a batch of {length + LOG_OVERHEAD} bytes is cut off"
        starts.append(at)
        at = end
    if at == n_bytes:
        return starts, at, None
    if any(view[at:]):
        return starts, at, f"{n_bytes - at} bytes are too few for a batch"
    return starts, at, "zeros"
