"""The traces of one body, parsed field by field: what the columns of many bodies have to equal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import make_dataclass
from itertools import chain

from rmqstore.format.columns.traces import (
    FIELD_SEPARATOR,
    FIELDS,
    FLAGS,
    LEAST_FIELDS,
    MAY_BE_EMPTY,
    MESSAGE_TYPES,
    MISSING,
    NO_TRACE,
    NUMBERS,
    PUB,
    SHORT_PUB,
    SHORT_PUB_SUCCESS,
    TRACE_SEPARATOR,
    UNKNOWN_MESSAGE_TYPE,
    UNKNOWN_TYPE,
    not_a_number,
    too_few,
)

_NAMES = ("trace_type", *dict.fromkeys(chain.from_iterable(FIELDS.values())), "reason")
# What its type does not have, or its client did not send, is None.
Trace = make_dataclass("Trace", [(name, object, None) for name in _NAMES])
_NUMBER = re.compile(r"-?[0-9]{1,19}")


def parse_traces(body: str) -> Iterator[Trace]:
    """Yield the traces of one body; of a body without any, one that says so."""
    parts = [part for part in body.split(TRACE_SEPARATOR) if part]
    yield from map(_parse_trace, parts)
    if not parts:
        yield Trace(reason=NO_TRACE)


def _parse_trace(text: str) -> Trace:
    trace_type, *fields = text.split(FIELD_SEPARATOR)
    if trace_type not in FIELDS:
        return Trace(trace_type, reason=UNKNOWN_TYPE)
    values: dict[str, object] = {}
    reasons: list[str | None] = []
    if len(fields) + 1 < LEAST_FIELDS[trace_type]:
        reasons.append(too_few(trace_type))
    positions = dict(FIELDS[trace_type])
    if trace_type == PUB and len(fields) + 1 == SHORT_PUB:
        del positions["offset_msg_id"]
        positions["is_success"] = SHORT_PUB_SUCCESS
    for name, position in positions.items():
        if position <= len(fields):
            values[name], reason = _parse_field(trace_type, name, fields[position - 1])
            reasons.append(reason)
    first = next((reason for reason in reasons if reason), None)
    return Trace(trace_type, reason=first, **values)


def _parse_field(trace_type: str, name: str, text: str) -> tuple[object, str | None]:
    if name in FLAGS:
        return text.lower() == "true", None  # as Boolean.parseBoolean does
    if name not in NUMBERS:
        return None if text == MISSING else text, None
    number = int(text) if _NUMBER.fullmatch(text) else None
    limit = 1 << NUMBERS[name] - 1
    if number is None or not -limit <= number < limit:
        may_lack = not text and (trace_type, name) in MAY_BE_EMPTY
        return None, None if may_lack else not_a_number(name)
    if name != "msg_type":
        return number, None
    if 0 <= number < len(MESSAGE_TYPES):
        return MESSAGE_TYPES[number], None
    return None, UNKNOWN_MESSAGE_TYPE
