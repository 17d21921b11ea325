"""A log directory of a broker: its partition folders, checkpoints and identity."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from io import StringIO
from time import sleep
from typing import Final, NamedTuple, TypeVar

from kafkalog.storage.names import (
    DELETED,
    FUTURE,
    METADATA_TOPIC,
    FolderName,
    TopicPartition,
    parse_folder,
)
from kafkalog.storage.segments import holds_segments
from rmqstore.errors import (
    NotAStoreError,
    StoreFormatError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.storage.files.storage import Storage, path_of, read_small

logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 64 << 20  # some 300 bytes for each partition of a broker
_VERSION: Final = "0"

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
_REMOTE_INDEXES: Final = "remote-log-index-cache"  # a folder of brokers with tiered storage
META_PROPERTIES: Final = "meta.properties"
EPOCHS, METADATA = "leader-epoch-checkpoint", "partition.metadata"  # in each partition folder
_KRAFT: Final = "1"  # the version of META_PROPERTIES
LOG_START, RECOVERY_POINT, HIGH_WATERMARK, CLEANER = CHECKPOINTS = (
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
_PART_OF_ROCKETMQ: Final = "commitlog"
_PAUSES_SECONDS: Final = (0.1, 0.5)  # between listings, while a partition is seen twice

T = TypeVar("T")


class LeaderEpoch(NamedTuple):
    """The first offset that was written while a leader epoch lasted."""

    epoch: int
    start_offset: int


def read_offset_checkpoint(storage: Storage, path: str) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint file by partition; {} if the file is missing or invalid.

    A broker takes one for empty if a number in it is none, and for any other damage it stops
    serving the directory: :func:`damage_of`.

    Args:
        storage: the storage to read from.
        path: such as ``recovery-point-offset-checkpoint``.

    Source: OffsetCheckpointFile.java, CheckpointFileWithFailureHandler.java.
    """
    return _parsed(_offsets, storage, path) or {}


def read_leader_epochs(storage: Storage, path: str) -> list[LeaderEpoch]:
    """Return the entries of ``leader-epoch-checkpoint``, rising; [] if it is missing or invalid.

    Source: LeaderEpochCheckpointFile.java.
    """
    return _parsed(_epochs, storage, path) or []


def read_topic_id(storage: Storage, path: str) -> str | None:
    """Return the topic id in ``partition.metadata``, 22 characters; None if it is not given.

    Source: PartitionMetadataReadBuffer.java.
    """
    return _parsed(_topic_id, storage, path)


def damage_of(storage: Storage, path: str) -> str | None:
    """Return why a broker cannot read a checkpoint or ``partition.metadata``; None if it can.

    A broker that is to start with such a file fails, or does not serve the log directory.
    """
    parse: Callable[[Storage, str], object] = {EPOCHS: _epochs, METADATA: _topic_id}.get(
        path.rpartition("/")[2], _offsets
    )
    try:
        parse(storage, path)
    except ValueError as err:
        return str(err)
    return None


def _parsed(parse: Callable[[Storage, str], T], storage: Storage, path: str) -> T | None:
    """Return what a file says, None with a warning if it is invalid."""
    try:
        return parse(storage, path)
    except ValueError as err:
        logger.warning("%s is left aside: %s", path, err)
        return None


def _offsets(storage: Storage, path: str) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, _number(partition, 32)): _number(offset, 64)
        for topic, partition, offset in _entries(storage, path, 3)
    }


def _epochs(storage: Storage, path: str) -> list[LeaderEpoch]:
    return [
        LeaderEpoch(_number(epoch, 32), _number(offset, 64))
        for epoch, offset in _entries(storage, path, 2)
    ]


def _topic_id(storage: Storage, path: str) -> str | None:
    text = _text(storage, path)
    if text is None:
        return None
    match = re.match(r"\S*[ \t]+[+]?[0-9]+\s*\n\S*[ \t]+([\w-]{22})\s*(\n|$)", text, re.ASCII)
    if match is None or set(match[1]) == {"A"}:  # the id that means none
        raise ValueError("it does not name a topic id")
    return match[1]


def read_properties(storage: Storage, path: str) -> dict[str, str]:
    """Return the entries of ``meta.properties``; {} if it is missing.

    Source: MetaProperties.java.
    """
    entries = {}
    for line in (_text(storage, path, "latin-1") or "").splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.lstrip().startswith(("#", "!")):
            entries[name.strip()] = value.strip()
    return entries


def _entries(storage: Storage, path: str, n_fields: int) -> Iterator[list[str]]:
    """Yield the fields of each entry of a checkpoint.

    Raises:
        ValueError: the file does not have the form of a checkpoint.
    """
    lines = [line.rstrip("\n") for line in StringIO(_text(storage, path) or "", newline=None)]
    if not lines:
        return
    if lines[0] != _VERSION:
        raise ValueError(f"its version is {lines[0][:20]!r}")
    expected = _number(lines[1], 32) if len(lines) > 1 else 0
    entries = [re.split(r"\s+", line.rstrip(), flags=re.ASCII) for line in lines[2:]]
    for number, entry in enumerate(entries, 3):
        if len(entry) != n_fields:
            raise ValueError(f"line {number} is not an entry: {' '.join(entry)[:60]!r}")
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


def _text(storage: Storage, path: str, encoding: str = "utf-8") -> str | None:
    """Return the text of a file; None if it is missing or too large.

    Raises:
        ValueError: it has another encoding.
    """
    try:
        return read_small(storage, path, _MAX_BYTES).decode(encoding)
    except FileNotFoundError:
        return None
    except StoreFormatError as err:
        logger.warning("%s is left aside: %s", path, err)
        return None


class PartitionFolder(NamedTuple):
    """A folder with the log of one partition, and what the log directory's checkpoints say of it.

    Attributes:
        topic_partition: topic and number.
        path: of the folder.
        is_clean: whether the broker was stopped cleanly, so that no recovery would run.
        log_start_offset: the first offset that consumers may read, if it was checkpointed.
        recovery_point: recovery begins in the segment that has this offset; 0 if none is known.
        high_watermark: the first offset that consumers did not see yet, if it was checkpointed.
        cleaner_offset: the first offset that was not compacted yet, if it was checkpointed.
        has_remote_storage: whether tiered storage may have moved the first segments away.
        is_of_kraft: whether the broker belongs to a cluster without ZooKeeper.
    """

    topic_partition: TopicPartition
    path: str
    is_clean: bool
    log_start_offset: int | None = None
    recovery_point: int = 0
    high_watermark: int | None = None
    cleaner_offset: int | None = None
    has_remote_storage: bool = False
    is_of_kraft: bool = False


@dataclass(frozen=True, slots=True)
class LogDir:
    """What one log directory holds, as it was when it was listed.

    Attributes:
        path: of the directory.
        is_clean: whether the broker was stopped cleanly (``.kafka_cleanshutdown``).
        properties: those of ``meta.properties``.
        partitions: the folders of partitions that are served, by partition.
        others: folders of partitions that are deleted, copied or unknown to the cluster, by name.
        missing: partitions that have no folder, though both the recovery points and the high
            watermarks name them.
        is_partition: whether this is the folder of one partition, opened by itself.
        has_metadata: whether it holds the log of the cluster's metadata, which is not read.
    """

    path: str
    is_clean: bool
    properties: dict[str, str]
    partitions: dict[TopicPartition, PartitionFolder]
    others: dict[str, FolderName] = field(default_factory=dict)
    missing: tuple[TopicPartition, ...] = ()
    is_partition: bool = False
    has_metadata: bool = False

    @property
    def node_id(self) -> int | None:
        """The broker's number, if ``meta.properties`` names it."""
        text = self.properties.get("node.id", self.properties.get("broker.id", ""))
        return int(text) if text.isdecimal() else None


def read_log_dir(storage: Storage, path: str) -> LogDir:
    """List a log directory; or a partition folder that is given alone.

    A partition folder is read with the checkpoints and the mark of a clean stop that lie in the
    folder above it. Where that is not a log directory, the partition is recovered from its first
    segment on, as a broker would that finds the folder.

    Args:
        storage: the storage to read from.
        path: of the folder.

    Raises:
        NotAStoreError: there is no such folder, or nothing of Kafka is in it.
        UnsupportedFeatureError: it is the log of the cluster's metadata.
        UnreadableFileError: the folder cannot be listed.

    Source: LogManager.java#loadLogs.
    """
    status = storage.status(path)
    if status is None or not status.is_folder:
        raise NotAStoreError(f"{path} is not a folder, so it is not a log directory of Kafka")
    full_path = storage.full_path(path_of(path))
    own_name = parse_folder(full_path.name)
    names = [entry.name for entry in storage.list_folder(path) if entry.is_folder]
    is_log_dir = META_PROPERTIES in _file_names(storage, path)
    if own_name is not None and not is_log_dir and holds_segments(storage, path):
        if own_name.topic_partition.topic == METADATA_TOPIC:
            raise UnsupportedFeatureError(
                f"{path} is the log of the cluster's metadata, which is not read as a partition:"
                " rmqstore kafka dump and verify take its files, .log and .checkpoint"
            )
        logger.info("%s is a partition folder, which is read alone", path)
        name = full_path.name
        read = _read(storage, str(full_path.parent), {name: path})
        return replace(read, missing=(), is_partition=True)
    folders = {name: f"{path.rstrip('/')}/{name}" for name in names}
    log_dir = _read(storage, path, folders)
    if is_log_dir or log_dir.partitions or log_dir.others:
        return log_dir
    inside = [
        name for name in sorted(names) if META_PROPERTIES in _file_names(storage, folders[name])
    ]
    hint = f"; log directories are in it: {', '.join(inside[:5])}" if inside else ""
    if _PART_OF_ROCKETMQ in names or full_path.name == _PART_OF_ROCKETMQ:
        hint = "; it is a store of RocketMQ, which the package rmqstore and its verbs read"
    raise NotAStoreError(
        f"{path} is not a log directory of Kafka: it has no partition folder{hint}"
    )


def _file_names(storage: Storage, path: str) -> set[str]:
    return {entry.name for entry in storage.list_folder(path) if not entry.is_folder}


def _read(storage: Storage, path: str, folders: dict[str, str]) -> LogDir:
    """Return a log directory with some of its folders, of which the paths by name are given."""
    listed = {entry.name: entry.is_folder for entry in storage.list_folder(path)}
    files = {name for name, is_folder in listed.items() if not is_folder}
    is_clean = CLEAN_SHUTDOWN in files
    offsets = {
        name: read_offset_checkpoint(storage, f"{path}/{name}") if name in files else {}
        for name in CHECKPOINTS
    }
    properties = read_properties(storage, f"{path}/{META_PROPERTIES}")
    partitions: dict[TopicPartition, PartitionFolder] = {}
    others = {}
    has_metadata = False
    deleted = {name for name in listed if name.endswith(f"-{DELETED}")}
    deleted_keys = {parsed.topic_partition for parsed in map(parse_folder, deleted) if parsed}
    for name, folder in sorted(folders.items()):
        parsed = parse_folder(name)
        if parsed is None:
            continue
        if parsed.topic_partition.topic == METADATA_TOPIC:
            has_metadata = True
            continue
        if parsed.state:
            others[name] = parsed
            continue
        key = parsed.topic_partition
        if key in partitions:
            raise StoreStateError(f"{path} has two folders of partition {key}: 0 and 00 are equal")
        partitions[key] = PartitionFolder(
            key,
            folder,
            is_clean,
            offsets[LOG_START].get(key),
            max(0, offsets[RECOVERY_POINT].get(key, 0)),
            # That of a deleted topic stays for some seconds, while a new one has its name.
            offsets[HIGH_WATERMARK].get(key) if is_clean or key not in deleted_keys else None,
            offsets[CLEANER].get(key),
            listed.get(_REMOTE_INDEXES, False),
            properties.get("version") == _KRAFT,
        )
    named = offsets[RECOVERY_POINT].keys() & offsets[HIGH_WATERMARK].keys()
    found = partitions.keys() | {name.topic_partition for name in others.values()}
    missing = tuple(sorted(key for key in named - found if key.topic != METADATA_TOPIC))
    return LogDir(
        path, is_clean, properties, partitions, others, missing, has_metadata=has_metadata
    )


def list_log_dirs(
    storage: Storage, paths: Iterable[str]
) -> tuple[tuple[LogDir, ...], dict[TopicPartition, PartitionFolder]]:
    """List the log directories of one broker.

    A broker that moves a partition to another of its directories renames the new folder before the
    old one. While both have its name, the directories are listed again after a pause. A listing may
    also see the new folder before it is renamed, and the old one after that. The partition has been
    moved by then, so the directories are listed again at once. If it is still not there, the two
    folders are what is left of a deleted partition.

    Args:
        storage: the storage to read from.
        paths: of the directories.

    Returns:
        The directories, and the partitions of all of them, sorted.

    Raises:
        NotAStoreError: a path is not a log directory, or a partition folder.
        StoreStateError: two directories have the same partition.

    Source: LogManager.scala#replaceCurrentWithFutureLog.
    """
    paths = tuple(paths)
    pauses = iter(_PAUSES_SECONDS)
    missed: set[TopicPartition] = set()
    while True:
        storage.refresh()
        log_dirs = tuple(read_log_dir(storage, path) for path in paths)
        found: dict[TopicPartition, list[PartitionFolder]] = {}
        states: dict[TopicPartition, set[str]] = {}  # of the other folders
        for log_dir in log_dirs:
            for key, folder in log_dir.partitions.items():
                found.setdefault(key, []).append(folder)
            for name in log_dir.others.values():
                states.setdefault(name.topic_partition, set()).add(name.state)
        twice = [key for key, folders in found.items() if len(folders) > 1]
        # The partitions with a folder to which they are moved, and a deleted one.
        moved = {key for key, seen in states.items() if seen >= {FUTURE, DELETED}}
        newly_missed = moved - set(found) - missed
        missed |= newly_missed
        node_ids = {log_dir.node_id for log_dir in log_dirs} - {None}
        pause = None
        if newly_missed:
            pause = 0.0
        elif twice and len(node_ids) <= 1:
            pause = next(pauses, None)
        if pause is None:
            break
        logger.info("a partition is being moved between %s; listing again", ", ".join(paths))
        sleep(pause)
    if not twice:
        return log_dirs, {key: folder for key, (folder,) in sorted(found.items())}
    first, second, *_ = found[min(twice)]
    raise StoreStateError(
        f"{first.path} and {second.path} hold the same partition: a broker has each of its"
        " partitions in one log directory; open each broker by itself. If these are of one broker"
        " that died while it moved the partition, it asks you to delete one of the two"
    )
