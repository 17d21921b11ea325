"""Offsets of a stream, as values and as JSON. Pure: no files.

They are kept as JSON in checkpoints, which outlive releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.read.last_record import LastRecord
from rmqstore.spans import QueueKey

_VERSION = 1

# (broker name, topic, queue id)
Key = tuple[str, str, int]


def nested(offsets: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """Return offsets as JSON has them: ``{"topic": {"0": 23}}`` for ``("topic", 0, 23)``.

    Equal offsets give equal text.

    Args:
        offsets: of each queue or partition its names, its number and its offset.
    """
    outermost: dict[str, Any] = {}
    for *names, number, offset in sorted(offsets, key=lambda row: row[:-1]):
        level = outermost
        for name in names:
            level = level.setdefault(name, {})
        level[str(number)] = offset
    return outermost


def flattened(stored: Mapping[str, Any], n_names: int) -> Iterator[tuple[Any, ...]]:
    """Yield the names, the number and the value of each queue, as :func:`nested` takes them.

    Args:
        stored: the JSON object.
        n_names: how many names a queue or partition has.

    Raises:
        AttributeError, TypeError, ValueError: it is not such an object.
    """
    if not n_names:
        for number, value in stored.items():
            yield int(number), value
        return
    for name, inner in stored.items():
        for rest in flattened(inner, n_names - 1):
            yield name, *rest


def require_version(version: int, known: int) -> None:
    """Refuse offsets of a version that only a later release knows.

    Raises:
        UnsupportedFeatureError: they are of such a version.
    """
    if version > known:
        raise UnsupportedFeatureError(
            f"the checkpoint holds offsets of version {version}, but this release knows version "
            f"{known}: use the release that wrote it, or a later one"
        )


@dataclass(frozen=True)
class StreamOffset:
    """A queue offset for every queue, and the last record of every broker.

    That is the newest record that was known when the offset was made. It shows that a recovery has
    cut the log and the broker has continued, which queue offsets alone would not. As JSON, with
    ``queues`` in the form of option ``startingOffsets``::

        {"version": 1,
         "queues": {"TopicA": {"broker-a": {"0": 23, "1": 17}}},
         "log": {"broker-a": {"physicalOffset": 4711, "storeTimestamp": 1700000000000}}}

    A query may stop following queues, as with another ``subscribe``. Last records advance without
    them, so ``left`` keeps the one of the last offset at which such a queue was followed. As JSON,
    which has it only if there is such a queue::

         "left": {"TopicB": {"broker-a": {"0": {"physicalOffset": 23, "storeTimestamp": 1700}}}}

    The first record of a log, if it is known, shows that another store has taken the place of one.
    It is kept as ``begin`` within the entry of the broker in ``log``, which earlier releases skip.
    """

    queues: Mapping[Key, int] = field(default_factory=dict)
    last_records: Mapping[str, LastRecord] = field(default_factory=dict)
    left: Mapping[Key, LastRecord] = field(default_factory=dict)
    first_records: Mapping[str, LastRecord] = field(default_factory=dict)

    @cached_property
    def by_broker(self) -> Mapping[str, Mapping[QueueKey, int]]:
        """The queue offsets of each broker, by topic and queue id."""
        found: dict[str, dict[QueueKey, int]] = {}
        for (broker, topic, queue_id), offset in self.queues.items():
            found.setdefault(broker, {})[topic, queue_id] = offset
        return found

    @property
    def brokers(self) -> set[str]:
        """The brokers that the offset knows messages of."""
        return {*self.by_broker, *self.last_records}

    def json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it; equal offsets give equal text."""
        queues = nested(
            (topic, broker, queue_id, offset)
            for (broker, topic, queue_id), offset in self.queues.items()
        )
        log: dict[str, dict[str, Any]] = {}
        for broker, record in sorted(self.last_records.items()):
            log[broker] = _stored(record)
            if broker in self.first_records:
                log[broker]["begin"] = _stored(self.first_records[broker])
        stored = {"version": _VERSION, "queues": queues, "log": log}
        if self.left:
            stored["left"] = nested(
                (topic, broker, queue_id, _stored(record))
                for (broker, topic, queue_id), record in self.left.items()
            )
        return stored

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> StreamOffset:
        """Return the offset that Spark stored.

        Raises:
            UnsupportedFeatureError: a newer release wrote it.
            OptionError: it is not an offset of this data source.
        """
        version = stored.get("version")
        if isinstance(version, int):
            require_version(version, _VERSION)
        try:
            return cls(
                queues={
                    (broker, topic, queue_id): int(offset)
                    for topic, broker, queue_id, offset in flattened(stored["queues"], 2)
                },
                last_records={
                    broker: _record_of(record) for broker, record in stored["log"].items()
                },
                left={
                    (broker, topic, queue_id): _record_of(record)
                    for topic, broker, queue_id, record in flattened(stored.get("left", {}), 2)
                },
                first_records={
                    broker: _record_of(record["begin"])
                    for broker, record in stored["log"].items()
                    if "begin" in record
                },
            )
        except (AttributeError, KeyError, TypeError, ValueError) as err:
            raise OptionError(
                f"the checkpoint does not hold an offset of rmqstore ({err!r}): "
                f"{str(stored)[:200]}; give the query its own checkpointLocation"
            ) from err


def _stored(record: LastRecord) -> dict[str, int]:
    return {"physicalOffset": record.physical_offset, "storeTimestamp": record.store_timestamp}


def _record_of(stored: Mapping[str, Any]) -> LastRecord:
    return LastRecord(int(stored["physicalOffset"]), int(stored["storeTimestamp"]))
