"""Message traces: what clients report of sends and consumptions, as columns.

A client with tracing switched on collects traces and sends them as messages to a topic for traces.
Such a body is text: traces end with 0x02, and their fields are separated by 0x01. The first field
is the type; which fields follow depends on it and, for some types, on the version of the client:

- ``Pub``, a send: 13 fields in the first versions, 14 since the offset message id was added, 15 in
  4.8, which adds the client's host.
- ``SubBefore``, before a consumption: 8 fields, 9 in 4.8.
- ``SubAfter``, after a consumption: 7 fields, 9 since 4.8. Clients of the cloud end it with an
  empty eighth field.
- ``EndTransaction``, since 4.9: 13 fields.
- ``Recall``, since 5.3: 7 fields.

Source: TraceDataEncoder.java, TraceConstants.java, TraceType.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import valid_text
from rmqstore.format.layout import Mask, Positions

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
_CLOUD_PREFIX: Final = "rmq_sys_TRACE_DATA_"  # Source: TraceConstants.java#TRACE_TOPIC_PREFIX

FIELD_SEPARATOR, TRACE_SEPARATOR = "\x01", "\x02"
# What Java appends for a value that is missing.
MISSING: Final = "null"

# Source: MessageType.java, by ordinal.
MESSAGE_TYPES: Final = (
    "Normal_Msg",
    "Trans_Msg_Half",
    "Trans_msg_Commit",
    "Delay_Msg",
    "Order_Msg",
)

PUB = "Pub"
# By type: the position of each field. Those of Pub are the ones of 14 fields and more. A timestamp
# says when a send or a consumption began, that of SubAfter when it ended. The cost_millis of a
# consumption are the mean over the messages that were consumed together, and its context_code is 0
# for success, 1 timeout, 2 exception, 3 null returned, 4 failure.
FIELDS: Final[Mapping[str, Mapping[str, int]]] = {
    PUB: {
        "timestamp": 1, "region_id": 2, "group_name": 3, "topic": 4, "msg_id": 5, "tags": 6,
        "keys": 7, "store_host": 8, "body_size": 9, "cost_millis": 10, "msg_type": 11,
        "offset_msg_id": 12, "is_success": 13, "client_host": 14,
    },
    "SubBefore": {
        "timestamp": 1, "region_id": 2, "group_name": 3, "request_id": 4, "msg_id": 5,
        "retry_times": 6, "keys": 7, "client_host": 8,
    },
    "SubAfter": {
        "request_id": 1, "msg_id": 2, "cost_millis": 3, "is_success": 4, "keys": 5,
        "context_code": 6, "timestamp": 7, "group_name": 8,
    },
    "EndTransaction": {
        "timestamp": 1, "region_id": 2, "group_name": 3, "topic": 4, "msg_id": 5, "tags": 6,
        "keys": 7, "store_host": 8, "msg_type": 9, "transaction_id": 10, "transaction_state": 11,
        "is_transaction_check": 12,
    },
    "Recall": {
        "timestamp": 1, "region_id": 2, "group_name": 3, "topic": 4, "msg_id": 5, "is_success": 6,
    },
}  # fmt: skip
# A Pub of 13 fields has no offset message id.
SHORT_PUB, SHORT_PUB_SUCCESS = 13, 12
# The least number of fields of a type; with fewer a trace is damaged.
LEAST_FIELDS: Final = {PUB: 13, "SubBefore": 8, "SubAfter": 6, "EndTransaction": 13, "Recall": 7}
# Numbers by their bits. An empty context code or time is one that the client did not send.
NUMBERS: Final = {
    "timestamp": 64, "body_size": 32, "cost_millis": 32, "retry_times": 32, "context_code": 32,
    "msg_type": 32,
}  # fmt: skip
MAY_BE_EMPTY: Final = {("SubAfter", "timestamp"), ("SubAfter", "context_code")}
FLAGS: Final = ("is_success", "is_transaction_check")

NO_TRACE: Final = "the body holds no trace"
UNKNOWN_TYPE: Final = "the type of the trace is not known"
UNKNOWN_MESSAGE_TYPE: Final = "msg_type is not the number of a message type"


def is_trace_topic(topic: str) -> bool:
    """Return whether a topic is one that holds traces by default."""
    return topic == TRACE_TOPIC or topic.startswith(_CLOUD_PREFIX)


def too_few(trace_type: str) -> str:
    """Return the reason for a trace that ends too early."""
    return f"a trace {trace_type} has at least {LEAST_FIELDS[trace_type]} fields"


def not_a_number(name: str) -> str:
    """Return the reason for a field that should be a number."""
    return f"{name} is not a number"


_TYPES: Final = tuple(FIELDS)
_NAMES: Final = tuple(dict.fromkeys(chain.from_iterable(FIELDS.values())))
_NUMBER_PATTERN: Final = "^-?[0-9]{1,19}$"
_SURE_NUMBER: Final = "^-?[0-9]{1,18}$"  # fits into 64 bits


def trace_columns(bodies: pa.Array) -> tuple[Positions, dict[str, pa.Array]]:
    """Return the traces of bodies as columns.

    Args:
        bodies: the bodies of n messages, binary; null for those that cannot be read.

    Returns:
        The number of the message of each trace, in rising order, and by name the type of each
        trace (``trace_type``), the fields of :data:`FIELDS`, and what is wrong (``reason``). What
        its type does not have, or its client did not send, is null. A message without a trace, or
        without a body, has one all the same, of nulls.
    """
    bodies = valid_text(bodies.view(pa.string()))
    parts = pc.split_pattern(bodies.fill_null(""), TRACE_SEPARATOR)
    n_parts = _lengths(parts)
    parents = np.repeat(np.arange(len(n_parts)), n_parts)
    texts = parts.flatten()
    holds_trace = pc.not_equal(texts, "").to_numpy(zero_copy_only=False)
    n_traces = np.bincount(parents[holds_trace], minlength=len(n_parts))
    is_first = np.ones(len(parents), np.bool_)
    is_first[1:] = parents[1:] != parents[:-1]
    is_kept = holds_trace | (is_first & (n_traces[parents] == 0))
    parents = parents[is_kept]
    has_body = bodies.is_valid().to_numpy(zero_copy_only=False)[parents]
    texts = _where(texts.filter(pa.array(is_kept)), has_body)
    fields = pc.split_pattern(texts.fill_null(""), FIELD_SEPARATOR)
    return parents, _Traces(texts, fields).columns()


def _lengths(lists: pa.ListArray) -> Positions:
    lengths: Positions = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    return lengths


class _Traces:
    """Traces whose fields are one after the other in one array.

    Args:
        texts: the traces, (n,); null where there is no body.
        fields: the fields of each, lists (n,).
    """

    def __init__(self, texts: pa.Array, fields: pa.ListArray) -> None:
        self._values = fields.values
        self._starts = fields.offsets.to_numpy()[:-1].astype(np.int64)
        self._counts = _lengths(fields)
        self._has_body = texts.is_valid().to_numpy(zero_copy_only=False)
        self._is_empty = pc.equal(texts.fill_null(""), "").to_numpy(zero_copy_only=False)
        self._type_names = self._values.take(pa.array(self._starts))
        codes = pc.index_in(self._type_names, value_set=pa.array(_TYPES))
        self._types = codes.fill_null(-1).to_numpy()  # (n,), positions in _TYPES
        self._is_short_pub = (self._types == _TYPES.index(PUB)) & (self._counts == SHORT_PUB)
        # By reason, and in the order in which they are looked for.
        self._faults: dict[tuple[int, str], Mask] = {}

    def columns(self) -> dict[str, pa.Array]:
        """Return the types, fields and faults of the traces by name."""
        columns: dict[str, pa.Array] = {
            "trace_type": _where(self._type_names, ~self._is_empty),
        }
        for name in _NAMES:
            positions = self._positions(name)
            valid = (positions >= 0) & (positions < self._counts)
            rows = np.where(valid, self._starts + positions, 0)
            texts = self._values.take(pa.array(rows, mask=~valid))
            if name in FLAGS:
                columns[name] = pc.equal(pc.ascii_lower(texts), "true")
            elif name in NUMBERS:
                columns[name] = self._numbers(name, texts, valid)
            else:
                is_missing = pc.equal(texts, MISSING).fill_null(fill_value=False)
                columns[name] = _where(texts, ~is_missing.to_numpy(zero_copy_only=False))
        # The first reason of each trace, null where it is valid.
        faults = [
            (NO_TRACE, self._has_body & self._is_empty),
            (UNKNOWN_TYPE, ~self._is_empty & (self._types < 0)),
        ]
        for code, kind in enumerate(_TYPES):
            is_short = (self._types == code) & (self._counts < LEAST_FIELDS[kind])
            faults.append((too_few(kind), is_short))
        by_position = sorted(self._faults.items(), key=lambda fault: fault[0][0])
        faults += [(reason, mask) for (_, reason), mask in by_position]
        reasons = pa.array([*(reason for reason, _ in faults), None], pa.string())
        codes = np.select([mask for _, mask in faults], [*range(len(faults))], len(faults))
        columns["reason"] = reasons.take(pa.array(codes))
        return columns

    def _positions(self, name: str) -> Positions:
        """Return the position of a field in its trace, (n,); -1 if the type lacks it."""
        table = np.array([FIELDS[kind].get(name, -1) for kind in _TYPES] + [-1], np.int64)
        positions: Positions = table[self._types]
        if name == "offset_msg_id":
            positions[self._is_short_pub] = -1
        if name == "is_success":
            positions[self._is_short_pub] = SHORT_PUB_SUCCESS
        return positions

    def _numbers(self, name: str, texts: pa.Array, valid: Mask) -> pa.Array:
        """Return texts as numbers, null where one is not a number, or has too many bits."""
        is_sure = pc.match_substring_regex(texts, _SURE_NUMBER)
        numbers = pc.if_else(is_sure, texts, pa.scalar(None, pa.string())).cast(pa.int64())
        is_long = pc.and_not(pc.match_substring_regex(texts, _NUMBER_PATTERN), is_sure)
        rows = np.flatnonzero(is_long.fill_null(fill_value=False).to_numpy(zero_copy_only=False))
        if len(rows):
            values = numbers.to_pylist()
            long_texts = texts.take(pa.array(rows)).to_pylist()
            for row, text in zip(rows.tolist(), long_texts, strict=True):
                values[row] = int(text) if -1 << 63 <= int(text) < 1 << 63 else None
            numbers = pa.array(values, pa.int64())
        if NUMBERS[name] != 64:
            limit = 1 << NUMBERS[name] - 1
            fits = pc.and_(pc.greater_equal(numbers, -limit), pc.less(numbers, limit))
            numbers = pc.if_else(fits, numbers, pa.scalar(None, pa.int64())).cast(pa.int32())
        lacking = valid & numbers.is_null().to_numpy(zero_copy_only=False)
        is_empty = pc.equal(texts, "").fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        for code, kind in enumerate(_TYPES):
            if (kind, name) in MAY_BE_EMPTY:
                lacking &= ~(is_empty & (self._types == code))
        self._note(name, not_a_number(name), lacking)
        if name != "msg_type":
            return numbers
        known = numbers.fill_null(-1).to_numpy()
        is_known = (known >= 0) & (known < len(MESSAGE_TYPES))
        is_number = numbers.is_valid().to_numpy(zero_copy_only=False)
        self._note(name, UNKNOWN_MESSAGE_TYPE, is_number & ~is_known)
        codes = pa.array(np.where(is_known, known, 0), mask=~is_known)
        return pa.array(MESSAGE_TYPES, pa.string()).take(codes)

    def _note(self, name: str, reason: str, mask: Mask) -> None:
        """Note a fault of a field, which may have another position in each type."""
        if mask.any():
            positions = self._positions(name)
            for position in np.unique(positions[mask]).tolist():
                self._faults[position, reason] = mask & (positions == position)


def _where(values: pa.Array, valid: NDArray[Any]) -> pa.Array:
    """Return values with null in place of those that are not valid."""
    return pc.if_else(pa.array(valid), values, pa.scalar(None, values.type))
