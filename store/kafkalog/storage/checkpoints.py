"""The small text files beside the segments: checkpoints, leader epochs and properties."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from kafkalog.storage.names import TopicPartition
from rmqstore.errors import StoreFormatError
from rmqstore.storage.files.storage import Storage, read_small

logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 64 << 20  # some 300 bytes for each partition of a broker
_VERSION: Final = "0"


class LeaderEpoch(NamedTuple):
    """The first offset that was written while a leader epoch lasted."""

    epoch: int
    start_offset: int


def read_offset_checkpoint(storage: Storage, path: str) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint file by partition; {} if the file is missing or unsound.

    A broker goes on in the same way: it takes an unsound checkpoint for an empty one.

    Args:
        storage: the storage to read from.
        path: such as ``recovery-point-offset-checkpoint``.

    Source: OffsetCheckpointFile.java, CheckpointFile.java.
    """
    offsets = {}
    try:
        for fields in _entries(storage, path):
            topic, partition, offset = fields
            offsets[TopicPartition(topic, _number(partition, 32))] = _number(offset, 64)
    except (ValueError, StoreFormatError) as err:
        logger.warning("%s is taken for empty, as a broker does: %s", path, err)
        return {}
    return offsets


def read_leader_epochs(storage: Storage, path: str) -> list[LeaderEpoch]:
    """Return the entries of ``leader-epoch-checkpoint``, rising; [] if it is missing or unsound.

    Source: LeaderEpochCheckpointFile.java.
    """
    try:
        return [
            LeaderEpoch(_number(epoch, 32), _number(offset, 64))
            for epoch, offset in _entries(storage, path)
        ]
    except (ValueError, StoreFormatError) as err:
        logger.warning("%s is taken for empty, as a broker does: %s", path, err)
        return []


def read_topic_id(storage: Storage, path: str) -> str | None:
    """Return the topic id in ``partition.metadata``, 22 characters; None if it is not told.

    Source: PartitionMetadataFile.java.
    """
    match = re.search(r"^topic_id: *(\S{22})$", _text(storage, path) or "", re.MULTILINE)
    return match[1] if match else None


def read_properties(storage: Storage, path: str) -> dict[str, str]:
    """Return the entries of ``meta.properties``; {} if it is missing.

    Source: MetaProperties.java.
    """
    entries = {}
    for line in (_text(storage, path) or "").splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.lstrip().startswith(("#", "!")):
            entries[name.strip()] = value.strip()
    return entries


def _entries(storage: Storage, path: str) -> Iterator[list[str]]:
    """Yield the fields of each entry of a checkpoint.

    Raises:
        ValueError: the file does not have the form of a checkpoint.
    """
    lines = (_text(storage, path) or "").splitlines()
    if not lines:
        return
    if lines[0].strip() != _VERSION:
        raise ValueError(f"its version is {lines[0][:20]!r}")
    expected = _number(lines[1].strip(), 32) if len(lines) > 1 else 0
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != expected:
        raise ValueError(f"it has {len(entries)} entries and names {expected}")
    yield from entries


def _number(text: str, bits: int) -> int:
    """Return a number as Java parses it.

    Raises:
        ValueError: it is not a decimal number, or has more bits.
    """
    if re.fullmatch(r"[-+]?[0-9]{1,19}", text) is None:
        raise ValueError(f"{text[:30]!r} is not a number")
    number = int(text)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"{number} does not fit into {bits} bits")
    return number


def _text(storage: Storage, path: str) -> str | None:
    try:
        return read_small(storage, path, _MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except StoreFormatError as err:
        logger.warning("%s is left aside: %s", path, err)
        return None
