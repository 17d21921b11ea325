"""A store in one row: its kind, broker and sizes, and the bounds of its log.

Files are listed and a few of them are looked at, so the time hardly depends on what they hold,
unless queues lack messages that have to be looked for in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, ParamSpec, TypeVar

import pyarrow as pa

from rmqstore.errors import OptionError, RmqStoreError
from rmqstore.format.topics import is_system_topic
from rmqstore.read.store_parts import StoreParts
from rmqstore.storage.broker.broker_run import state_of
from rmqstore.storage.broker.config_files import OFFSETS, why_unknown
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.paths import QueueFolders
from rmqstore.storage.index_files import IndexSizes, find_sizes, index_files, read_header
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import window_at
from rmqstore.storage.recovery.log_end import last_record_before
from rmqstore.store.message_store import MessageStore

P = ParamSpec("P")
T = TypeVar("T")

_HEAD_BYTES: Final = 1 << 16  # of a file, in which its first record is looked for
_TIME: Final = pa.timestamp("ms", "UTC")
DESCRIPTION: Final = pa.schema(
    [
        ("path", pa.string()),
        ("brokerName", pa.string()),
        ("clusterName", pa.string()),
        ("brokerId", pa.int64()),
        ("brokerAddr", pa.string()),
        ("log", pa.string()),
        ("queuesIn", pa.string()),
        ("version", pa.string()),
        ("state", pa.string()),
        ("minOffset", pa.int64()),
        ("maxOffset", pa.int64()),
        ("firstStoreTimestamp", _TIME),
        ("lastStoreTimestamp", _TIME),
        ("logFiles", pa.int64()),
        ("mappedFileSizeCommitLog", pa.int64()),
        ("mappedFileSizeConsumeQueue", pa.int64()),
        ("mapperFileSizeBatchConsumeQueue", pa.int64()),
        ("indexFiles", pa.int64()),
        ("maxHashSlotNum", pa.int64()),
        ("maxIndexNum", pa.int64()),
        ("topics", pa.int64()),
        ("systemTopics", pa.int64()),
        ("queues", pa.int64()),
        ("groups", pa.int64()),
        ("configFiles", pa.list_(pa.string())),
        ("parts", pa.list_(pa.string())),
        ("notRead", pa.list_(pa.string())),
        ("reason", pa.string()),
    ]
)
# What a store may have beside log, queues and index, by the name in its root.
_PARTS: Final = {
    "timerwheel": "timed messages",
    "rocksdbstore": "RocksDB of 5.4 or later",
    "consumequeue_ext": "extended units of queues",
    "batchconsumequeue": "batch queues",
    "epochFileCheckpoint": "epochs of controller mode",
    ".rmqstore": "files of this package",
}
_IN_ROOT: Final = ("broker.conf", "brokerIdentity", "checkpoint")


def describe(stores: Iterable[MessageStore]) -> pa.Table:
    """Return a row of :data:`DESCRIPTION` for each store.

    What damage hides is null, and ``reason`` says why.

    Raises:
        UnsupportedFeatureError: only tiered storage is read, which has no such files.
    """
    return pa.Table.from_pylist([_Row(store.parts).values() for store in stores], DESCRIPTION)


def select_described(names: str) -> list[str]:
    """Return columns of :data:`DESCRIPTION` that are named in a text, separated by commas.

    Raises:
        OptionError: a name is unknown.
    """
    chosen = [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in DESCRIPTION.names]
    if unknown:
        known = ", ".join(DESCRIPTION.names)
        raise OptionError(f"`columns`: unknown {', '.join(unknown)}; a description has {known}")
    return chosen


class _Row:
    def __init__(self, parts: StoreParts) -> None:
        parts.require("describe")
        self._parts = parts
        self._paths = parts.paths
        self._reasons: list[str] = []

    def values(self) -> dict[str, object]:
        parts = self._parts
        paths = self._paths
        identity = self._known(parts.config.identity)
        kind = self._known(parts.kind)
        topics = self._known(self._topics)
        n_topics = n_system = None
        if topics is not None:
            n_system = sum(map(is_system_topic, topics))
            n_topics = len(topics) - n_system
        sizes = self._known(self._index_sizes)
        log = parts.log
        lengths = {segment.size for segment in log.segments} - {0}
        end = self._known(parts.ends.end_of_records)
        last = None if end is None else self._known(last_record_before, log, end)
        first = self._known(_first_record, log)
        of_queue = self._known(_size_of_first, paths.queue_folders)
        of_batches = self._known(_size_of_first, paths.batch_folders)
        return {
            "path": str(paths.root),
            "brokerName": parts.view_broker_name,
            "clusterName": identity and identity.cluster,
            "brokerId": identity and identity.broker_id,
            "brokerAddr": identity and identity.address,
            "log": kind and kind.log,
            "queuesIn": kind and kind.queues,
            "version": kind and f"{kind.version} or later",
            "state": state_of(paths),
            "minOffset": log.min_offset,
            "maxOffset": end,
            "firstStoreTimestamp": self._stored_at(first),
            "lastStoreTimestamp": self._stored_at(last),
            "logFiles": len(log.segments),
            "mappedFileSizeCommitLog": max(lengths, default=None),
            "mappedFileSizeConsumeQueue": of_queue,
            "mapperFileSizeBatchConsumeQueue": of_batches,
            "indexFiles": len(index_files(paths.index, paths.storage)),
            "maxHashSlotNum": sizes and sizes.n_slots,
            "maxIndexNum": sizes and sizes.n_items,
            "topics": n_topics,
            "systemTopics": n_system,
            "queues": self._known(self._n_queues),
            "groups": self._known(self._n_groups),
            **self._files(),
            "notRead": [] if kind is None else list(kind.not_read),
            "reason": "; ".join(self._reasons) or None,
        }

    def _known(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return what a function reads, None with the reason noted if damage hides it."""
        try:
            return read(*args, **kwargs)
        except (RmqStoreError, OSError) as err:
            if str(err) not in self._reasons:
                self._reasons.append(str(err))
            return None

    def _stored_at(self, physical_offset: int | None) -> int | None:
        if physical_offset is None:
            return None
        return self._known(self._parts.log.store_timestamp, physical_offset)

    def _index_sizes(self) -> IndexSizes | None:
        storage = self._paths.storage
        for path in index_files(self._paths.index, storage):
            if read_header(path, storage)["index_count"] > 1:
                return find_sizes(path, IndexSizes.of(StoreConfig()), storage)
        return None

    def _topics(self) -> set[str]:
        self._parts.ranges.require_queues()
        return {*self._parts.queues.topics(), *self._parts.config.topics()}

    def _n_queues(self) -> int:
        """Return the number of queues, those included that a recovery would make."""
        self._parts.ranges.require_queues()
        queues = self._parts.queues
        return sum(len(queues.ids(topic)) for topic in queues.topics())

    def _n_groups(self) -> int | None:
        unknown = why_unknown(self._paths, OFFSETS)
        if unknown is not None:
            self._reasons.append(unknown)
            return None
        return len(self._parts.config.groups())

    def _files(self) -> dict[str, object]:
        paths = self._paths
        given = [] if paths.settings is None else [paths.settings.file]
        in_root = [name for name in _IN_ROOT if paths.storage.exists(paths.root / name)]
        entries = paths.storage.list_folder(paths.config)
        names = sorted(entry.name for entry in entries if not entry.name.endswith(".bak"))
        parts = [text for name, text in _PARTS.items() if paths.storage.exists(paths.root / name)]
        if self._parts.is_tiered:
            parts.append("tiered storage")
        return {
            "configFiles": [*given, *in_root, *(f"config/{name}" for name in names)],
            "parts": parts,
        }


def _size_of_first(folders: QueueFolders) -> int | None:
    """Return the size of the first file of any queue, None if there is none."""
    for topic in folders.topics():
        for file in folders.files(topic):
            return folders.paths.storage.size(file)
    return None


def _first_record(log: CommitLog) -> int | None:
    """Return the physical offset of the first record of the log, None if no file begins with one.

    Files are made ahead of the records, so the last ones may be empty.
    """
    for segment in log.segments:
        starts = window_at(log, segment, segment.start, segment.end, _HEAD_BYTES).records.starts
        if len(starts):
            return segment.start + int(starts[0])
    return None
