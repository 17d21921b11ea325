"""The kind of a store, by the files that it has, and what of it is not read."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rmqstore.errors import (
    Argument,
    Text,
)
from rmqstore.storage.broker.broker_run import earliest_release
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.folders import COMPACTION
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import Entry, is_folder
from rmqstore.storage.queue.rocksdb_queue import has_unreadable_queues
from rmqstore.storage.rocksdb import can_read_rocksdb

_IN_TIER = "messages in tiered storage"


class StoreKind(NamedTuple):
    """The kind of a store.

    Attributes:
        log: the kind of its log.
        queues: where its queues are.
        version: the earliest RocketMQ that leaves such files; nothing names the version itself.
        not_read: what the store has and this package does not read, in words.
    """

    log: str
    queues: str
    version: str
    not_read: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.log}, queues in {self.queues}, RocketMQ {self.version} or later"

    def lines(self) -> list[str]:
        """Return the kind and what is not read, a line each."""
        return [str(self), *(f"not read: {text}" for text in self.not_read)]


def store_kind(paths: StorePaths) -> StoreKind:
    """Return the kind of a store, by the files that it has. Reads the checkpoint at most."""
    return StoreKind(_log(paths), _queues(paths), earliest_release(paths), tuple(_not_read(paths)))


def tiered_kind(paths: StorePaths | None, tier: str) -> StoreKind:
    """Return the kind of a store together with its tiered storage.

    Args:
        paths: the local store, None if tiered storage, or compacted logs, are read alone.
        tier: what is read, and its folder.
    """
    if paths is None:
        return StoreKind(tier, "files", "5.1", ())
    kind = store_kind(paths)
    log = f"{kind.log}, continued from {tier}"
    rest = tuple(text for text in kind.not_read if not text.startswith(_IN_TIER))
    return kind._replace(log=log, version=max(kind.version, "5.1"), not_read=rest)


def _log(paths: StorePaths) -> str:
    if not paths.dledger_logs:
        return "CommitLog"
    is_mixed = any(_entries(paths, folder) for folder in paths.commitlogs)
    return "CommitLog and DLedger log" if is_mixed else "DLedger log"


def _queues(paths: StorePaths) -> str:
    places = []
    if (
        paths.queue_folders.topics()
        or paths.queue_folders.batch_topics()
        or paths.rocksdb_queues is None
    ):
        places.append("files")
    if paths.rocksdb_queues is not None:
        places.append("RocksDB")
    return " and ".join(places)


def _not_read(paths: StorePaths) -> list[str]:
    texts = messages_elsewhere(paths)
    if has_unreadable_queues(paths):
        texts.append(f"queues in {paths.rocksdb_queues}, which need the extra rocksdb")
    if not can_read_rocksdb():
        texts += [
            f"tables of the broker in {folder}, which need the extra rocksdb"
            for folder in BrokerConfig(paths).databases()
        ]
    return texts


def messages_elsewhere(paths: StorePaths) -> list[str]:
    """Return where else a store has messages, of which reads know nothing."""
    texts: list[str] = []
    tier = paths.config / "tieredStoreMetadata.json"
    if paths.storage.exists(tier):
        texts.append(
            Text(
                f"{_IN_TIER} ({tier.name} names their files): what is older than the local log is "
                "there alone, and ",
                Argument("tiered", ""),
                " with the broker's tieredStoreFilePath reads it too",
            )
        )
    compaction = paths.root / COMPACTION
    if any(entry.is_folder for entry in _entries(paths, compaction)):
        texts.append(
            f"compacted logs of topics, which the broker serves: open {compaction} to read them"
        )
    return texts


def _entries(paths: StorePaths, folder: Path) -> list[Entry]:
    return paths.storage.list_folder(folder) if is_folder(paths.storage, folder) else []
