"""Explains units that lead to another record than their own, or have not its tags code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, Finding, OffsetOutOfRangeError, number_of
from rmqstore.format.layout import MAX_EXT_ADDRESS
from rmqstore.format.text import decode_text
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import ConsumeQueueExt
from rmqstore.storage.queue.queue import Queue
from rmqstore.store.message_store import MessageStore

MAX_LED_ASTRAY: Final = 1000  # units of a queue whose records are looked at
_MAX_MESSAGES: Final = 1000  # of batch topics that are named
_MAX_RANGES: Final = 5  # of queue offsets that one finding names


def damaged_messages(store: MessageStore, topics: Iterable[str]) -> Iterator[Finding]:
    """Yield the messages of batch topics that reads refuse.

    Units and records may disagree although all of them are valid.
    """
    batches = store.scan(
        subscribe=topics, columns=["queueOffset"], mode="PERMISSIVE", fail_on_data_loss=False
    )
    corrupt = (
        text
        for batch in batches
        for text in batch.column("_corrupt_record").drop_null().to_pylist()
    )
    for text in islice(corrupt, _MAX_MESSAGES):
        location, _, reason = text.partition(": ")
        yield Finding("queue", location, reason)


def n_records(physical_offsets: NDArray[np.int64]) -> int:
    """Return how many records the messages of a queue have: those of an inner batch share one."""
    return len(physical_offsets[:1]) + int(np.count_nonzero(np.diff(physical_offsets)))


class TagsCodes:
    """Finds units of one queue that lead to their record and have another tags code.

    A unit holds the code, or an address in the extension of the queue, which has it then.

    Args:
        open_ext: opens the extension.
        tolerance: by how much a code may differ from that of the record.
    """

    def __init__(self, open_ext: Callable[[], ConsumeQueueExt], tolerance: int) -> None:
        self._ext = cache(open_ext)
        self._tolerance = tolerance
        self._others: list[NDArray[np.int64]] = []  # queue offsets of units with another code
        self._without_ext: list[NDArray[np.int64]] = []  # and with an address of no unit

    def compare(
        self, unit_offsets: NDArray[np.int64], codes: NDArray[np.int64], expected: NDArray[np.int64]
    ) -> None:
        """Note which units (n,) have another code than their records."""
        has_code = (codes >= expected - self._tolerance) & (codes <= expected + self._tolerance)
        in_ext = np.flatnonzero(codes <= MAX_EXT_ADDRESS)
        if len(in_ext):
            ext_units = self._ext().units(codes[in_ext])
            has_code[in_ext] = ~ext_units.valid | (ext_units.tags_codes == expected[in_ext])
            self._without_ext.append(unit_offsets[in_ext[~ext_units.valid]])
        self._others.append(unit_offsets[~has_code])

    def findings(self, queue_name: str) -> Iterator[Finding]:
        """Yield what was noted."""
        for offsets, what in (
            (self._others, "have another tags code than their record"),
            (self._without_ext, "lead to no unit of the extension, which has their tags code"),
        ):
            found = np.concatenate([np.empty(0, np.int64), *offsets])
            if len(found):
                text = f"the units of {named_offsets(found)} {what}"
                yield Finding("queue", queue_name, text, "tags")


def led_astray(
    queue: Queue, key: tuple[str, int], queue_offsets: Iterable[int], log: CommitLog
) -> Iterator[tuple[int, str]]:
    """Yield how many units lead to the record of another unit, and what is to be said of them.

    Units that lead to no record, or to one that no other unit leads to, are left out.

    Args:
        queue: the queue.
        key: its topic and queue id.
        queue_offsets: those of units that differ from the record that they should lead to, rising.
        log: the log.
    """
    found: dict[str, list[int]] = {}
    for queue_offset in queue_offsets:
        kind = _kind_of(queue, key, queue_offset, log)
        if kind is not None:
            found.setdefault(kind, []).append(queue_offset)
    for kind, of_kind in found.items():
        units = number_of(len(of_kind), "unit")
        yield len(of_kind), f"{units}, the first at queue offset {of_kind[0]}, for {kind}"


def _kind_of(queue: Queue, key: tuple[str, int], queue_offset: int, log: CommitLog) -> str | None:
    """Return how a unit leads to another record, and what a broker makes of such units."""
    physical_offset, size, _ = queue.unit(queue_offset)
    try:
        record = log.parts(physical_offset)
    except (CorruptRecordError, OffsetOutOfRangeError):
        return None
    fixed = record.fixed
    if int(fixed["physical_offset"]) != physical_offset or int(fixed["total_size"]) != size:
        return None
    topic = decode_text(record.topic)
    queue_id = int(fixed["queue_id"])
    if (topic, queue_id) != key:
        return (
            f"messages of {topic}-{queue_id}, as where a file of that queue was copied or restored "
            "to this one: a broker serves them here, and not the messages of this queue"
        )
    own_offset = int(fixed["queue_offset"])
    if own_offset == queue_offset or queue.unit(own_offset)[0] != physical_offset:
        return None
    path, position = queue.location(queue_offset)
    own_path, own_position = queue.location(own_offset)
    if path != own_path and position == own_position:
        return (
            f"messages of another file of the queue, {own_path}, as where that file was copied or "
            "restored to another name: a broker serves these messages twice, and not those that "
            "belong here"
        )
    return (
        "messages that have another unit, as a crash of a broker leaves them: a broker serves "
        "these messages twice"
    )


def named_offsets(queue_offsets: NDArray[np.int64]) -> str:
    """Return rising queue offsets in words."""
    runs = np.split(queue_offsets, np.flatnonzero(np.diff(queue_offsets) != 1) + 1)
    texts = [
        f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:_MAX_RANGES]
    ]
    n_more = len(runs) - _MAX_RANGES
    text = ", ".join(texts) + (f" and {n_more} more ranges" if n_more > 0 else "")
    return f"queue offset{'s' if len(queue_offsets) > 1 else ''} {text}"
