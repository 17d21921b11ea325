"""Where walks through a log ended, so that a later one goes on if the log is still the same there.

A follower cuts its log and writes it again, perhaps with batches of the same sizes, and a copy may
lack a segment for a while. So an end comes with what shows either: the head of the last batch, and
the sizes of the segments before. What a follower writes after a cut comes from another leader, and
the head names the leader's epoch besides the checksum of the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kafkalog.format.layout import RECORDS_AT
from kafkalog.storage.segments import Segment
from kafkalog.storage.windows import Window
from rmqstore.storage.files.storage import Storage


class LastBatch(NamedTuple):
    """The last batch of a walk.

    Attributes:
        base_offset: of its segment.
        position: where it begins in that segment.
        head: its first bytes, up to its records.
    """

    base_offset: int
    position: int
    head: bytes


class WalkEnd(NamedTuple):
    """Where a walk through a log ended.

    Attributes:
        base_offset: of the segment in which it ended.
        position: the position in that segment from which a later walk goes on.
        offset: the offset after the last batch.
        sizes: of the earlier segments of the walk by base offset, bytes.
        last: the last batch; None if the walk met none.
    """

    base_offset: int
    position: int
    offset: int
    sizes: dict[int, int]
    last: LastBatch | None

    def still_holds(
        self, storage: Storage, segments: Sequence[Segment], sizes: dict[int, int]
    ) -> bool:
        """Tell whether the log before the end is what it was when it was walked.

        Args:
            storage: the storage to read from.
            segments: of the log now.
            sizes: what :func:`segment_sizes` gives for the segments that matter now. All of them
                before the end must have been walked; earlier ones do not matter, and may be gone.

        Raises:
            FileNotFoundError: a segment was deleted.
            UnreadableFileError: a segment is not a regular file.
        """
        if sizes.get(self.base_offset, -1) < self.position:
            return False
        first = min(sizes)
        walked = {base: size for base, size in self.sizes.items() if base >= first}
        if walked != sizes_before(sizes, self.base_offset):
            return False
        return self.last is None or _is_in(storage, segments, self.last)


def segment_sizes(storage: Storage, segments: Sequence[Segment]) -> dict[int, int]:
    """Return the lengths of segments in bytes, by base offset.

    They are to be looked up before a walk: a segment that grows meanwhile then counts as changed.

    Raises:
        FileNotFoundError: a segment was deleted.
        UnreadableFileError: a segment is not a regular file.
    """
    return {segment.base_offset: storage.size(segment.path) for segment in segments}


def sizes_before(sizes: dict[int, int], base_offset: int) -> dict[int, int]:
    """Return the sizes of the segments before the one with a base offset."""
    return {base: size for base, size in sizes.items() if base < base_offset}


def last_batch(window: Window, n_batches: int) -> LastBatch | None:
    """Return the last of the first batches of a window; None if there is none.

    Args:
        window: the window.
        n_batches: how many of its batches count.
    """
    if not n_batches:
        return None
    heads = window.heads[n_batches - 1 : n_batches]
    position = int(heads.position[0])
    start = position - window.start
    head = window.data[start : start + min(int(heads.size[0]), RECORDS_AT)]
    return LastBatch(window.segment.base_offset, position, head.tobytes())


def _is_in(storage: Storage, segments: Sequence[Segment], last: LastBatch) -> bool:
    paths = {segment.base_offset: segment.path for segment in segments}
    path = paths.get(last.base_offset)
    if path is None:
        return False
    head = np.empty(len(last.head), np.uint8)
    with storage.open(path) as file:
        n_bytes = file.read_into(head, last.position)
    return head[:n_bytes].tobytes() == last.head
