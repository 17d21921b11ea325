"""Offsets of a stream. They are kept as JSON in checkpoints, which outlive releases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.read.log_cursor import LogMark

_VERSION = 1

# (broker name, topic, queue id)
Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A queue offset for every queue, and a mark for every broker.

    The mark is the newest record that was known when the offset was made. It shows that a recovery
    has cut the log and the broker has gone on, which queue offsets alone would not. As JSON, with
    ``queues`` in the form of option ``startingOffsets``::

        {"version": 1,
         "queues": {"TopicA": {"broker-a": {"0": 23, "1": 17}}},
         "log": {"broker-a": {"physicalOffset": 4711, "storeTimestamp": 1700000000000}}}
    """

    queues: Mapping[Key, int] = field(default_factory=dict)
    marks: Mapping[str, LogMark] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it; equal offsets give equal text."""
        queues: dict[str, dict[str, dict[str, int]]] = {}
        for (broker, topic, queue_id), offset in sorted(self.queues.items(), key=_by_topic):
            queues.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
        log = {
            broker: {"physicalOffset": mark.physical_offset, "storeTimestamp": mark.store_timestamp}
            for broker, mark in sorted(self.marks.items())
        }
        return {"version": _VERSION, "queues": queues, "log": log}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> StreamOffset:
        """Return the offset that Spark stored.

        Raises:
            UnsupportedFeatureError: a newer release wrote it.
            OptionError: it is not an offset of this data source.
        """
        version = stored.get("version")
        if isinstance(version, int) and version > _VERSION:
            raise UnsupportedFeatureError(
                f"the checkpoint holds offsets of version {version}, "
                f"but this release knows version {_VERSION}: "
                "use the release that wrote it, or a later one"
            )
        try:
            return cls(
                queues={
                    (broker, topic, int(queue_id)): int(offset)
                    for topic, brokers in stored["queues"].items()
                    for broker, queues in brokers.items()
                    for queue_id, offset in queues.items()
                },
                marks={
                    broker: LogMark(int(mark["physicalOffset"]), int(mark["storeTimestamp"]))
                    for broker, mark in stored["log"].items()
                },
            )
        except (AttributeError, KeyError, TypeError, ValueError) as err:
            raise OptionError(
                f"the checkpoint does not hold an offset of rmqstore ({err!r}): "
                f"{str(stored)[:200]}; give the query its own checkpointLocation"
            ) from err


def _by_topic(item: tuple[Key, int]) -> tuple[str, str, int]:
    broker, topic, queue_id = item[0]
    return topic, broker, queue_id
