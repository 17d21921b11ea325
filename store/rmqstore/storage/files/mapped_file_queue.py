"""Files that follow one another, as one address space: listing, finding and opening them.

A reader keeps a limited number of them open, however many files the store has.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count, pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import FileDeletedError, UnreadableFileError
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import name_to_offset
from rmqstore.storage.files.recent import Recent
from rmqstore.storage.files.storage import AnyPath, Closing, Storage, StoredFile, path_of

logger = logging.getLogger(__name__)
_START = attrgetter("start")
_numbers = count()  # of listings, in the order in which they began
_MIN_BYTES = 20  # no file that RocketMQ makes is shorter than a unit of a queue
_MAX_LENGTHS = 8  # of files of one kind that are looked at


class OpenFiles(Closing):
    """Files that stay open until too many others are: a descriptor each, and a mapping for some.

    Threads may share it. A file is closed when it is not among these any more and nobody reads it.

    Args:
        storage: the storage to open the files in.
        at_once: maximum number of files that stay open.
    """

    __slots__ = ("_at_once", "_files", "storage")

    def __init__(self, storage: Storage = LOCAL, at_once: int = 2) -> None:
        self.storage = storage
        self._at_once = at_once
        self._files: Recent[str, StoredFile] = Recent(at_once)

    def open(self, path: str) -> StoredFile:
        """Return the open file of that name.

        Raises:
            FileNotFoundError: there is no such file.
            UnreadableFileError: it is not a regular file, or longer than any that RocketMQ can
                write.
        """
        files = self._files
        file = files.get(path)
        return files.put(path, self.storage.open(path)) if file is None else file

    def drop_outdated(self, path: str) -> None:
        """Give up a file if it has to be opened again; see :meth:`StoredFile.is_outdated`."""
        file = self._files.get(path)
        if file is not None and file.is_outdated():
            self.drop(path)

    def drop(self, path: str) -> None:
        """Give up a file if it is open."""
        self._files.drop(path)

    def forget(self) -> None:
        """Give up all files, which are opened again when they are needed."""
        self._files = Recent(self._at_once)

    def close(self) -> None:
        """Give up all files; those that a read under way opens again are not kept."""
        self._files = Recent(0)


class Segment(NamedTuple):
    """One file of the address space, which covers ``[start, start + size)`` by name and length."""

    start: int
    size: int
    file: str  # its path

    @property
    def path(self) -> Path:
        return path_of(self.file)

    @property
    def end(self) -> int:
        return self.start + self.size


Lister: TypeAlias = Callable[[Sequence[str], Storage], list[Segment]]


class MappedFileQueue:
    """The files of one or several folders, by the offsets in their names.

    They are listed on creation and by :meth:`refresh`, which replaces the list: whoever looks at it
    more than once takes it once.

    Args:
        folders: the folders that hold the files.
        files: opens the files, and may open those of other folders too.
        lister: lists the files, sorted and without overlaps; by default those of a broker's store,
            which are named by their offset and have one length.

    Source: MappedFileQueue.java, MultiPathMappedFileQueue.java.
    """

    # A reader of many queues has thousands of these.
    __slots__ = ("_files", "_folders", "_list_files", "_number", "segments")

    def __init__(
        self, folders: Sequence[AnyPath], files: OpenFiles, lister: Lister | None = None
    ) -> None:
        self._folders = tuple(map(str, folders))
        self._files = files
        self._list_files = lister or list_segments
        self._number = -1  # of the listing
        self.segments: list[Segment] = []
        self.refresh()

    def refresh(self) -> None:
        """List the files again: a broker creates and deletes files, a recovery recreates some."""
        number = next(_numbers)
        gone = {segment.file for segment in self.segments}
        segments = self._list_files(self._folders, self._files.storage)
        for segment in segments:
            gone.discard(segment.file)
            self._files.drop_outdated(segment.file)
        if number > self._number:  # otherwise another thread has listed them since
            self._number, self.segments = number, segments
        for file in gone:
            # Another file may get its name.
            self._files.drop(file)

    @property
    def min_offset(self) -> int:
        """Offset of the first byte of the first file, 0 if there is no file."""
        segments = self.segments
        return segments[0].start if segments else 0

    @property
    def max_offset(self) -> int:
        """Offset after the last byte of the last file, whether or not it was written."""
        segments = self.segments
        return segments[-1].end if segments else 0

    def find(self, offset: int) -> Segment | None:
        """Return the file that covers the offset, None if no file does."""
        segments = self.segments
        row = bisect_right(segments, offset, key=_START) - 1
        return segments[row] if row >= 0 and offset < segments[row].end else None

    def rows_by_file(
        self, offsets: NDArray[np.int64]
    ) -> Iterator[tuple[Segment, NDArray[np.int64]]]:
        """Yield each file, and the rows of the offsets, (n,), from its start to that of the next.

        The rows are in the order of their offsets, which may lie behind the end of the file.
        """
        segments = self.segments
        starts = np.array([segment.start for segment in segments], np.int64)
        order = np.argsort(offsets, kind="stable")
        numbers = np.searchsorted(starts, offsets[order], side="right") - 1
        bounds = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)).tolist()
        for first, stop in pairwise(bounds):
            yield segments[int(numbers[first])], order[first:stop]

    def place_of(self, offset: int) -> tuple[str, int]:
        """Return the file that covers an offset and the position in it, to name them in an error.

        If no file does, these are the first folder and the offset.
        """
        segment = self.find(offset)
        if segment is None:
            return self._folders[0], offset
        return segment.file, offset - segment.start

    def file_of(self, segment: Segment) -> StoredFile:
        """Return the opened file, one of the few that stay open or newly opened.

        Raises:
            FileDeletedError: the file was deleted since the listing.
            UnreadableFileError: the file is longer than any that RocketMQ can write.
        """
        try:
            return self._files.open(segment.file)
        except FileNotFoundError as err:
            raise FileDeletedError(segment.file) from err

    def close(self) -> None:
        """Close all files, also those of others that share what opens them."""
        self._files.close()


def list_segments(folders: Sequence[str], storage: Storage) -> list[Segment]:
    """Return the files of some folders, sorted and without overlaps.

    Files that begin inside of another file at an odd offset are left out. All files of RocketMQ
    have one length and begin at its multiples. Any other file is not one of RocketMQ's, and would
    hide a part of the file that it overlaps.
    """
    segments: list[Segment] = []
    for folder in folders:
        for entry in storage.list_folder(folder):
            start = name_to_offset(entry.name)
            if start is None:
                continue
            file = f"{folder}/{entry.name}"
            try:
                segments.append(Segment(start, storage.size(file), file))
            except FileNotFoundError:
                continue  # retention deleted the file during the listing
            except UnreadableFileError as err:
                logger.warning("%s: the file is skipped", err)
    if len(segments) < 2:
        return segments
    segments.sort()
    sizes = Counter(segment.size for segment in segments if segment.size >= _MIN_BYTES)
    usual = max(sizes, key=lambda size: (sizes[size], -size), default=0)
    regular: list[Segment] = []
    for segment in segments:
        if usual and regular and segment.start < regular[-1].end and segment.start % usual:
            logger.warning(
                "%s begins inside of %s; it is passed over", segment.file, regular[-1].file
            )
        else:
            regular.append(segment)
    return cut_overlaps(regular)


def usual_size(files: Collection[tuple[int, int]]) -> int:
    """Return the one length that files of a kind should have, 0 if nothing shows it.

    It is the one that most of their offsets are multiples of, and that most of them have.

    Args:
        files: offset and length of each.
    """
    lengths = Counter(length for _, length in files if length >= _MIN_BYTES)
    return max(
        (length for length, _ in lengths.most_common(_MAX_LENGTHS)),
        key=lambda size: (sum(not start % size for start, _ in files), lengths[size], size),
        default=0,
    )


def cut_overlaps(segments: list[Segment]) -> list[Segment]:
    """Cut each file at the start of the next one, which has the bytes after it."""
    next_starts = (segment.start for segment in segments[1:])
    ends = [*next_starts, *(segment.end for segment in segments[-1:])]
    return [
        segment._replace(size=min(segment.size, end - segment.start))
        for segment, end in zip(segments, ends, strict=True)
    ]
