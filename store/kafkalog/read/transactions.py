"""Which records are committed: transactions by the markers in the log itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.format.batch_heads import BatchHeads
from kafkalog.read.ordered import ordered_windows
from kafkalog.read.transaction_events import Damage, transaction_events
from kafkalog.storage.partition_log import PartitionLog

Outcomes = NDArray[np.int8]

ABORTED: Final = 0
COMMITTED: Final = 1
UNKNOWN: Final = 2  # what is damaged may have been the marker


class ProducerMarkers(NamedTuple):
    """The markers of one producer, rising.

    Attributes:
        offsets: int64 (n,).
        outcomes: what each makes of the records before it: ABORTED or COMMITTED, (n,).
        n_doubts: how many doubts of the range the log has before each, int64 (n,).
    """

    offsets: NDArray[np.int64]
    outcomes: Outcomes
    n_doubts: NDArray[np.int64]


_NO_MARKERS: Final = ProducerMarkers(
    np.empty(0, np.int64), np.empty(0, np.int8), np.empty(0, np.int64)
)


@dataclass(frozen=True, slots=True)
class Transactions:
    """The ends of transactions of a range of a log.

    Attributes:
        markers: by producer id.
        doubts: the last offsets before damage that may have been a marker of any producer, rising,
            int64 (n,).
    """

    markers: dict[int, ProducerMarkers]
    doubts: NDArray[np.int64]

    def outcomes(self, heads: BatchHeads) -> Outcomes:
        """Return what became of batches, int8 (n,).

        The next marker of its producer decides a batch, unless there is a doubt between them. One
        that belongs to no transaction counts as COMMITTED, and one that neither a marker nor a
        doubt follows as ABORTED.
        """
        outcomes = np.full(len(heads), COMMITTED, np.int8)
        in_doubt = np.flatnonzero(heads.is_transactional & ~heads.is_control)
        in_doubt = in_doubt[np.argsort(heads.producer_id[in_doubt], kind="stable")]
        producers = heads.producer_id[in_doubt]
        bounds = np.flatnonzero(producers[1:] != producers[:-1]) + 1
        for rows in np.split(in_doubt, bounds) if len(in_doubt) else ():
            producer = int(heads.producer_id[rows[0]])
            outcomes[rows] = self._decide(producer, heads.base_offset[rows])
        return outcomes

    def _decide(self, producer: int, offsets: NDArray[np.int64]) -> Outcomes:
        ends = self.markers.get(producer, _NO_MARKERS)
        number = np.searchsorted(ends.offsets, offsets)
        decided: Outcomes = np.append(ends.outcomes, np.int8(ABORTED))[number]
        n_doubts = np.append(ends.n_doubts, len(self.doubts))[number]
        decided[np.searchsorted(self.doubts, offsets) < n_doubts] = UNKNOWN
        return decided


def read_transactions(
    log: PartitionLog,
    start_offset: int,
    end_offset: int,
    *,
    is_strict: bool = False,
    check_crcs: bool = True,
) -> Transactions:
    """Return the markers that decide the transactions of a range.

    The log is walked from the start of the range on, and as far beyond its end as is needed to
    decide what began in the range. Damage between a record and the next marker of its producer may
    have been its marker; so nobody knows what became of the record.

    Args:
        log: the log of a partition.
        start_offset: the first offset of the range.
        end_offset: the offset after the last one.
        is_strict: whether damage that may hide a marker is an error.
        check_crcs: whether a batch whose CRC is wrong is damaged.

    Raises:
        CorruptBatchError: the log is damaged where it may decide a record, and that is strict.
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.
    """
    ends: dict[int, list[tuple[int, int, int]]] = {}
    doubts: list[int] = []
    undecided: set[int] = set()
    for ordered in ordered_windows(log, start_offset) if start_offset < end_offset else ():
        for event in transaction_events(
            ordered, start_offset, is_open=bool(undecided), check_crcs=check_crcs
        ):
            if isinstance(event, Damage):
                if is_strict and (undecided or event.offset < end_offset):
                    raise event.error
                last = doubts[-1] if doubts else -1
                if undecided and event.may_be_marker and event.offset - 1 > last:
                    doubts.append(event.offset - 1)
            elif event.is_commit is not None:
                outcome = COMMITTED if event.is_commit else ABORTED
                ends.setdefault(event.producer, []).append((event.offset, outcome, len(doubts)))
                undecided.discard(event.producer)
            elif event.offset < end_offset:
                undecided.add(event.producer)
        if not undecided and ordered.reached >= end_offset:
            break
    markers = {
        producer: ProducerMarkers(
            np.array([offset for offset, _, _ in rows], np.int64),
            np.array([outcome for _, outcome, _ in rows], np.int8),
            np.array([n_doubts for _, _, n_doubts in rows], np.int64),
        )
        for producer, rows in ends.items()
    }
    return Transactions(markers, np.array(doubts, np.int64))
