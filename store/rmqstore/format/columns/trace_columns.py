"""Traces of many messages as columns; equals ``traces.parse_traces`` of each body."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import valid_text
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
    Trace,
    not_a_number,
    too_few,
)
from rmqstore.format.layout import Mask, Positions

_TYPES: Final = tuple(FIELDS)
_NAMES: Final = tuple(name for name in Trace._fields if name not in ("trace_type", "reason"))
_NUMBER: Final = "^-?[0-9]{1,19}$"
_SURE_NUMBER: Final = "^-?[0-9]{1,18}$"  # fits into 64 bits


def trace_columns(bodies: pa.Array) -> tuple[Positions, dict[str, pa.Array]]:
    """Return the traces of bodies as columns.

    Args:
        bodies: the bodies of n messages, binary; null for those that cannot be read.

    Returns:
        The number of the message of each trace, in rising order, and the fields of ``Trace`` by
        name. A message without a trace, or without a body, has one all the same, of nulls.
    """
    parents, texts = _split(valid_text(bodies.view(pa.string())))
    fields = pc.split_pattern(texts.fill_null(""), FIELD_SEPARATOR)
    starts = fields.offsets.to_numpy()[:-1].astype(np.int64)
    return parents, _Traces(texts, fields.values, starts, _lengths(fields)).columns()


def _lengths(lists: pa.ListArray) -> Positions:
    lengths: Positions = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    return lengths


def _split(bodies: pa.Array) -> tuple[Positions, pa.Array]:
    """Return the texts of traces, and the numbers of their messages."""
    parts = pc.split_pattern(bodies.fill_null(""), TRACE_SEPARATOR)
    counts = _lengths(parts)
    parents = np.repeat(np.arange(len(counts)), counts)
    texts = parts.flatten()
    holds_trace = pc.not_equal(texts, "").to_numpy(zero_copy_only=False)
    n_traces = np.bincount(parents[holds_trace], minlength=len(counts))
    is_first = np.ones(len(parents), np.bool_)
    is_first[1:] = parents[1:] != parents[:-1]
    keep = holds_trace | (is_first & (n_traces[parents] == 0))
    parents = parents[keep]
    unread = bodies.is_null().to_numpy(zero_copy_only=False)[parents]
    kept = texts.filter(pa.array(keep))
    return parents, pc.if_else(pa.array(unread), pa.scalar(None, pa.string()), kept)


class _Traces:
    """Traces whose fields are one after the other in one array.

    Args:
        texts: the traces, (n,); null where there is no body.
        values: the fields of all of them.
        starts: where the fields of each begin, (n,).
        counts: their number, (n,).
    """

    def __init__(
        self, texts: pa.Array, values: pa.Array, starts: Positions, counts: Positions
    ) -> None:
        self._values, self._starts, self._counts = values, starts, counts
        self._has_body = texts.is_valid().to_numpy(zero_copy_only=False)
        self._is_empty = pc.equal(texts.fill_null(""), "").to_numpy(zero_copy_only=False)
        self._type_names = values.take(pa.array(starts))
        codes = pc.index_in(self._type_names, value_set=pa.array(_TYPES))
        self._types = codes.fill_null(-1).to_numpy()  # (n,), positions in _TYPES
        self._is_short_pub = (self._types == _TYPES.index(PUB)) & (counts == SHORT_PUB)
        # By reason, and in the order in which they are looked for.
        self._faults: dict[tuple[int, str], Mask] = {}

    def columns(self) -> dict[str, pa.Array]:
        """Return the fields of ``Trace`` by name."""
        columns: dict[str, pa.Array] = {
            "trace_type": _where(self._type_names, ~self._is_empty),
        }
        for name in _NAMES:
            texts, valid = self._texts(name)
            if name in FLAGS:
                columns[name] = pc.equal(pc.ascii_lower(texts), "true")
            elif name in NUMBERS:
                columns[name] = self._numbers(name, texts, valid)
            else:
                is_missing = pc.equal(texts, MISSING).fill_null(fill_value=False)
                columns[name] = _where(texts, ~is_missing.to_numpy(zero_copy_only=False))
        columns["reason"] = self._reasons()
        return columns

    def _positions(self, name: str) -> Positions:
        """Return where a field is among those of its trace, (n,); -1 where the type lacks it."""
        table = np.array([FIELDS[kind].get(name, -1) for kind in _TYPES] + [-1], np.int64)
        positions: Positions = table[self._types]
        if name == "offset_msg_id":
            positions[self._is_short_pub] = -1
        if name == "is_success":
            positions[self._is_short_pub] = SHORT_PUB_SUCCESS
        return positions

    def _texts(self, name: str) -> tuple[pa.Array, Mask]:
        positions = self._positions(name)
        valid = (positions >= 0) & (positions < self._counts)
        places = np.where(valid, self._starts + positions, 0)
        return self._values.take(pa.array(places, mask=~valid)), valid

    def _numbers(self, name: str, texts: pa.Array, valid: Mask) -> pa.Array:
        numbers = _parsed(texts, NUMBERS[name])
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

    def _reasons(self) -> pa.Array:
        """Return the first reason of each trace, null where it is sound."""
        masks = {NO_TRACE: self._has_body & self._is_empty}
        masks[UNKNOWN_TYPE] = ~self._is_empty & (self._types < 0)
        for code, kind in enumerate(_TYPES):
            masks[too_few(kind)] = (self._types == code) & (self._counts < LEAST_FIELDS[kind])
        codes = np.zeros(len(self._types), np.int32)
        texts: list[str | None] = [None]
        faults = [(reason, mask) for (_, reason), mask in sorted(
            self._faults.items(), key=lambda fault: fault[0][0]
        )]  # fmt: skip
        for reason, mask in [*masks.items(), *faults]:
            codes[mask & (codes == 0)] = len(texts)
            texts.append(reason)
        return pa.array(texts, pa.string()).take(pa.array(codes))


def _where(values: pa.Array, valid: NDArray[Any]) -> pa.Array:
    """Return values with null in place of those that are not valid."""
    return pc.if_else(pa.array(valid), values, pa.scalar(None, values.type))


def _parsed(texts: pa.Array, bits: int) -> pa.Array:
    """Return texts as numbers, null where one is not a number, or has more bits."""
    is_sure = pc.match_substring_regex(texts, _SURE_NUMBER)
    numbers = pc.if_else(is_sure, texts, pa.scalar(None, pa.string())).cast(pa.int64())
    is_long = pc.and_not(pc.match_substring_regex(texts, _NUMBER), is_sure)
    rows = np.flatnonzero(is_long.fill_null(fill_value=False).to_numpy(zero_copy_only=False))
    if len(rows):
        values = numbers.to_pylist()
        for row, text in zip(rows.tolist(), texts.take(pa.array(rows)).to_pylist(), strict=True):
            values[row] = int(text) if -1 << 63 <= int(text) < 1 << 63 else None
        numbers = pa.array(values, pa.int64())
    if bits == 64:
        return numbers
    limit = 1 << bits - 1
    fits = pc.and_(pc.greater_equal(numbers, -limit), pc.less(numbers, limit))
    return pc.if_else(fits, numbers, pa.scalar(None, pa.int64())).cast(pa.int32())
