"""Tags codes and filter bit maps that queue units keep in consumequeue_ext.

Such a unit holds an address in place of the tags code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptQueueError
from rmqstore.format.bloom import may_match
from rmqstore.format.layout import MAX_EXT_ADDRESS, Mask
from rmqstore.read.scan.rows import UnitRows
from rmqstore.read.scan.spec import DROPMALFORMED, FAILFAST, ReadSpec
from rmqstore.storage.queue.consumequeue_ext import ConsumeQueueExt

logger = logging.getLogger(__name__)

OpenExt = Callable[[str, int], ConsumeQueueExt]


def resolve_codes(units: UnitRows, open_ext: OpenExt) -> NDArray[np.int64]:
    """Return the tags codes (n,) of units; an address that leads to no sound unit stays."""
    codes = units.tags_codes
    rows = np.flatnonzero(codes <= MAX_EXT_ADDRESS)
    if not len(rows):
        return codes
    codes = codes.copy()
    topic_codes = units.topic_codes[rows].astype(np.int64)
    queue_ids = units.queue_ids[rows].astype(np.int64)
    queues = topic_codes << 32 | queue_ids & 0xFFFFFFFF
    for queue in np.unique(queues).tolist():
        own = rows[queues == queue]
        ext = open_ext(units.topics[queue >> 32], int(units.queue_ids[own[0]]))
        ext_units = ext.units(codes[own])
        codes[own[ext_units.sound]] = ext_units.tags_codes[ext_units.sound]
    return codes


def keep_resolved(units: UnitRows, open_ext: OpenExt, spec: ReadSpec) -> Mask | None:
    """Return a mask (n,) of the units to go on with if column ``tagsCode`` is read; None for all.

    In mode PERMISSIVE a message whose code is lost stays, with null in the column and the reason.

    Raises:
        CorruptQueueError: a code is lost, and the mode is FAILFAST.
    """
    lost = np.flatnonzero(units.tags_codes <= MAX_EXT_ADDRESS)
    if not len(lost) or spec.mode not in (FAILFAST, DROPMALFORMED):
        return None
    first = units.expected(int(lost[0]))
    path, byte = open_ext(first.topic, first.queue_id).place(int(units.tags_codes[lost[0]]))
    queue = f"{first.topic}-{first.queue_id}"
    reason = (
        f"no unit of consumequeue_ext, where queue offset {first.queue_offset} of {queue} "
        "keeps its tags code: leave column tagsCode out to read the message"
    )
    if spec.mode == FAILFAST:
        raise CorruptQueueError(path, byte, reason)
    logger.warning("dropped %d messages, the first: %s, byte %d: %s", len(lost), path, byte, reason)
    return units.tags_codes > MAX_EXT_ADDRESS


def matched_groups(
    ext: ConsumeQueueExt, code: int, topic: str, groups: Mapping[str, int]
) -> list[str] | None:
    """Return the groups whose filter a message may match, by the Bloom bit map of its unit.

    None if there is no bit map.

    Args:
        ext: the consumequeue_ext of its queue.
        code: the tags code of its queue unit.
        topic: topic of the message.
        groups: the groups to check, each with the time (ms) when its filter was made. A message
            that was stored before that time may match.

    Source: ExpressionMessageFilter.java#isMatchedByConsumeQueue.
    """
    if code > MAX_EXT_ADDRESS:
        return None
    address = np.array([code], np.int64)
    bit_map = ext.bit_maps(address)[0].as_py()
    if bit_map is None:
        return None
    stored = int(ext.units(address).store_timestamps[0])
    return [
        group
        for group, filter_made in groups.items()
        if stored <= filter_made or may_match(bit_map, group, topic)
    ]
