"""What queue units keep in consumequeue_ext: tags codes, in whose place they hold an address, and filter bit maps."""

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
    """Return the tags codes (n,) of units; an address stays where it is if no sound unit stands there."""
    codes = units.tags_codes
    rows = np.flatnonzero(codes <= MAX_EXT_ADDRESS)
    if not len(rows):
        return codes
    codes = codes.copy()
    queues = (
        units.topic_codes[rows].astype(np.int64) << 32
        | units.queue_ids[rows].astype(np.int64) & 0xFFFFFFFF
    )
    for queue in np.unique(queues).tolist():
        own = rows[queues == queue]
        ext = open_ext(units.topics[queue >> 32], int(units.queue_ids[own[0]]))
        found = ext.units(codes[own])
        codes[own[found.sound]] = found.tags_codes[found.sound]
    return codes


def keep_resolved(units: UnitRows, open_ext: OpenExt, spec: ReadSpec) -> Mask | None:
    """Return a mask (n,) of the units to go on with where column ``tagsCode`` is read, None for all.

    A message whose code is lost stays with mode PERMISSIVE: the column is null then, and the reason
        is told.

    Raises:
        CorruptQueueError: a code is lost, and the mode is FAILFAST.
    """
    lost = np.flatnonzero(units.tags_codes <= MAX_EXT_ADDRESS)
    if not len(lost) or spec.mode not in (FAILFAST, DROPMALFORMED):
        return None
    first = units.expected(int(lost[0]))
    path, byte = open_ext(first.topic, first.queue_id).place(int(units.tags_codes[lost[0]]))
    reason = f"no unit of consumequeue_ext, where queue offset {first.queue_offset} of {first.topic}-{first.queue_id} "
    reason += "keeps its tags code: leave column tagsCode out to read the message"
    if spec.mode == FAILFAST:
        raise CorruptQueueError(path, byte, reason)
    logger.warning("dropped %d messages, the first: %s, byte %d: %s", len(lost), path, byte, reason)
    return units.tags_codes > MAX_EXT_ADDRESS


def matched_groups(
    ext: ConsumeQueueExt, code: int, topic: str, groups: Mapping[str, int]
) -> list[str] | None:
    """Return the groups whose filter a message may match, by the Bloom bit map of its unit; None without one.

    Args:
        ext: of its queue.
        code: what its queue unit has for a tags code.
        topic: of the message.
        groups: to be asked for, and since when each has its filter, in ms: what was stored before
            may match.

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
        for group, since in groups.items()
        if stored <= since or may_match(bit_map, group, topic)
    ]
