"""Explains units that lead to another record than their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError, number_of
from rmqstore.format.text import decode_text
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import Queue

MAX_LED_ASTRAY: Final = 1000  # units of a queue whose records are looked at
_MAX_RANGES: Final = 5  # of queue offsets that one finding names


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
