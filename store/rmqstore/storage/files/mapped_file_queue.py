"""Files that follow one another as one address space: listing, finding, mapping. Knows no meaning of the bytes."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rmqstore.errors import FileDeletedError, UnreadableFileError
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import name_to_offset
from rmqstore.storage.files.storage import Storage, StoredFile

logger = logging.getLogger(__name__)

_LEAST_BYTES = 20  # no file that RocketMQ makes is shorter than a unit of a queue


class Segment(NamedTuple):
    """One file of the address space: it covers ``[start, start + size)``, by its name and length."""

    start: int
    size: int
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.size


class MappedFileQueue:
    """The files of one or several folders, by the offsets in their names. Listed at creation and by :meth:`refresh`.

    Args:
        folders: that hold the files.
        mapped_at_once: how many files stay open.
        storage: what the files are read from.

    Source: MappedFileQueue.java, MultiPathMappedFileQueue.java.
    """

    def __init__(self, folders: Sequence[Path], mapped_at_once: int, storage: Storage = LOCAL) -> None:
        self._folders, self._storage = folders, storage
        self._mapped_at_once = mapped_at_once  # a mapping holds a file descriptor; a store may have thousands of files
        self._mapped: OrderedDict[Path, StoredFile] = OrderedDict()
        self.refresh()

    def refresh(self) -> None:
        """List the files anew: a running broker makes and deletes some, and a recovery makes some again."""
        for path in [path for path, mapped in self._mapped.items() if mapped.is_outdated()]:
            self._mapped.pop(path).close()
        self.segments = _list_segments(self._folders, self._storage)
        self._starts = [segment.start for segment in self.segments]

    @property
    def min_offset(self) -> int:
        """Offset of the first byte of the first file, 0 without any."""
        return self._starts[0] if self._starts else 0

    @property
    def max_offset(self) -> int:
        """Offset behind the last file, written or not."""
        return self.segments[-1].end if self.segments else 0

    def find(self, offset: int) -> Segment | None:
        """Return the file that covers the offset, None where none does."""
        place = bisect_right(self._starts, offset) - 1
        if place < 0 or offset >= self.segments[place].end:
            return None
        return self.segments[place]

    def open(self, segment: Segment) -> StoredFile:
        """Return the file, from the few that stay open or opened again.

        Raises:
            FileDeletedError: it was deleted since the listing.
            UnreadableFileError: it is longer than RocketMQ can make a file.
        """
        mapped = self._mapped.get(segment.path)
        if mapped is None:
            try:
                mapped = self._mapped[segment.path] = self._storage.open(segment.path)
            except FileNotFoundError as err:
                raise FileDeletedError(str(segment.path)) from err
            if len(self._mapped) > self._mapped_at_once:
                self._mapped.popitem(last=False)[1].close()
        self._mapped.move_to_end(segment.path)
        return mapped

    def close(self) -> None:
        """Let go of every mapping."""
        for mapped in self._mapped.values():
            mapped.close()
        self._mapped.clear()


def _list_segments(folders: Sequence[Path], storage: Storage) -> list[Segment]:
    found: list[Segment] = []
    for folder in folders:
        for entry in storage.list_folder(folder):
            start = name_to_offset(entry.name)
            if start is None:
                continue
            path = folder / entry.name
            try:
                found.append(Segment(start, storage.size(path), path))
            except FileNotFoundError:
                continue  # retention deletes files while we list them
            except UnreadableFileError as err:
                logger.warning("%s: it is passed over", err)
    return _apart(_without_strays(sorted(found)))


def _without_strays(found: list[Segment]) -> list[Segment]:
    """Leave out files that begin inside of others, where no file of the length that the files have begins.

    All have one length and begin at its multiples: another one is not RocketMQ's, and would hide what it lies over.
    """
    sizes = Counter(segment.size for segment in found if segment.size >= _LEAST_BYTES)
    usual = max(sizes, key=lambda size: (sizes[size], -size), default=0)
    kept: list[Segment] = []
    for segment in found:
        if usual and kept and segment.start < kept[-1].end and segment.start % usual:
            logger.warning("%s begins inside of %s; it is passed over", segment.path, kept[-1].path)
        else:
            kept.append(segment)
    return kept


def _apart(found: list[Segment]) -> list[Segment]:
    """Cut files where the next ones begin: one that is longer than that has no say about what follows."""
    following = [*(segment.start for segment in found[1:]), *(segment.end for segment in found[-1:])]
    return [
        segment._replace(size=min(segment.size, end - segment.start))
        for segment, end in zip(found, following, strict=True)
    ]
