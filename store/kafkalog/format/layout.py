"""The format of batches as constants: dtypes with byte offsets in the margin, flags and limits.

Every integer is big-endian and signed, but for the CRCs. "Legacy" are the formats v0 and v1, in
which a message stands for itself or wraps a compressed chain of messages.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

import numpy as np
import pyarrow as pa

# Columns that name a partition.
KEY_FIELDS: Final = (
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
)
HEADER: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
)
# A timestamp is null where the format or the producer gave none (-1 on disk). The numbers of
# timestamp_type are those of NO_TIMESTAMP_TYPE and its neighbours in format.layout, as in Spark.
RECORD: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("timestamp_type", pa.int32(), nullable=False),
        pa.field("headers", pa.list_(HEADER), nullable=False),
        pa.field("leader_epoch", pa.int32()),
    ]
)


class Codec(IntEnum):
    """How records are compressed. Source: CompressionType.java."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4  # in v2 only


class Attribute(IntFlag):
    """Bits of the attributes of a batch. Source: DefaultRecordBatch.java."""

    CODEC = 0x07
    LOG_APPEND_TIME = 0x08  # from v1 on
    TRANSACTIONAL = 0x10  # these in v2 only
    CONTROL = 0x20
    DELETE_HORIZON = 0x40


# Source: TimestampType.java
NO_TIMESTAMP_TYPE: Final = -1
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
NO_TIMESTAMP: Final = -1

# What every batch and message begins with.
LENGTH_AT: Final = 8
MAGIC_AT: Final = 16
LOG_OVERHEAD: Final = 12  # bytes that the length does not count
LEAST_LENGTH: Final = 14  # Source: LegacyRecord.java#RECORD_OVERHEAD_V0
LEAST_LENGTH_V1: Final = 22  # Source: LegacyRecord.java#RECORD_OVERHEAD_V1

# Source: DefaultRecordBatch.java
BATCH_HEAD: Final = np.dtype(
    [
        ("base_offset", ">i8"),  #     0
        ("length", ">i4"),  #          8
        ("leader_epoch", ">i4"),  #   12
        ("magic", "i1"),  #           16
        ("crc", ">u4"),  #            17
        ("attributes", ">i2"),  #     21
        ("last_delta", ">i4"),  #     23
        ("base_timestamp", ">i8"),  # 27
        ("max_timestamp", ">i8"),  #  35
        ("producer_id", ">i8"),  #    43
        ("producer_epoch", ">i2"),  # 51
        ("base_sequence", ">i4"),  #  53
        ("record_count", ">i4"),  #   57
    ]
)
RECORDS_AT: Final = BATCH_HEAD.itemsize  # 61
CRC_FROM: Final = 21  # the CRC-32C of a batch covers everything from here on

# Source: LegacyRecord.java
LEGACY_HEAD: Final = np.dtype(
    [
        ("offset", ">i8"),  #     0
        ("length", ">i4"),  #     8
        ("crc", ">u4"),  #       12
        ("magic", "i1"),  #      16
        ("attributes", "u1"),  # 17
    ]
)
LEGACY_TIMESTAMP_AT: Final = LEGACY_HEAD.itemsize  # 18, in v1; in v0 the key's length
LEGACY_CRC_FROM: Final = 16  # the CRC-32 of a message covers everything from here on

# The least bytes of a record: its length and, of a byte each, attributes, two deltas, two lengths
# and the number of headers.
LEAST_RECORD: Final = 7
LEAST_RECORD_BODY: Final = LEAST_RECORD - 1
LEAST_HEADER: Final = 2

# A batch that inflates to more is refused. A broker does not limit what a batch inflates to; a
# producer collects a few MiB at most before it compresses them.
MAX_INFLATED_BYTES: Final = 256 << 20
