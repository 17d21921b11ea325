"""Deletes old files of a copy: those of the log by age, size or the retention of the broker.

Whole files are deleted, the oldest first, and never the last one. Files of queues and of the index
go when all of their records have gone. What a stream still has to read is kept: its checkpoint has
a file for each micro-batch in ``offsets``, with where the batch ends, and one in ``commits`` when
the batch was written. The offsets are those of this package's data source for Spark; see
``rmqstore.source.stream_offset``.

Source: CommitLog.java#deleteExpiredFile; MappedFileQueue.java#deleteExpiredFileByOffset;
IndexService.java#deleteExpiredFile; OffsetSeqLog.scala; CommitLog.scala.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator, Sequence, Set as AbstractSet
from contextlib import closing, suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rmqstore.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    OptionError,
    RmqStoreError,
    StoreStateError,
)
from rmqstore.format.layout import BATCH_UNIT, QUEUE_UNIT
from rmqstore.source.stream_offset import StreamOffset
from rmqstore.spans import QueueKey
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, OpenFiles
from rmqstore.storage.files.paths import StorePaths, can_have_queue
from rmqstore.storage.files.storage import read_small
from rmqstore.storage.index_files import index_files, read_header
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue_set import open_files

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_MAX_BYTES: Final = 64 << 20

FOREVER: Final = "forever"
_MIRROR: Final = "mirror"
_AGE: Final = re.compile(r"(\d{1,9})\s*([mhdw])", re.IGNORECASE)
_MILLIS: Final = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE: Final = re.compile(r"(\d{1,12})\s*([kmgt]?)(i?)b", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_FORMS: Final = "must be forever, mirror, an age such as 12h, 30d or 8w, or a size such as 500GB"


def first_needed(
    checkpoint: Path, paths: StorePaths, brokers: AbstractSet[str], end: int, least: int = 0
) -> int:
    """Return the physical offset of the first message that a query has not committed.

    Args:
        checkpoint: its folder.
        paths: the copy that it reads.
        brokers: the names that the broker may have in it.
        end: physical offset up to which the queues of the copy are built.
        least: no matter how far before this physical offset the message lies.

    Raises:
        StoreStateError: the checkpoint does not say this.
        OSError: a file cannot be read.
    """
    entries = LOCAL.list_folder(checkpoint / "commits")
    numbers = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    if not numbers:
        raise StoreStateError(f"checkpoint {checkpoint} has no committed batch")
    number = max(numbers)  # of the last batch that was committed
    path = checkpoint / "offsets" / str(number)
    try:
        text = read_small(LOCAL, path, _MAX_BYTES).decode()
    except FileNotFoundError as err:
        raise StoreStateError(f"{path} is missing, and batch {number} is committed") from err
    except UnicodeDecodeError as err:
        raise StoreStateError(f"{path} is damaged: {err}") from err
    needed = end
    has_broker = False
    for offset in _offsets(path, text):
        for broker in brokers & offset.last_records.keys():
            has_broker = True
            read = offset.by_broker.get(broker, {})
            for (topic, queue_id), queue_offset in read.items():
                needed = min(needed, _physical_offset(paths, topic, queue_id, queue_offset, end))
            if needed >= least:
                newest = offset.last_records[broker].physical_offset
                needed = min(needed, _new_queues(paths, read.keys(), newest, end))
    if not has_broker:
        names = " or ".join(sorted(brokers))
        raise StoreStateError(f"checkpoint {checkpoint} has no offset of broker {names}")
    return needed


def _offsets(path: Path, text: str) -> Iterator[StreamOffset]:
    """Yield the offsets of our sources in a file of a checkpoint; a query may have others too."""
    try:
        for line in text.split("\n")[2:]:  # after the version, and what the batch was run with
            offset = json.loads(line[line.index("{") :]) if "{" in line else None
            if not isinstance(offset, dict) or not {"version", "queues", "log"} <= offset.keys():
                continue
            if offset["version"] != _VERSION:
                raise StoreStateError(
                    f"{path} has offsets of version {offset['version']}, "
                    "which this package does not know"
                )
            yield StreamOffset.of_json(offset)
    except (ValueError, RecursionError) as err:
        raise StoreStateError(f"{path} is damaged: {err.__cause__ or err!r}") from err


def _new_queues(paths: StorePaths, read: AbstractSet[QueueKey], newest: int, end: int) -> int:
    """Return the physical offset of the first message that a query cannot have seen.

    Args:
        read: the queues that it knew.
        newest: physical offset of the newest record of that time. A queue that began before it, and
            was not known, is not read by the query.
        end: returned if there is no such queue.
    """
    first = end
    for topic, queue_id in chain(paths.queue_folders.queues(), paths.batch_folders.queues()):
        if (topic, queue_id) in read:
            continue
        with closing(open_files(paths, topic, queue_id)) as queue:
            if queue.is_present and queue.begin == 0 and queue.end() > 0:
                begin = queue.unit(0)[0]
                if begin >= newest:
                    first = min(first, begin)
    return first


def _physical_offset(
    paths: StorePaths, topic: str, queue_id: int, queue_offset: int, end: int
) -> int:
    """Return where the record of a message lies; the end if the queue does not have it yet."""
    if not can_have_queue(topic, queue_id):
        return end
    with closing(open_files(paths, topic, queue_id)) as queue:
        if not queue.is_present or queue_offset >= queue.end():
            return end
        return queue.unit(max(queue_offset, queue.begin))[0]


class OldFiles:
    """The oldest files of a log, which a retention does not keep and no stream needs.

    Args:
        retention: what stays.
        checkpoints: of streaming queries in Spark; what they have not read stays too.
    """

    def __init__(self, retention: Retention, checkpoints: Sequence[Path]) -> None:
        self._retention = retention
        self._checkpoints = checkpoints
        self._logged: dict[Path, str] = {}

    def find(
        self, paths: StorePaths, log: CommitLog, broker: str, built: int, source_begin: int | None
    ) -> tuple[int, int | None, int]:
        """Return the begin of the log without the files that the retention does not keep.

        Before it comes where it begins with them, and after it from where on streams need all: 0
        while this is not known of one of them.

        Args:
            paths: the copy.
            log: its log.
            broker: the name of the broker.
            built: physical offset up to which queues and index are built; what follows stays.
            source_begin: where the broker's log begins, None if that is not known.
        """
        log.refresh()
        begin = new_begin(log, self._retention, limit=built, source_begin=source_begin)
        if begin is None:
            return log.min_offset, None, built
        names = {broker}
        with suppress(RmqStoreError):
            names.add(BrokerConfig(paths).broker_name())  # as readers of the copy call it
        limit = built
        for checkpoint in self._checkpoints:
            try:
                needed = first_needed(checkpoint, paths, names, built, log.segments[0].end)
                self._logged.pop(checkpoint, None)
            except (RmqStoreError, OSError) as err:
                if self._logged.get(checkpoint) != str(err):
                    logger.warning("%s: nothing is deleted: %s", paths.root, err)
                self._logged[checkpoint] = str(err)
                needed = 0
            limit = min(limit, needed)
        return log.min_offset, begin, limit


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


def parse_retention(value: str | Sequence[str]) -> Retention:
    """Return what one text says, or several together.

    Args:
        value: ``forever``, ``mirror``, an age (units m, h, d, w), or a size (B, kB, MB, GB, TB, or
            KiB and so on).

    Raises:
        OptionError: it is none of these, or there are two ages or two sizes.
    """
    retention = Retention()
    for text in [value] if isinstance(value, str) else value:
        word = text.strip().lower()
        age = _AGE.fullmatch(word)
        size = _SIZE.fullmatch(word)
        if word == _MIRROR:
            retention = retention._replace(is_mirror=True)
        elif age is not None and int(age[1]):
            if retention.max_age is not None:
                raise OptionError(f"`retain` {text!r}: another age is given too; give one")
            retention = retention._replace(max_age=int(age[1]) * _MILLIS[age[2]])
        elif size is not None and int(size[1]):
            if retention.max_bytes is not None:
                raise OptionError(f"`retain` {text!r}: another size is given too; give one")
            unit = (1024 if size[3] else 1000) ** _POWERS[size[2]]
            retention = retention._replace(max_bytes=int(size[1]) * unit)
        elif word != FOREVER:
            raise OptionError(f"`retain` {text!r}: {_FORMS}")
    return retention


def new_begin(
    log: CommitLog, retention: Retention, *, limit: int, source_begin: int | None
) -> int | None:
    """Return the begin of the log once a retention has deleted all files that it may.

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
        is_old = (
            oldest is not None
            and _is_older(log, segment.start, oldest)
            and _is_older(log, following.start, oldest)
        )
        if not (is_over or has_gone or is_old):
            break
        begin = following.start
        total -= segment.size
    return begin


def _is_older(log: CommitLog, physical_offset: int, oldest: int) -> bool:
    """Return whether a record was stored before a time.

    If the first records of a file and of the next one were, so were those between, unless the clock
    of the broker was set back at just these two.
    """
    try:
        return log.store_timestamp(physical_offset) < oldest
    except (CorruptRecordError, OffsetOutOfRangeError):  # none is there yet
        return False


def delete_built_files(disk: Disk, paths: StorePaths, begin: int) -> None:
    """Delete the files of queues and index whose records all lie before a physical offset.

    Each is gone from the disk before the next one goes, so a power cut never leaves a gap.
    """
    for folders, unit in ((paths.queue_folders, QUEUE_UNIT), (paths.batch_folders, BATCH_UNIT)):
        for key in folders.queues():
            _delete_units(disk, folders.queue(*key), unit, begin)
    for path in index_files(paths.index)[:-1]:
        if read_header(path)["end_phy_offset"] >= begin:
            break
        disk.delete(path)
        disk.flush_folder(paths.index)


def delete_all_built(disk: Disk, paths: StorePaths) -> None:
    """Delete all files of queues and index; the last one goes first, so a crash leaves no gap."""
    folders = [paths.queue_folders.queue(*key) for key in paths.queue_folders.queues()]
    folders += [paths.batch_folders.queue(*key) for key in paths.batch_folders.queues()]
    files = [[folder / entry.name for entry in LOCAL.list_folder(folder)] for folder in folders]
    for group in [*files, index_files(paths.index)]:
        for path in sorted(group, reverse=True):
            disk.delete(path)
            disk.flush_folder(path.parent)


def _delete_units(disk: Disk, folder: Path, unit: np.dtype[np.void], begin: int) -> None:
    """Delete the files of a queue whose last unit points before a physical offset."""
    with closing(MappedFileQueue([folder], OpenFiles())) as files:
        for segment in files.segments[:-1]:
            last = np.zeros(unit.itemsize, np.uint8)
            with LOCAL.open(segment.file) as file:
                file.read_into(last, segment.size - unit.itemsize)
            if int(last.view(unit)[0]["physical_offset"]) >= begin:
                break
            disk.delete(Path(segment.file))
            disk.flush_folder(folder)
