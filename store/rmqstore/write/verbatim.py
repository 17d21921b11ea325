"""Batches that hold records as stored, for exact copies, to the columns that are encoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError
from rmqstore.format.columns.dispatch_requests import DispatchProperties
from rmqstore.format.columns.hosts import pack_hosts
from rmqstore.format.encoding.properties import PropertyStrings
from rmqstore.format.encoding.records import RecordColumns, TopicColumn
from rmqstore.format.schema import VERBATIM


def verbatim_columns(batch: pa.RecordBatch) -> RecordColumns:
    """Return the columns of records from a batch that holds them as stored.

    Raises:
        IllegalMessageError: a column is missing, of another type, or has nulls.
    """
    for field in VERBATIM:
        if field.name == "commitLogOffset":
            continue
        if field.name not in batch.schema.names:
            raise IllegalMessageError(f"verbatim: column {field.name} is missing")
        given = batch.schema.field(field.name).type
        if given != field.type:
            raise IllegalMessageError(
                f"verbatim: column {field.name} must be {field.type}, got {given}"
            )
        if batch.column(field.name).null_count:
            raise IllegalMessageError(f"verbatim: column {field.name} has nulls")

    def numbers(name: str) -> NDArray[Any]:
        column: NDArray[Any] = batch.column(name).to_numpy()
        return column

    strings = batch.column("properties")
    return RecordColumns(
        topics=TopicColumn.of(batch.column("topic")),
        queue_ids=numbers("queueId"),
        bodies=batch.column("body"),
        properties=PropertyStrings.stored(strings),
        dispatched=DispatchProperties.stored(strings),
        flags=numbers("flag"),
        sys_flags=numbers("sysFlag"),
        born_timestamps=millis(batch, "bornTimestamp"),
        born_hosts=pack_hosts(batch.column("bornHost")),
        store_hosts=pack_hosts(batch.column("storeHost")),
        reconsume_times=numbers("reconsumeTimes"),
        prepared_transaction_offsets=numbers("preparedTransactionOffset"),
    )


def millis(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """Return a column of times, timestamp[us], as epoch ms, int64 (n,)."""
    micros: NDArray[np.int64] = batch.column(name).view(pa.int64()).to_numpy()
    return micros // 1000
