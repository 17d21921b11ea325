"""What streams still need of a copy, by the checkpoints of their queries in Spark.

A checkpoint has a file for each micro-batch in ``offsets``, with where the batch ends, and one in
``commits`` when the batch was written. The offsets are those of this package's data source for
Spark; see ``pyspark_rmqstore.offsets``.

Source: OffsetSeqLog.scala, CommitLog.scala.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rmqstore.errors import RmqStoreError, StoreStateError
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths, can_have_queue
from rmqstore.storage.files.storage import read_small
from rmqstore.storage.queue.queue_set import open_files

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_MAX_BYTES: Final = 64 << 20


class NeededByStreams:
    """Asks checkpoints for the oldest part of the log that their queries still need.

    Args:
        checkpoints: their folders.
    """

    def __init__(self, checkpoints: Sequence[Path]) -> None:
        self._checkpoints = checkpoints
        self._told: dict[Path, str] = {}

    def limit(self, paths: StorePaths, brokers: Collection[str], end: int, least: int = 0) -> int:
        """Return the physical offset before which no query needs anything.

        While this cannot be told of one of them, it is 0.

        Args:
            paths: the copy.
            brokers: the names that the broker may have in the checkpoints.
            end: physical offset up to which the queues of the copy are built.
            least: no matter how far before this physical offset the answer lies.
        """
        limit = end
        for checkpoint in self._checkpoints:
            try:
                needed = first_needed(checkpoint, paths, brokers, end, least)
                self._told.pop(checkpoint, None)
            except (RmqStoreError, OSError) as err:
                if self._told.get(checkpoint) != str(err):
                    logger.warning("%s: nothing is deleted: %s", paths.root, err)
                self._told[checkpoint] = str(err)
                needed = 0
            limit = min(limit, needed)
        return limit


def first_needed(
    checkpoint: Path, paths: StorePaths, brokers: Collection[str], end: int, least: int = 0
) -> int:
    """Return the physical offset of the first message that a query has not committed.

    Args:
        checkpoint: its folder.
        paths: the copy that it reads.
        brokers: the names that the broker may have in it.
        end: physical offset up to which the queues of the copy are built.
        least: no matter how far before this physical offset the message lies.

    Raises:
        StoreStateError: the checkpoint does not tell this.
        OSError: a file cannot be read.
    """
    number = _last_batch(checkpoint)
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
        for broker in brokers:
            mark = offset["log"].get(broker)
            if mark is None:
                continue
            has_broker = True
            read = set()
            for topic, queue_id, queue_offset in _queues(offset["queues"], broker):
                read.add((topic, queue_id))
                needed = min(needed, _physical_offset(paths, topic, queue_id, queue_offset, end))
            if needed >= least:
                needed = min(needed, _new_queues(paths, read, int(mark["physicalOffset"]), end))
    if not has_broker:
        names = " or ".join(sorted(brokers))
        raise StoreStateError(f"checkpoint {checkpoint} has no offset of broker {names}")
    return needed


def _last_batch(checkpoint: Path) -> int:
    """Return the number of the last batch that was committed."""
    entries = LOCAL.list_folder(checkpoint / "commits")
    numbers = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    if not numbers:
        raise StoreStateError(f"checkpoint {checkpoint} has no committed batch")
    return max(numbers)


def _offsets(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """Yield the offsets of our sources in a file of a checkpoint; a query may have others too."""
    try:
        for line in text.split("\n")[2:]:  # after the version, and what the batch was run with
            offset = json.loads(line[line.index("{") :]) if "{" in line else None
            if isinstance(offset, dict) and {"version", "queues", "log"} <= offset.keys():
                if offset["version"] != _VERSION:
                    raise StoreStateError(
                        f"{path} has offsets of version {offset['version']}, "
                        "which this package does not know"
                    )
                _require_readable(offset)
                yield offset
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as err:
        raise StoreStateError(f"{path} is damaged: {err!r}") from err


def _require_readable(offset: dict[str, Any]) -> None:
    """Raise what reading raises where a value of an offset has another type."""
    for broker, mark in offset["log"].items():
        int(mark["physicalOffset"])
        list(_queues(offset["queues"], broker))


def _queues(queues: dict[str, Any], broker: str) -> Iterator[tuple[str, int, int]]:
    """Yield topic, queue id and queue offset of each queue of a broker."""
    for topic, brokers in queues.items():
        for queue_id, queue_offset in brokers.get(broker, {}).items():
            yield topic, int(queue_id), int(queue_offset)


def _new_queues(paths: StorePaths, read: AbstractSet[tuple[str, int]], mark: int, end: int) -> int:
    """Return where the first message of any queue lies that a query could not know yet.

    Args:
        paths: the copy.
        read: topic and queue id of the queues that it knew.
        mark: physical offset of the newest record of that time. A queue that began before it, and
            was not known, is not read by the query.
        end: returned if there is no such queue.
    """
    first = end
    for topic, queue_id in chain(paths.queues(), paths.batch_queues()):
        if (topic, queue_id) in read:
            continue
        with closing(open_files(paths, topic, queue_id)) as queue:
            if queue.is_present and queue.begin == 0 and queue.end() > 0:
                begin = queue.unit(0)[0]
                first = min(first, begin) if begin >= mark else first
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
