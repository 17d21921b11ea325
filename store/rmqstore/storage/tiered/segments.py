"""Lists the files of one folder of tiered storage.

A file begins at the offset in its name and ends where it ends: none is preallocated or padded, and
any length is right.

Source: TieredFileSegment.java, FlatAppendFile.java.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rmqstore.errors import UnreadableFileError
from rmqstore.storage.files.mapped_file_queue import Segment, cut_overlaps
from rmqstore.storage.files.storage import A_DANGLING_LINK, Entry, Storage

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9a-f]{8}([0-9]{20})", re.ASCII)
_MAX_OFFSET = 1 << 62  # above the name of any real file; sums stay inside an int64


class Misfit(NamedTuple):
    """A file that contradicts its name or the other files, so that messages may be lost."""

    path: str
    position: int
    reason: str


class SegmentLister:
    """Lists segments, and keeps what is wrong with them.

    Args:
        unit: the number of bytes of which each segment holds a multiple; 1 for any number.

    Attributes:
        misfits: what the last listing found to be wrong.
    """

    __slots__ = ("_unit", "misfits")

    def __init__(self, unit: int = 1) -> None:
        self._unit = unit
        self.misfits: list[Misfit] = []

    def __call__(self, folders: Sequence[str], storage: Storage) -> list[Segment]:
        """Return the segments in some folders, by offset, without overlaps."""
        self.misfits = []
        segments = [
            segment
            for folder in folders
            for entry in storage.list_folder(folder)
            if (segment := self._segment(f"{folder}/{entry.name}", entry, storage)) is not None
        ]
        segments.sort()
        for before, after in pairwise(segments):
            if after.start < before.end:
                reason = f"the file begins inside of {before.file}, which ends at {before.end}"
                self.misfits.append(Misfit(after.file, 0, reason))
        return cut_overlaps(segments) if segments else []

    def _segment(self, file: str, entry: Entry, storage: Storage) -> Segment | None:
        match = _NAME.fullmatch(entry.name)
        if match is None:
            logger.warning("%s: not named as a file of tiered storage; it is passed over", file)
            return None
        start = int(match[1])
        if start >= _MAX_OFFSET or start % self._unit:
            reason = f"no file begins at offset {start}"
            if start % self._unit:
                reason += f", which is not a multiple of {self._unit}"
            self.misfits.append(Misfit(file, 0, reason))
            return None
        try:
            size = storage.size(file)
        except FileNotFoundError:
            if entry.is_link:
                self.misfits.append(Misfit(file, 0, f"the path is {A_DANGLING_LINK}"))
            return None  # retention deleted the file during the listing
        except UnreadableFileError as err:
            reason = f"the path is {err.found}; {err.wanted} is expected"
            self.misfits.append(Misfit(file, 0, reason))
            return None
        if size % self._unit:
            reason = f"the file ends inside of a unit of {self._unit} bytes"
            self.misfits.append(Misfit(file, size - size % self._unit, reason))
        return Segment(start, size, file)
