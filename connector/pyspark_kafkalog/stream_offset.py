"""Offsets of a stream, kept as JSON in checkpoints, in the form of Spark's Kafka source.

Source: KafkaSourceOffset and JsonUtils of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkalog.storage.names import TopicPartition
from rmqstore.errors import OptionError


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as ``{"topic": {"0": 23}}``; equal offsets give equal text."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def of_json(stored: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return the offsets that a checkpoint holds.

    Raises:
        OptionError: it does not hold offsets of this data source.
    """
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in stored.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError) as err:
        raise OptionError(
            f"the checkpoint does not hold offsets of kafkalog but {stored!r}: "
            "use a checkpoint of its own for each query"
        ) from err
