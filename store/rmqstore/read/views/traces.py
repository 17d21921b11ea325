"""View ``traces``: what clients report of sends and consumptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.columns.buffers import booleans, in_calendar
from rmqstore.format.columns.traces import is_trace_topic, trace_columns
from rmqstore.format.schema import TIMESTAMP
from rmqstore.query.damage import CORRUPT_RECORD
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.messages import REASON, MessagesPart, plan_messages
from rmqstore.read.views.parts import ViewPart
from rmqstore.read.views.rows import Column, shown, times, to_batch
from rmqstore.read.views.schema import ViewSpec

# Columns by the field of the trace that they show.
_OF_TRACE: Final = {
    "traceType": "trace_type", "timestamp": "timestamp", "groupName": "group_name",
    "topic": "topic", "msgId": "msg_id", "offsetMsgId": "offset_msg_id", "tags": "tags",
    "keys": "keys", "costMillis": "cost_millis", "isSuccess": "is_success",
    "contextCode": "context_code", "retryTimes": "retry_times", "requestId": "request_id",
    "bodySize": "body_size", "msgType": "msg_type", "storeHost": "store_host",
    "clientHost": "client_host", "regionId": "region_id", "transactionId": "transaction_id",
    "transactionState": "transaction_state", "isTransactionCheck": "is_transaction_check",
}  # fmt: skip
# Columns by the column of the message that holds the trace.
_OF_MESSAGE: Final = {
    "traceTopic": "topic", "queueId": "queueId", "queueOffset": "queueOffset",
    "storeTimestamp": "storeTimestamp", "commitLogOffset": "commitLogOffset",
}  # fmt: skip


def plan_traces(source: StoreParts, spec: ViewSpec, limits: Limits) -> list[ViewPart]:
    """Return the messages of the topics of traces in parts; other topics have to be named."""
    topics = source.store_queues.topics()
    if spec.selection.is_open:
        topics = [topic for topic in topics if is_trace_topic(topic)]
    return plan_messages(source, spec, limits, topics, trace_rows)


def trace_rows(source: StoreParts, spec: ViewSpec, part: MessagesPart) -> Iterator[pa.RecordBatch]:
    """Yield a row for each trace; a message has several."""
    for batch in part.messages(source, spec, ("body", *_OF_MESSAGE.values())):
        parents, fields = trace_columns(batch.column("body"))
        rows = pa.array(parents)
        corrupt = batch.column(CORRUPT_RECORD).take(rows)
        damage: pa.Array = pc.coalesce(corrupt, fields["reason"])
        # Times of no calendar, such as one in microseconds, are not shown.
        millis = fields["timestamp"]
        is_odd = booleans(~in_calendar(millis.fill_null(0).to_numpy()))
        text = pc.binary_join_element_wise(
            "timestamp is not in the years 1 to 9999:", millis.cast(pa.string()), "ms", " "
        )
        odd_times = pc.if_else(is_odd, text, pa.scalar(None, pa.string()))
        columns: dict[str, Column] = {REASON: pc.coalesce(damage, odd_times)}
        for name, column in _OF_MESSAGE.items():
            if name in spec.schema.names:
                columns[name] = batch.column(column).take(rows)
        for name, field in _OF_TRACE.items():
            if name in spec.schema.names:
                is_time = spec.schema.field(name).type == TIMESTAMP
                columns[name] = times(fields[field]) if is_time else fields[field]
        yield from shown(spec, to_batch(spec, source, columns, len(parents)), damage)
