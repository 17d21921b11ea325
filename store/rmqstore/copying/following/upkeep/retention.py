"""Deletes old files of a copy: of the log by age, size or the broker's retention, then the rest.

Whole files are deleted, the oldest first, and never the last one. Files of queues and of the index
go when all of their records have gone.

Source: CommitLog.java#deleteExpiredFile, MappedFileQueue.java#deleteExpiredFileByOffset,
IndexService.java#deleteExpiredFile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError, OptionError, about
from rmqstore.format.layout import BATCH_UNIT, QUEUE_UNIT
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, Segment
from rmqstore.storage.files.open_files import OpenFiles
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.index.index_file import index_files, read_header
from rmqstore.storage.log.commitlog import CommitLog

FOREVER: Final = "forever"
_MIRROR: Final = "mirror"
_AGE: Final = re.compile(r"(\d{1,9})\s*([mhdw])", re.IGNORECASE)
_MILLIS: Final = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE: Final = re.compile(r"(\d{1,12})\s*([kmgt]?)(i?)b", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_FORMS: Final = "must be forever, mirror, an age such as 12h, 30d or 8w, or a size such as 500GB"


class Retention(NamedTuple):
    """How long files of the log stay. A file is deleted if any of these allows it.

    Attributes:
        is_mirror: a file goes when the broker has deleted it.
        max_age: a file goes when all its messages were stored longer ago, in ms.
        max_bytes: the oldest files go while all files together are longer.
    """

    is_mirror: bool = False
    max_age: int | None = None
    max_bytes: int | None = None

    @property
    def is_forever(self) -> bool:
        """Whether nothing is ever deleted."""
        return self == Retention()


def parse_retention(name: str, value: str | Sequence[str]) -> Retention:
    """Return what one text says, or several together.

    Args:
        name: of the argument, for errors.
        value: ``forever``, ``mirror``, an age (units m, h, d, w), or a size (B, kB, MB, GB, TB, or
            KiB and so on).

    Raises:
        OptionError: it is none of these.
    """
    retention = Retention()
    for text in [value] if isinstance(value, str) else value:
        word = text.strip().lower()
        age, size = _AGE.fullmatch(word), _SIZE.fullmatch(word)
        if word == _MIRROR:
            retention = retention._replace(is_mirror=True)
        elif age is not None and int(age[1]):
            retention = retention._replace(max_age=int(age[1]) * _MILLIS[age[2]])
        elif size is not None and int(size[1]):
            unit = (1024 if size[3] else 1000) ** _POWERS[size[2]]
            retention = retention._replace(max_bytes=int(size[1]) * unit)
        elif word != FOREVER:
            raise OptionError(about(name, f" {text!r}: {_FORMS}"))
    return retention


def new_begin(
    log: CommitLog, retention: Retention, *, limit: int, source_begin: int | None
) -> int | None:
    """Return where the log begins after all files have gone that a retention does not keep.

    Args:
        log: the log of the copy.
        retention: what stays.
        limit: physical offset before which a file has to end to be deleted.
        source_begin: where the broker's log begins, None if that is not known.

    Returns:
        The physical offset of the first file that stays, None if no file goes.
    """
    begin = None
    oldest = None if retention.max_age is None else int(time.time() * 1000) - retention.max_age
    total = sum(segment.size for segment in log.segments)
    for segment, following in pairwise(log.segments):
        if segment.end > limit or segment.end != following.start:
            break
        is_over = retention.max_bytes is not None and total > retention.max_bytes
        has_gone = retention.is_mirror and source_begin is not None and segment.end <= source_begin
        is_old = oldest is not None and all(
            _is_older(log, each.start, oldest) for each in (segment, following)
        )
        if not (is_over or has_gone or is_old):
            break
        begin = following.start
        total -= segment.size
    return begin


def _is_older(log: CommitLog, physical_offset: int, oldest: int) -> bool:
    """Tell whether a record was stored before a time.

    If the first records of a file and of the next one were, so were those between, unless the clock
    of the broker was set back at just these two.
    """
    try:
        return log.store_timestamp(physical_offset) < oldest
    except (CorruptRecordError, OffsetOutOfRangeError):  # none is there yet
        return False


def delete_built_files(disk: Disk, paths: StorePaths, begin: int) -> int:
    """Delete the files of queues and index whose records all lie before a physical offset.

    Each is gone from the disk before the next one goes, so a power cut never leaves a gap.

    Returns:
        How many files were deleted.
    """
    count = 0
    for topic, queue_id in paths.queues():
        count += _delete_units(disk, paths.queue(topic, queue_id), QUEUE_UNIT, begin)
    for topic, queue_id in paths.batch_queues():
        count += _delete_units(disk, paths.batch_queue(topic, queue_id), BATCH_UNIT, begin)
    for path in index_files(paths.index)[:-1]:
        if read_header(path)["end_phy_offset"] >= begin:
            break
        disk.delete(path)
        disk.flush_folder(paths.index)
        count += 1
    return count


def delete_all_built(disk: Disk, paths: StorePaths) -> None:
    """Delete all files of queues and index; the last one goes first, so a crash leaves no gap."""
    folders = [paths.queue(*each) for each in paths.queues()]
    folders += [paths.batch_queue(*each) for each in paths.batch_queues()]
    files = [[folder / entry.name for entry in LOCAL.list_folder(folder)] for folder in folders]
    for group in [*files, index_files(paths.index)]:
        for path in sorted(group, reverse=True):
            disk.delete(path)
            disk.flush_folder(path.parent)


def _delete_units(disk: Disk, folder: Path, unit: np.dtype[np.void], begin: int) -> int:
    """Delete the files of a queue whose last unit points before a physical offset."""
    count = 0
    files = MappedFileQueue([folder], OpenFiles())
    try:
        for segment in files.segments[:-1]:
            if _last_physical_offset(segment, unit) >= begin:
                break
            disk.delete(Path(segment.file))
            disk.flush_folder(folder)
            count += 1
    finally:
        files.close()
    return count


def _last_physical_offset(segment: Segment, unit: np.dtype[np.void]) -> int:
    stored = np.zeros(unit.itemsize, np.uint8)
    with LOCAL.open(segment.file) as file:
        file.read_into(stored, segment.size - unit.itemsize)
    return int(stored.view(unit)[0]["physical_offset"])
