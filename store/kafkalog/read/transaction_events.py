"""What a log says about transactions: their batches, their markers, and what may hide either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.errors import CorruptBatchError
from kafkalog.format.batch_heads import BatchHeads
from kafkalog.format.control import markers
from kafkalog.format.layout import LEAST_RECORD, MAX_INFLATED_BYTES, RECORDS_AT, Attribute, Codec
from kafkalog.read.ordered import Ordered
from rmqstore.errors import MalformedBytesError

_MOST_ATTRIBUTES: Final = sum(Attribute)


class Event(NamedTuple):
    """A transactional batch, which has records or is a marker.

    Attributes:
        producer: its id.
        offset: of its first record. Where that is not in order, its position decides: the offset
            after the batches before it, or of a marker the last one before it.
        is_commit: what a marker says; None for records.
    """

    producer: int
    offset: int
    is_commit: bool | None = None


class Damage(NamedTuple):
    """Damage in place of which a transactional batch may have been.

    Attributes:
        offset: the offset after the sound batches before it.
        may_be_marker: whether it may have ended a transaction, of any producer. The head of a batch
            whose CRC is wrong is believed if all of it says that records follow.
        error: says where it is.
    """

    offset: int
    may_be_marker: bool
    error: CorruptBatchError


def transaction_events(
    ordered: Ordered, start_offset: int, *, is_open: bool, check_crcs: bool = True
) -> Iterator[Event | Damage]:
    """Yield the transactional batches of a window from an offset on, and damage, in order.

    Args:
        ordered: the window.
        start_offset: batches that end before it are left out.
        is_open: whether a transaction is open at the start of the window. If none is, and the
            window has none, no CRC is computed: then damage can have decided nothing.
        check_crcs: whether a batch whose CRC is wrong is damaged.
    """
    window = ordered.window
    ends_before = np.flatnonzero(ordered.in_order & (window.heads.last_offset < start_offset))
    first = int(ends_before[-1]) + 1 if len(ends_before) else 0
    before = int(window.heads.last_offset[first - 1]) + 1 if first else ordered.before
    heads, in_order = window.heads[first:], ordered.in_order[first:]
    is_transactional, is_control = heads.is_transactional, heads.is_control
    if not is_open and not is_transactional.any():
        return
    sound = np.ones(len(heads), np.bool_)
    if check_crcs:
        sound = heads.check_crcs(window.data)
    reached = _reached(heads, sound & in_order, before)
    may_be_marker = _may_be_marker(heads)
    producers, offsets = heads.producer_id.tolist(), heads.base_offset.tolist()
    for row in np.flatnonzero(~sound | is_transactional).tolist():
        at = int(reached[row])
        if not sound[row]:
            error = _error(window.segment.path, int(heads.position[row]), "the CRC is wrong")
            yield Damage(at, bool(may_be_marker[row]), error)
        elif not is_control[row]:
            yield Event(producers[row], offsets[row] if in_order[row] else at)
        else:
            try:
                found = markers(window.data, heads[row : row + 1])
            except MalformedBytesError as err:
                error = _error(window.segment.path, int(heads.position[row]), err.reason)
                yield Damage(at, may_be_marker=True, error=error)
                continue
            for marker in found:
                offset = marker.offset if in_order[row] else at - 1
                yield Event(producers[row], offset, marker.is_commit)
    if window.stop is not None:
        error = _error(window.segment.path, window.stop.position, window.stop.reason)
        yield Damage(int(reached[-1]), may_be_marker=True, error=error)


def _error(path: str, position: int, reason: str) -> CorruptBatchError:
    return CorruptBatchError(
        path, position, f"{reason}; what is damaged may have decided transactions"
    )


def _reached(heads: BatchHeads, good: NDArray[np.bool_], before: int) -> NDArray[np.int64]:
    """Return the offset after the good batches before each batch, and before the end, (n + 1,)."""
    ends = np.where(good, heads.last_offset + 1, before)
    reached: NDArray[np.int64] = np.maximum.accumulate(np.concatenate([[before], ends]))
    return reached


def _may_be_marker(heads: BatchHeads) -> NDArray[np.bool_]:
    """Tell which batches may be markers although some of their bytes are wrong, bool (n,).

    The batches of a producer that has an id are numbered, but for its markers. A head is believed
    only as a whole, because damage may reach over all of it: the numbers must fit together. Where
    zeros reach from the attributes to the sequence, they replace the timestamps as well.
    """
    is_numbered = (
        (heads.producer_id >= 0) & (heads.producer_epoch >= 0) & (heads.base_sequence >= 0)
    )
    has_no_producer = (
        (heads.producer_id == -1) & (heads.producer_epoch == -1) & (heads.base_sequence == -1)
    )
    n_records = heads.record_count.astype(np.int64)
    most_bytes = np.where(heads.codec == Codec.NONE, heads.size - RECORDS_AT, MAX_INFLATED_BYTES)
    has_records = (
        (n_records > 0)
        & (n_records * LEAST_RECORD <= most_bytes)
        & (n_records <= heads.last_offset - heads.base_offset + 1)
    )
    has_known_attributes = (heads.codec <= max(Codec)) & (heads.attributes <= _MOST_ATTRIBUTES)
    has_times = (heads.max_timestamp != 0) & (heads.base_timestamp <= heads.max_timestamp)
    says_records = heads.is_v2 & ~heads.is_control & (is_numbered | has_no_producer)
    mask: NDArray[np.bool_] = ~(says_records & has_records & has_known_attributes & has_times)
    return mask
