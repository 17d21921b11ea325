"""Offsets of a stream as checkpoints keep them. Pure: no session, no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafkalog.storage.identity import BatchNote, LogIdentity
from kafkalog.storage.names import TopicPartition
from rmqstore.errors import OptionError
from rmqstore.source.stream_offset import flattened, nested, require_version

# No topic can have this name, so that the rest is what Spark's Kafka source has.
IDENTITY: Final = "#identity"
_VERSION: Final = 1

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset of every partition, and which log it belongs to.

    As JSON, with offsets in the form of Spark's Kafka source::

        {"G": {"0": 23, "1": 40},
         "#identity": {"version": 1,
                       "topicIds": {"G": {"0": "5Ja…", "1": "5Ja…"}},
                       "batches": {"G": {"0": [0, 1700000000000, 3735928559]}}}}

    A batch is the last one before the offset: leader epoch, largest timestamp, CRC. Offsets that
    earlier versions wrote have no identities.
    """

    offsets: Mapping[TopicPartition, int]
    identities: Mapping[TopicPartition, LogIdentity] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it; equal offsets give equal text."""
        stored = nested((*key, offset) for key, offset in self.offsets.items())
        known = [(key, self.identities.get(key, LogIdentity())) for key in sorted(self.offsets)]
        topic_ids = nested((*key, state.topic_id) for key, state in known if state.topic_id)
        batches = nested((*key, [*state.batch]) for key, state in known if state.batch)
        if topic_ids or batches:
            stored[IDENTITY] = {"version": _VERSION, "topicIds": topic_ids, "batches": batches}
        return stored

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> StreamOffset:
        """Return the offset that a checkpoint holds.

        Raises:
            OptionError: it does not hold offsets of this data source.
            UnsupportedFeatureError: a newer release wrote it.
        """
        try:
            offsets = {topic: table for topic, table in stored.items() if topic != IDENTITY}
            noted = stored.get(IDENTITY, {"version": _VERSION, "topicIds": {}, "batches": {}})
            require_version(noted["version"], _VERSION)
            topic_ids = _by_partition(noted["topicIds"])
            batches = {
                key: BatchNote(*map(int, batch))
                for key, batch in _by_partition(noted["batches"]).items()
            }
            identities = {
                key: LogIdentity(topic_ids.get(key), batches.get(key))
                for key in topic_ids.keys() | batches.keys()
            }
            next_offsets = {key: int(offset) for key, offset in _by_partition(offsets).items()}
            return cls(next_offsets, identities)
        except (AttributeError, KeyError, TypeError, ValueError) as err:
            raise OptionError(
                f"the checkpoint does not hold offsets of kafkalog but {stored!r}: "
                "use a checkpoint of its own for each query"
            ) from err


def _by_partition(tables: Mapping[str, Any]) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic, number): value for topic, number, value in flattened(tables, 1)}
