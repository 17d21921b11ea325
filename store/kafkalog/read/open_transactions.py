"""Which transactions are open at the end of a log, which bounds what read_committed gives."""

from __future__ import annotations

import logging
from typing import NamedTuple

from kafkalog.read.ordered import ordered_windows
from kafkalog.read.transaction_events import Damage, transaction_events
from kafkalog.storage.partition_log import PartitionLog
from kafkalog.storage.producer_snapshots import newest_snapshot
from kafkalog.storage.walk_ends import (
    LastBatch,
    WalkEnd,
    last_batch,
    segment_sizes,
    sizes_before,
)

logger = logging.getLogger(__name__)


class OpenTransactions(NamedTuple):
    """The transactions that are open at the end of a log, as far as the log is readable.

    Attributes:
        open_since: first offset of the open transaction, by producer id.
        damage: the first damage that was met while the oldest of them was open.
        since: what lies before this offset does not matter: that of the producer snapshot with
            which the walk began; 0 if it began with the log.
        end: the end of the log, from which a later walk goes on. None if it cannot: it met damage,
            which may be mended, or no batch.
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
    ends with its next marker. The newest producer snapshot tells which are open at its offset, if
    its CRC is right; the log is walked from there on, or else from its first batch.

    Args:
        log: the log of a partition.
        known: what an earlier walk found. This one goes on from there if the log is still the same
            before that end.
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
    walk = _Walk(None, None, is_sound=True)
    open_since = dict(begin.open_since)
    if is_walked:
        walk = _walk(log, start, open_since, check_crcs=check_crcs)
    last = walk.last or (begin.end and begin.end.last)
    end = None
    if walk.is_sound and last is not None:
        end = WalkEnd(*end_at, log.end_offset, sizes_before(sizes, end_at[0]), last)
    found = OpenTransactions(open_since, walk.damage, begin.since, end)
    if found.hiding is not None and found.hiding != (known and known.hiding):
        logger.warning("%s; a transaction may seem undecided", found.hiding.error)
    return found


def _begin(
    log: PartitionLog, known: OpenTransactions | None
) -> tuple[OpenTransactions, dict[int, int]]:
    """Return what a walk goes on from, and the sizes of the segments that matter to it.

    A broker writes a snapshot whenever it begins a segment. A walk that takes it up compares the
    segments before it no longer.
    """
    continued: tuple[OpenTransactions, dict[int, int]] | None = None
    walked_to = 0
    if known is not None and known.end is not None and known.end.offset <= log.end_offset:
        sizes = _sizes(log, known.since)
        if known.end.still_holds(log.storage, log.segments, sizes):
            continued, walked_to = (known, sizes), known.end.offset
            if known.end.base_offset == log.segments[-1].base_offset:
                return continued
    snapshot = newest_snapshot(log.storage, log.folder, log.end_offset)
    if continued is not None and (snapshot is None or snapshot.offset < walked_to):
        return continued
    if snapshot is None or snapshot.offset <= log.segments[0].base_offset:
        return OpenTransactions({}), _sizes(log, 0)
    begin = OpenTransactions(snapshot.open_since, since=snapshot.offset)
    return begin, _sizes(log, snapshot.offset)


def _sizes(log: PartitionLog, since: int) -> dict[int, int]:
    return segment_sizes(log.storage, log.segments[log.number_at(since) :])


class _Walk(NamedTuple):
    """What a walk met.

    Attributes:
        damage: the first damage while the oldest transaction was open that is open at the end.
        last: the last batch; None if there was none.
        is_sound: whether there was no damage at all, as far as it was looked for.
    """

    damage: Damage | None
    last: LastBatch | None
    is_sound: bool


def _walk(log: PartitionLog, start: int, open_since: dict[int, int], *, check_crcs: bool) -> _Walk:
    """Walk a log from an offset on.

    Args:
        log: the log.
        start: the offset.
        open_since: the transactions that are open there; those at the end take their place.
        check_crcs: whether a batch whose CRC is wrong is damaged.
    """
    damage: dict[int, Damage] = {}  # the first one, by producers of open transactions
    last: LastBatch | None = None
    is_sound = True
    for ordered in ordered_windows(log, start):
        window = ordered.window
        last = last_batch(window, len(window.heads)) or last
        is_sound = is_sound and window.stop is None and bool(ordered.in_order.all())
        events = transaction_events(ordered, start, is_open=bool(open_since), check_crcs=check_crcs)
        for event in events:
            if isinstance(event, Damage):
                is_sound = False
                met = event._replace(offset=max(event.offset, start))
                damage = dict.fromkeys(open_since, met) | damage
            elif event.is_commit is None:
                open_since.setdefault(event.producer, event.offset)
            else:
                open_since.pop(event.producer, None)
                damage.pop(event.producer, None)
    oldest = min(open_since, key=open_since.__getitem__, default=-1)
    return _Walk(damage.get(oldest), last, is_sound)
