"""Notes of a broker beside a log: where the log began, and where it ended.

The segments alone do not show that others are gone. Checkpoints, leader epochs, producer snapshots
and indexes each name offsets that the log had.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kafkalog.storage.log_dirs import EPOCHS, LOG_START, LeaderEpoch, PartitionFolder
from kafkalog.storage.names import SNAPSHOT, segment_offset_of
from kafkalog.storage.segments import (
    CLEANED,
    INDEX,
    LOG,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    files_of_segments,
)
from kafkalog.storage.windows import Window, lowest_offsets
from rmqstore.storage.files.storage import Storage

_INDEXES: Final = (INDEX, TIME_INDEX, TRANSACTION_INDEX)
_ENDINGS: Final = (*_INDEXES, LOG, SNAPSHOT, SWAP, CLEANED)


class Claim(NamedTuple):
    """An offset that a log had, and the file that says so."""

    offset: int
    source: str


class Loss(NamedTuple):
    """An end of a log that contradicts a note.

    Attributes:
        found: the offset at which the segments begin or end.
        text: what the log does there, and what the note says.
    """

    found: int
    text: str


class Beside(NamedTuple):
    """What lies beside the segments of a partition folder.

    Attributes:
        snapshots: offsets of the producer snapshots, each the end of the log when it was written.
        orphans: paths of the indexes without a log file, by the base offset of their segment. A
            broker renames the log before its indexes, so one that waits for deletion is no orphan.
        misnamed: paths of the files whose ending is one of a log, and whose name has no offset.
    """

    snapshots: frozenset[int]
    orphans: dict[int, str]
    misnamed: tuple[str, ...]


def list_beside(storage: Storage, folder: str) -> Beside:
    """List what lies beside the segments of a partition folder.

    Raises:
        UnreadableFileError: the folder cannot be listed.

    Source: LogLoader.java#loadSegmentFiles.
    """
    beside = _list_once(storage, folder)
    if not beside.orphans:
        return beside
    # A listing may miss a file that is renamed meanwhile.
    again = _list_once(storage, folder).orphans
    orphans = {base: path for base, path in beside.orphans.items() if base in again}
    return beside._replace(orphans=orphans)


def _list_once(storage: Storage, folder: str) -> Beside:
    snapshots = set()
    with_log = set()
    indexes = {}
    for base_offset, stem, kind in files_of_segments(storage, folder):
        if kind == SNAPSHOT:
            snapshots.add(base_offset)
        elif kind.startswith(LOG):
            with_log.add(base_offset)
        elif kind in _INDEXES:
            indexes[base_offset] = stem + kind
    orphans = {base: path for base, path in sorted(indexes.items()) if base not in with_log}
    misnamed = tuple(
        f"{folder}/{entry.name}"
        for entry in sorted(storage.list_folder(folder))
        if entry.name.endswith(_ENDINGS) and not entry.is_folder
        if segment_offset_of(entry.name) is None
    )
    return Beside(frozenset(snapshots), orphans, misnamed)


def furthest(folder: PartitionFolder, epochs: list[LeaderEpoch], beside: Beside) -> Claim | None:
    """Return the greatest end of a log in the notes beside it; None without a note.

    Args:
        folder: the partition folder, with what the checkpoints say.
        epochs: those of ``leader-epoch-checkpoint``.
        beside: what lies beside the segments.
    """
    claims = [
        Claim(folder.recovery_point, "the recovery point"),
        Claim(folder.high_watermark or 0, "the high watermark"),
        Claim(folder.log_start_offset or 0, "the log start offset"),
        *(Claim(offset, f"{offset:020}{SNAPSHOT}") for offset in beside.snapshots),
        *(Claim(epoch.start_offset, EPOCHS) for epoch in epochs),
        *(Claim(base, path.rpartition("/")[2]) for base, path in beside.orphans.items()),
    ]
    claim = max(claims, key=lambda claim: claim.offset)
    return claim if claim.offset > 0 else None


def earliest(folder: PartitionFolder, epochs: list[LeaderEpoch]) -> Claim | None:
    """Return the least first offset of a log in the notes beside it; None if unknown.

    Retention moves the start that is checkpointed, unless it is the first segment's, and that of
    the oldest leader epoch. A broker that was not stopped may have moved neither yet, and with
    tiered storage both name offsets that were moved away.

    Args:
        folder: the partition folder, with what the checkpoints say.
        epochs: those of ``leader-epoch-checkpoint``.

    Source: LeaderEpochFileCache.java#truncateFromStartAsyncFlush.
    """
    if not folder.is_clean or folder.has_remote_storage:
        return None
    if folder.log_start_offset is not None:
        return Claim(folder.log_start_offset, LOG_START)
    return Claim(epochs[0].start_offset, EPOCHS) if epochs else None


class Gap(NamedTuple):
    """Offsets that no segment has: from the end of one to the start of the next."""

    start: int
    end: int
    path: str  # of the segment after it

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end} are missing before it: a segment is gone"


class Gaps:
    """Finds the gaps between segments of a log that was not compacted.

    Attributes:
        is_compacted: whether a window has shown that the log was compacted: gaps are normal then.
    """

    def __init__(self, cleaner_offset: int | None) -> None:
        """Look for gaps from the first offset on that was not compacted yet, if it is known."""
        self.is_compacted = False
        self._from = cleaner_offset or 0
        self._path: str | None = None
        self._next: int | None = None  # None after damage, up to the next segment

    def before(self, window: Window, *, is_valid: bool) -> Gap | None:
        """Take the next window of a log; return the gap before it.

        Args:
            window: the window.
            is_valid: whether nothing is damaged in it.
        """
        gap = None
        path = window.segment.path
        base = window.segment.base_offset
        if path != self._path:
            if self._next is not None and max(self._next, self._from) < base:
                gap = Gap(self._next, base, path)
            # A walk may begin within the first segment.
            self._next = base if self._path is not None or not window.start else None
            self._path = path
        headers = window.headers
        if not is_valid:
            self._next = None
        elif len(headers):
            expected = headers.last_offset[:-1] + 1
            is_cut_short = (lowest_offsets(headers)[1:] > expected).any()
            if self._next is not None:
                is_cut_short |= lowest_offsets(headers)[0] > self._next
            n_offsets = headers.last_offset - headers.base_offset + 1
            is_thinned = (headers.record_count >= 0) & (headers.record_count < n_offsets)
            # Offsets are lacking in the window or before it, as after a compaction.
            self.is_compacted |= bool(is_cut_short or is_thinned.any())
            self._next = window.next_offset
        return None if self.is_compacted else gap
