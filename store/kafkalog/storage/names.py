"""The names of partition folders and of the files in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

METADATA_TOPIC: Final = "__cluster_metadata"

DELETED, FUTURE, STRAY = "delete", "future", "stray"
# What a folder with such a name is.
STATES: Final = {
    DELETED: "is of a partition that was deleted or moved; a broker removes it",
    FUTURE: "is a copy for another log directory that a broker has not finished yet",
    STRAY: (
        "was put aside by a broker whose cluster does not know the partition, or has it elsewhere;"
        " its records are not read"
    ),
}

_INTERNAL: Final = "__"
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_IN_TRANSIT = re.compile(rf"(\S+)-(\S+)\.(\S+)-({DELETED}|{FUTURE}|{STRAY})")
_LAST_PARTITION: Final = (1 << 31) - 1
_LAST_OFFSET: Final = (1 << 63) - 1
_DIGITS: Final = 20  # of the number in the name of a segment's file
SNAPSHOT: Final = ".snapshot"  # of the producers, as of an offset


class TopicPartition(NamedTuple):
    """A partition by its topic and number; sorts by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class FolderName(NamedTuple):
    """What the name of a partition folder says."""

    topic_partition: TopicPartition
    state: str = ""  # "" for a partition that is served; else DELETED, FUTURE or STRAY


def numbers_by_topic(keys: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, in the order in which they are given."""
    numbers: dict[str, list[int]] = {}
    for topic, number in keys:
        numbers.setdefault(topic, []).append(number)
    return numbers


def is_internal(topic: str) -> bool:
    """Return whether a topic is one of Kafka's own, such as ``__consumer_offsets``."""
    return topic.startswith(_INTERNAL)


def parse_folder(name: str) -> FolderName | None:
    """Return what the name of a folder in a log directory says; None if it is not a partition's.

    A name is split at its last ``-``, so ``x-delete-0`` is partition 0 of the topic ``x-delete``.
    With one of the three suffixes, everything from the last ``.`` on is dropped before.

    Args:
        name: of the folder, without its parent.

    Source: LocalLog.java#parseTopicPartitionName.
    """
    state = ""
    if name.endswith((f"-{DELETED}", f"-{FUTURE}", f"-{STRAY}")):
        match = _IN_TRANSIT.fullmatch(name)
        if match is None:
            return None
        state = match[4]
        name = name[: name.rindex(".")]
    topic, _, number = name.rpartition("-")
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        return None
    if not re.fullmatch(r"[0-9]{1,10}", number) or int(number) > _LAST_PARTITION:
        return None
    return FolderName(TopicPartition(topic, int(number)), state)


def segment_offset_of(name: str) -> int | None:
    """Return the offset in the name of a file that a broker opens beside others; else None.

    A broker opens the file of 20 digits for whatever number stands in a name, but for a snapshot.

    Source: LogLoader.java#loadSegmentFiles.
    """
    is_opened = name.find(".") == _DIGITS or name.endswith(SNAPSHOT)
    return base_offset_of(name) if is_opened else None


def base_offset_of(name: str) -> int | None:
    """Return the offset in the name of a file of a segment; None if its name has none.

    Args:
        name: such as ``00000000000000000107.log``; the text before the first ``.`` is the number.

    Source: LogFileUtils.java#offsetFromFileName.
    """
    number = name.partition(".")[0]
    if not re.fullmatch(r"[0-9]{1,20}", number) or int(number) > _LAST_OFFSET:
        return None
    return int(number)
