"""Columns of records, as Arrow types."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

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
