"""The files of a copy's log: what they hold, how they are set aside, and space kept for them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from rmqstore.errors import StoreStateError
from rmqstore.format.columns.checks import sound_crcs
from rmqstore.format.columns.decode import stored_bodies
from rmqstore.format.columns.dispatch_requests import read_requests
from rmqstore.format.columns.heads import Heads
from rmqstore.format.columns.search import know_their_places
from rmqstore.format.layout import Bytes, Mask
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import Window, next_record, walk_forward

logger = logging.getLogger(__name__)

_SPARE_BYTES: Final = 256 << 10
_BLOCK_BYTES: Final = 8 << 20

Read = Callable[[int, int], Bytes]

_MOST_TOPICS_NAMED: Final = 10


class SpareSpace:
    """Space that is freed when the disk is full, so that the state can still be written.

    A state that lags behind the log would make the next follower move sound bytes aside, for
    which a full disk has no space either.

    Args:
        path: the file that takes the space.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def reserve(self, disk: Disk) -> None:
        """Take the space; raises OSError if there is none."""
        if not LOCAL.exists(self._path):
            disk.create(self._path, 0)
            disk.reserve(self._path, 0, _SPARE_BYTES)

    def free(self, disk: Disk) -> None:
        """Give the space back."""
        disk.delete(self._path)


class Unvouched:
    """Bytes after the end of a state, which were moved aside when a copy was opened again.

    The broker nearly always sends the same bytes again. Then they need not be kept twice.

    Args:
        folder: where they are, in files named ``FILE`` or ``FILE.OFFSET``; None without any.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Where they are."""
        assert self._folder is not None
        return self._folder

    def drop_if_fetched(self, disk: Disk, extent: tuple[int, int], read: Read) -> None:
        """Delete the bytes once the log of the copy has all of them again.

        If the broker has sent others, they stay.

        Args:
            disk: deletes them.
            extent: where the log of the copy begins, and up to where it is on the disk.
            read: returns bytes of the log, given a physical offset and how many.
        """
        if self._folder is None:
            return
        is_fetched = self._is_fetched(self._folder, extent, read)
        if is_fetched:
            disk.delete_tree(self._folder)
        if is_fetched is not None:
            self._folder = None

    def _is_fetched(self, folder: Path, extent: tuple[int, int], read: Read) -> bool | None:
        """Return whether the log has the same bytes; None if it has not come as far."""
        begin, end = extent
        for entry in LOCAL.list_folder(folder):
            with LOCAL.open(folder / entry.name) as file:
                name, _, offset = entry.name.partition(".")
                start, size = int(offset or name), file.written_end(file.size)
                if start < begin:
                    return False
                if start + size > end:
                    return None
                for done in range(0, size, _BLOCK_BYTES):
                    block = np.empty(min(_BLOCK_BYTES, size - done), np.uint8)
                    file.read_into(block, done)
                    if not np.array_equal(block, read(start + done, len(block))):
                        return False
        return True


def begin_of_files(paths: StorePaths, begin: int, end: int, file_size: int) -> int:
    """Return where the files of the log begin, some of which may have been deleted.

    Args:
        paths: the copy.
        begin: where its log began.
        end: physical offset after the last record.
        file_size: bytes of each file.

    Raises:
        StoreStateError: files between the begin and the end are missing.
    """
    if begin == end:
        return begin
    log = CommitLog(paths.commitlogs)
    expected = log.min_offset
    for segment in log.segments:
        if segment.start != expected or segment.size != file_size:
            break
        expected = segment.end
    log.close()
    if not log.segments or log.min_offset >= end or expected < end:
        raise StoreStateError(
            f"{paths.commitlogs[0]} should reach to {end}, and from {expected} on files are "
            "missing or have other sizes: put them back, or follow the broker into a new folder"
        )
    return max(begin, log.min_offset)


def found_end(paths: StorePaths, end: int, last_cut: int) -> int:
    """Return where the whole records end that follow those that a state covers.

    A follower that was killed leaves them: they were written, and the state did not come as far.
    Somebody may have read them since. After a cut, they may be what was to be cut, and do not
    count.

    Args:
        paths: the copy.
        end: physical offset up to which the state covers the log.
        last_cut: physical offset where the log was cut the last time.
    """
    if end == last_cut:
        return end
    log = CommitLog(paths.commitlogs)
    try:
        for low, high, segment in log.segment_spans(end, log.max_offset):
            if segment is None:
                break
            for window in walk_forward(log, segment, low, high):
                for starts, heads, whole in window.heads():
                    sound = whole & _are_sound(window, heads)
                    if not sound.all():
                        return segment.start + int(starts[sound.argmin()])
                end = window.stopped
                if window.damage is not None:
                    return end
            end = segment.end
        return end
    finally:
        log.close()


def _are_sound(window: Window, heads: Heads) -> Mask:
    """Return which records stand at their place, with the body that they had, and a written end."""
    data = window.data
    has_its_body = sound_crcs(data, heads, stored_bodies(data, heads), of_records=False)
    ends = heads.starts + heads.column("total_size")
    # Nothing guards the properties. Of one write, a system may have done a part.
    is_written = (heads.property_lengths == 0) | (data[np.minimum(ends, len(data)) - 1] != 0)
    is_at_its_place = know_their_places(data, heads.starts, window.segment.start)
    sound: Mask = has_its_body & is_at_its_place & is_written
    return sound


def warn_of_cut(
    root: Path, log: CommitLog, cut: tuple[int, int], reason: str, folder: Path
) -> None:
    """Report which messages the broker has lost.

    Args:
        root: the folder of the copy.
        log: its log.
        cut: where what is cut begins and ends.
        reason: why.
        folder: where it is kept.
    """
    start, end = cut
    counts = _messages_from(log, start, end)
    named = ", ".join(f"{topic} {n}" for topic, n in counts.most_common(_MOST_TOPICS_NAMED))
    logger.warning(
        "%s: %d bytes from %d on are cut (%s) and kept in %s; the broker has lost "
        "%d messages of %d topics: %s",
        root, end - start, start, reason, folder, counts.total(), len(counts), named,
    )  # fmt: skip


def _messages_from(log: CommitLog, start: int, end: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    log.refresh()
    for low, high, segment in log.segment_spans(start, end):
        if segment is None:
            continue
        for window in walk_forward(log, segment, low, high):
            for _, heads, whole in window.heads():
                units = read_requests(window.data, heads.take(whole.nonzero()[0])).units
                for code, topic in enumerate(units.topics):
                    counts[topic] += int((units.topic_codes == code).sum())
            if window.damage is not None:
                break
    return counts


def new_cut_folder(paths: StorePaths) -> Path:
    """Return a new folder for what is cut."""
    now = time.time()
    name = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
    return paths.own.folder / "cut" / f"{name}.{int(now * 1000) % 1000:03d}"


def move_aside(root: Path, end: int) -> Path:
    """Rename the folder of a copy that ends at a physical offset; return the new name."""
    name = f"{root.name}.until-{end}"
    target, number = root.with_name(name), 1
    while LOCAL.exists(target):
        number += 1
        target = root.with_name(f"{name}.{number}")
    disk = Disk()
    disk.rename(root, target)
    disk.flush_folder(root.parent)
    disk.close()
    return target


def boundary_from(log: CommitLog, physical_offset: int, end: int) -> int:
    """Return where a record begins: at a physical offset, or soon after it.

    If its file has none after it, this is the start of the file.

    Args:
        log: the log of a copy.
        physical_offset: at or before the end.
        end: physical offset after its last record.
    """
    segment = log.find(physical_offset)
    if segment is None or physical_offset == segment.start:
        return physical_offset
    stop = min(segment.end, end)
    first = next_record(log, segment, physical_offset, stop)
    return first if first < stop else segment.start


def boundary_before(log: CommitLog, start: int, physical_offset: int) -> int:
    """Return the last place up to a physical offset where a record begins or would begin.

    Args:
        log: the log of a copy.
        start: where a record of it begins.
        physical_offset: at or after ``start``.
    """
    segment = log.find(physical_offset)
    if segment is None or physical_offset <= max(start, segment.start):
        return physical_offset
    boundary = max(start, segment.start)
    for window in walk_forward(log, segment, boundary, physical_offset):
        starts = window.records.starts
        if len(starts):
            boundary = segment.start + int(starts[-1])
        if window.stopped <= physical_offset:
            boundary = window.stopped
        if window.damage is not None:
            break
    return boundary
