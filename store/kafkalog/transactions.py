"""Transactions: which are open, which are aborted, and where their markers stand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.errors import CorruptBatchError
from kafkalog.format.batch_headers import BatchHeaders
from kafkalog.format.layout import LEAST_RECORD, MAX_INFLATED_BYTES, RECORDS_AT, Attribute, Codec
from kafkalog.format.reference import marker_in
from kafkalog.scan import ScanSpec
from kafkalog.storage.partition_log import Ordered, PartitionLog, ordered_windows
from kafkalog.storage.producer_snapshots import newest_snapshot
from kafkalog.storage.recovery import WalkEnd, last_batch, segment_sizes, sizes_before
from rmqstore.errors import MalformedBytesError

logger = logging.getLogger(__name__)

_MOST_ATTRIBUTES: Final = sum(Attribute)
_MAY_DECIDE: Final = "; the damaged bytes may have decided transactions"

Outcomes = NDArray[np.int8]

ABORTED: Final = 0
COMMITTED: Final = 1
UNKNOWN: Final = 2  # what is damaged may have been the marker


class OpenTransactions(NamedTuple):
    """The transactions that are open at the end of a log, as far as the log is readable.

    Attributes:
        open_since: first offset of the open transaction, by producer id.
        damage: the first damage that was met while the oldest of them was open.
        since: what lies before this offset does not matter: that of the producer snapshot with
            which the walk began; 0 if it began with the log.
        end: the end of the log, from which a later walk continues. None if it cannot: it met
            damage, which may be mended, or no batch.
    """

    open_since: dict[int, int]
    damage: Damage | None = None
    since: int = 0
    end: WalkEnd | None = None

    @property
    def hiding(self) -> Damage | None:
        """The damage, if it may hide the end of a transaction that is open."""
        since = min(self.open_since.values(), default=None)
        is_after = self.damage is not None and since is not None and since < self.damage.offset
        return self.damage if is_after else None

    def stable_offset(self, log: PartitionLog, *, is_strict: bool = False) -> int:
        """Return the first offset that may belong to an undecided transaction (LSO).

        Args:
            log: the log that was walked.
            is_strict: whether damage is an error that may hide the end of an open transaction.

        Raises:
            CorruptBatchError: there is such damage, and that is strict.
        """
        undecided = min(self.open_since.values(), default=log.end_offset)
        if is_strict and self.hiding is not None:
            raise self.hiding.error
        return min(max(undecided, log.start_offset), log.end_offset)


def find_open_transactions(
    log: PartitionLog, known: OpenTransactions | None = None, *, check_crcs: bool = True
) -> OpenTransactions:
    """Return the transactions that are open at the end of a log.

    A transaction begins with the first transactional batch of a producer after its last marker, and
    ends with its next marker. The newest producer snapshot shows which are open at its offset, if
    its CRC is right; the log is walked from there on, or else from its first batch.

    Args:
        log: the log of a partition.
        known: what an earlier walk found. This one continues from there if the log is still the
            same before that end.
        check_crcs: whether a batch whose CRC is wrong is damaged.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.

    Source: ProducerStateManager.java, UnifiedLog.java#lastStableOffset.
    """
    if not log.segments:
        return OpenTransactions({})
    begin, sizes = _begin(log, known)
    end_at = (log.segments[-1].base_offset, log.end_position)
    if begin.end is None:
        start = max(begin.since, log.segments[0].base_offset)
        is_walked = start < log.end_offset
    else:
        start = begin.end.offset
        is_walked = (begin.end.base_offset, begin.end.position) != end_at
    open_since = dict(begin.open_since)
    damage: dict[int, Damage] = {}  # the first one, by producers of open transactions
    last = begin.end and begin.end.last
    is_valid = True  # as far as damage was looked for
    for ordered in ordered_windows(log, start) if is_walked else ():
        window = ordered.window
        last = last_batch(window, len(window.headers)) or last
        is_valid = is_valid and window.stop is None and bool(ordered.in_order.all())
        events = transaction_events(ordered, start, is_open=bool(open_since), check_crcs=check_crcs)
        for event in events:
            if isinstance(event, Damage):
                is_valid = False
                met = event._replace(offset=max(event.offset, start))
                damage = dict.fromkeys(open_since, met) | damage
            elif event.is_commit is None:
                open_since.setdefault(event.producer, event.offset)
            else:
                open_since.pop(event.producer, None)
                damage.pop(event.producer, None)
    end = None
    if is_valid and last is not None:
        end = WalkEnd(*end_at, log.end_offset, sizes_before(sizes, end_at[0]), last)
    # Damage matters that was met while the oldest transaction was open that is open at the end.
    oldest = min(open_since, key=open_since.__getitem__, default=-1)
    found = OpenTransactions(open_since, damage.get(oldest), begin.since, end)
    if found.hiding is not None and found.hiding != (known and known.hiding):
        logger.warning("%s; a transaction may seem undecided", found.hiding.error)
    return found


def _begin(
    log: PartitionLog, known: OpenTransactions | None
) -> tuple[OpenTransactions, dict[int, int]]:
    """Return the state in which a walk continues, and the sizes of its segments.

    A broker writes a snapshot whenever it begins a segment. A walk that takes it up compares the
    segments before it no longer. A recovery deletes those after the first segment that it walks.
    """
    continued: tuple[OpenTransactions, dict[int, int]] | None = None
    walked_to = 0
    if known is not None and known.end is not None and known.end.offset <= log.end_offset:
        sizes = _sizes(log, known.since)
        if known.end.still_holds(log.storage, log.segments, sizes):
            continued = (known, sizes)
            walked_to = known.end.offset
            if known.end.base_offset == log.segments[-1].base_offset:
                return continued
    last = min(log.largest_timestamps, default=log.end_offset)
    snapshot = newest_snapshot(log.storage, log.folder, last)
    if continued is not None and (snapshot is None or snapshot.offset < walked_to):
        return continued
    if snapshot is None or snapshot.offset <= log.segments[0].base_offset:
        return OpenTransactions({}), _sizes(log, 0)
    begin = OpenTransactions(snapshot.open_since, since=snapshot.offset)
    return begin, _sizes(log, snapshot.offset)


def _sizes(log: PartitionLog, since: int) -> dict[int, int]:
    return segment_sizes(log.storage, log.segments[log.number_at(since) :])


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
        offset: the offset after the valid batches before it.
        may_be_marker: whether it may have ended a transaction, of any producer. The header of a
            batch whose CRC is wrong is believed if all of it says that records follow.
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
    ends_before = np.flatnonzero(ordered.in_order & (window.headers.last_offset < start_offset))
    first = int(ends_before[-1]) + 1 if len(ends_before) else 0
    before = int(window.headers.last_offset[first - 1]) + 1 if first else ordered.before
    headers, in_order = window.headers[first:], ordered.in_order[first:]
    is_transactional, is_control = headers.is_transactional, headers.is_control
    if not is_open and not is_transactional.any():
        return
    valid = np.ones(len(headers), np.bool_)
    if check_crcs:
        valid = headers.check_crcs(window.data)
    # The offset after the good batches before each batch, and before the end, (n + 1,).
    ends = np.where(valid & in_order, headers.last_offset + 1, before)
    end_offsets = np.maximum.accumulate(np.concatenate([[before], ends]))
    may_be_marker = _may_be_marker(headers)
    producers, offsets = headers.producer_id.tolist(), headers.base_offset.tolist()
    for row in np.flatnonzero(~valid | is_transactional).tolist():
        at = int(end_offsets[row])
        if not valid[row]:
            error = window.error(int(headers.position[row]), f"the CRC is wrong{_MAY_DECIDE}")
            yield Damage(at, bool(may_be_marker[row]), error)
        elif not is_control[row]:
            yield Event(producers[row], offsets[row] if in_order[row] else at)
        else:
            try:
                marker = marker_in(window.data, headers[row : row + 1])
            except MalformedBytesError as err:
                error = window.error(int(headers.position[row]), f"{err.reason}{_MAY_DECIDE}")
                yield Damage(at, may_be_marker=True, error=error)
                continue
            if marker is not None:
                offset = marker.offset if in_order[row] else at - 1
                yield Event(producers[row], offset, marker.is_commit)
    if window.stop is not None:
        error = window.error(window.stop.position, f"{window.stop.reason}{_MAY_DECIDE}")
        yield Damage(int(end_offsets[-1]), may_be_marker=True, error=error)


def _may_be_marker(headers: BatchHeaders) -> NDArray[np.bool_]:
    """Return which batches may be markers although some of their bytes are wrong, bool (n,).

    The batches of a producer that has an id are numbered, but for its markers. A header is believed
    only as a whole, because damage may reach over all of it: the numbers must fit together. Where
    zeros reach from the attributes to the sequence, they replace the timestamps as well.
    """
    is_numbered = (
        (headers.producer_id >= 0) & (headers.producer_epoch >= 0) & (headers.base_sequence >= 0)
    )
    has_no_producer = (
        (headers.producer_id == -1) & (headers.producer_epoch == -1) & (headers.base_sequence == -1)
    )
    n_records = headers.record_count.astype(np.int64)
    most_bytes = np.where(
        headers.codec == Codec.NONE, headers.size - RECORDS_AT, MAX_INFLATED_BYTES
    )
    has_records = (
        (n_records > 0)
        & (n_records * LEAST_RECORD <= most_bytes)
        & (n_records <= headers.last_offset - headers.base_offset + 1)
    )
    has_known_attributes = (headers.codec <= max(Codec)) & (headers.attributes <= _MOST_ATTRIBUTES)
    has_times = (headers.max_timestamp != 0) & (headers.base_timestamp <= headers.max_timestamp)
    says_records = headers.is_v2 & ~headers.is_control & (is_numbered | has_no_producer)
    mask: NDArray[np.bool_] = ~(says_records & has_records & has_known_attributes & has_times)
    return mask


class ProducerMarkers(NamedTuple):
    """The markers of one producer, rising.

    Attributes:
        offsets: int64 (n,).
        outcomes: what each makes of the records before it: ABORTED or COMMITTED, (n,).
        n_uncertain: how many uncertain offsets of the range lie before each, int64 (n,).
    """

    offsets: NDArray[np.int64]
    outcomes: NDArray[np.int64]
    n_uncertain: NDArray[np.int64]


_NO_MARKERS: Final = ProducerMarkers(*np.empty((3, 0), np.int64))


@dataclass(frozen=True, slots=True)
class Transactions:
    """The ends of transactions of a range of a log.

    Attributes:
        markers: by producer id.
        uncertain: the last offsets before damage that may have been a marker of any producer,
            rising, int64 (n,).
    """

    markers: dict[int, ProducerMarkers]
    uncertain: NDArray[np.int64]

    def outcomes(self, headers: BatchHeaders) -> Outcomes:
        """Return what became of batches, int8 (n,).

        The next marker of its producer decides a batch, unless an uncertain offset lies between
        them. One that belongs to no transaction counts as COMMITTED, and one that neither a marker
        nor an uncertain offset follows as ABORTED.
        """
        outcomes = np.full(len(headers), COMMITTED, np.int8)
        transactional = np.flatnonzero(headers.is_transactional & ~headers.is_control)
        transactional = transactional[np.argsort(headers.producer_id[transactional], kind="stable")]
        producers = headers.producer_id[transactional]
        bounds = np.flatnonzero(producers[1:] != producers[:-1]) + 1
        for rows in np.split(transactional, bounds) if len(transactional) else ():
            producer = int(headers.producer_id[rows[0]])
            offsets = headers.base_offset[rows]
            ends = self.markers.get(producer, _NO_MARKERS)
            number = np.searchsorted(ends.offsets, offsets)
            decided = np.append(ends.outcomes, ABORTED)[number]
            n_uncertain = np.append(ends.n_uncertain, len(self.uncertain))[number]
            decided[np.searchsorted(self.uncertain, offsets) < n_uncertain] = UNKNOWN
            outcomes[rows] = decided
        return outcomes


def read_transactions(
    log: PartitionLog, start_offset: int, end_offset: int, spec: ScanSpec
) -> Transactions:
    """Return the markers that decide the transactions of a range.

    The log is walked from the start of the range on, and as far beyond its end as is needed to
    decide what began in the range. Damage between a record and the next marker of its producer may
    have been its marker; so nobody knows what became of the record.

    Args:
        log: the log of a partition.
        start_offset: the first offset of the range.
        end_offset: the offset after the last one.
        spec: how records are read: whether damage that may hide a marker is an error, and whether a
            batch whose CRC is wrong is damaged.

    Raises:
        CorruptBatchError: the log is damaged where it may decide a record, and that is an error.
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.
    """
    ends: dict[int, list[tuple[int, int, int]]] = {}
    uncertain: list[int] = []
    undecided: set[int] = set()
    for ordered in ordered_windows(log, start_offset) if start_offset < end_offset else ():
        for event in transaction_events(
            ordered, start_offset, is_open=bool(undecided), check_crcs=spec.check_crc
        ):
            if isinstance(event, Damage):
                if spec.is_strict and (undecided or event.offset < end_offset):
                    raise event.error
                last = uncertain[-1] if uncertain else -1
                if undecided and event.may_be_marker and event.offset - 1 > last:
                    uncertain.append(event.offset - 1)
            elif event.is_commit is not None:
                outcome = COMMITTED if event.is_commit else ABORTED
                ends.setdefault(event.producer, []).append((event.offset, outcome, len(uncertain)))
                undecided.discard(event.producer)
            elif event.offset < end_offset:
                undecided.add(event.producer)
        if not undecided and ordered.end_offset >= end_offset:
            break
    markers = {
        producer: ProducerMarkers(*np.array(rows, np.int64).T.copy())
        for producer, rows in ends.items()
    }
    return Transactions(markers, np.array(uncertain, np.int64))
