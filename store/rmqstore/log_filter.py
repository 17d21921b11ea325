"""Which records a scan in the order of the log keeps. The records decide, not what queues or topics.json know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore.errors import OptionError
from rmqstore.format.decode import decode_columns
from rmqstore.format.heads import Heads
from rmqstore.format.layout import Bytes, Mask
from rmqstore.format.schema import ALL_COLUMNS
from rmqstore.selection import Selection


class LogFilter(NamedTuple):
    """Which records of a scan in physical order are wanted; None wants all."""

    queues: Mapping[str, frozenset[int] | None] | None = None  # of each topic, None for all of its queues
    topic_pattern: re.Pattern[str] | None = None
    start_timestamp: int | None = None  # ms
    end_timestamp: int | None = None

    def keep(self, data: Bytes, heads: Heads) -> Mask | None:
        """Return a mask (n,) of the records that are wanted, None where all are."""
        if self == LogFilter():
            return None
        kept = np.ones(len(heads), np.bool_)
        if self.start_timestamp is not None:
            kept &= heads.column("store_timestamp") >= self.start_timestamp
        if self.end_timestamp is not None:
            kept &= heads.column("store_timestamp") < self.end_timestamp
        if self.queues is not None or self.topic_pattern is not None:
            kept &= self._keep_topics(data, heads)
        return kept

    def _keep_topics(self, data: Bytes, heads: Heads) -> Mask:
        topics = decode_columns(data, heads, pa.schema([ALL_COLUMNS.field("topic")]))[0]
        encoded = topics.dictionary_encode()
        names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        kept: Mask = np.array([self._wants(name) for name in names], np.bool_)[codes]
        for code, name in enumerate(names):
            queue_ids = (self.queues or {}).get(name)
            if queue_ids is not None:
                kept &= (codes != code) | np.isin(heads.column("queue_id"), list(queue_ids))
        return kept

    def _wants(self, topic: str) -> bool:
        if self.queues is not None:
            return topic in self.queues
        return self.topic_pattern is None or bool(self.topic_pattern.fullmatch(topic))


def log_filter(selection: Selection, columns: list[str]) -> LogFilter:
    """Return what a selection means for a scan in the order of the log.

    Raises:
        OptionError: it speaks of queue offsets, or a column is one that only a queue has.
    """
    selection.require_by_log()
    if "tagsCode" in columns:
        raise OptionError("tagsCode stands in the ConsumeQueue, which scan=commitlog does not read")
    queues: Mapping[str, frozenset[int] | None] | None = selection.assign
    if selection.subscribe is not None:
        queues = dict.fromkeys(selection.subscribe)
    pattern = selection.subscribe_pattern
    return LogFilter(
        queues,
        None if pattern is None else re.compile(pattern),
        selection.start.timestamp,
        selection.end.timestamp,
    )
