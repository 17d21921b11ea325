"""Finds where messages with some tags may lie by the tags codes of queue units.

The index of brokers from 5.4 on has tags too, but no file tells which records it has them of.
Units have the tags code of every message. They take 20 bytes a message and are read in their order,
while items of the index are found one by one, so units are as fast unless the tags are rare.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from rmqstore.errors import StoreFormatError, UnsupportedFeatureError
from rmqstore.format.hashing import tags_code
from rmqstore.format.layout import LMQ_PREFIX, MAX_EXT_ADDRESS, SCHEDULE_TOPIC, Positions
from rmqstore.read.scan.rows import UnitRows
from rmqstore.read.scan.tags_codes import resolve_codes
from rmqstore.storage.queue.bounds import pieces
from rmqstore.storage.queue.queue_set import Queues

logger = logging.getLogger(__name__)


def tagged_places(queues: Queues, topics: Sequence[str], tags: Collection[str]) -> Positions | None:
    """Return the physical offsets of all records of some topics that may have one of some tags.

    None if queues do not tell: none of the topics has queues, or one cannot be read.

    Args:
        queues: the queues of the store.
        topics: names of topics. Light message queues have no records of their own.
        tags: whole tags.
    """
    own = [topic for topic in topics if not topic.startswith(LMQ_PREFIX)]
    if not any(queues.ids(topic) for topic in own):
        return None
    codes = np.array([tags_code(text) for text in tags], np.int64)
    try:
        parts = [part for topic in own for part in _places(queues, topic, codes)]
    except (StoreFormatError, UnsupportedFeatureError) as err:
        logger.warning("%s; its units are not used to find tags", err)
        return None
    return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))


def _places(queues: Queues, topic: str, codes: Positions) -> Iterator[Positions]:
    for queue_id in queues.ids(topic):
        queue = queues.open(topic, queue_id)
        for low, high in pieces(queue, queue.begin, queue.end()):
            rows = UnitRows.of_queue(topic, queue_id, np.arange(low, high), queue.units(low, high))
            stored = resolve_codes(rows, queues.open_ext)
            # In place of a code, some units have an address that leads nowhere, or a time.
            may_have = np.isin(stored, codes) | (stored <= MAX_EXT_ADDRESS)
            may_have |= topic == SCHEDULE_TOPIC
            yield rows.physical_offsets[may_have & (rows.sizes > 0)].astype(np.int64)
