"""The parts of one store that is open for reading: its kind, its log, its queues and their ends.

A store, tiered storage, or both together are opened by :func:`open_parts`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import NamedTuple, Self, TypeVar, Unpack

from rmqstore.errors import (
    CorruptConfigError,
    CorruptDatabaseError,
    NotAStoreError,
    OptionError,
    RmqStoreError,
    UnsupportedFeatureError,
    marked,
    rendered,
)
from rmqstore.lazy import cached_property
from rmqstore.query.arguments import FolderArguments
from rmqstore.query.selection import Selection, concerns, require_named
from rmqstore.read.lookup import Lookup
from rmqstore.read.queue_ranges import QueueRanges
from rmqstore.read.sampling import Sampler
from rmqstore.read.store_queues import StoreQueues
from rmqstore.read.store_ref import StoreRef
from rmqstore.spans import QueueKey
from rmqstore.storage.broker import identity
from rmqstore.storage.broker.broker_run import earliest_release
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.folders import COMPACTION, are_compacted_logs, find_store, root_for
from rmqstore.storage.broker.retry import Change, Deletions, retry
from rmqstore.storage.files.lifetime import Lifetime, lifetime_of_reads
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.remote_location import locate
from rmqstore.storage.files.remote_storage import RemoteStorage
from rmqstore.storage.files.storage import Closing, Entry, Storage, is_folder, path_of
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.tiered import (
    METADATA,
    CompactedLogs,
    Tier,
    TieredQueues,
    find_tier,
    is_tier,
    no_store,
)
from rmqstore.storage.recovery.queues import Queues
from rmqstore.storage.recovery.store_ends import PlannedEnds, StoreEnds
from rmqstore.storage.rocksdb import NEED_ROCKSDB, can_read_rocksdb

logger = logging.getLogger(__name__)

T = TypeVar("T")

_IN_TIER = "messages in tiered storage"

# Requests that are answered wherever the messages are, and those that take the other files of a
# local store. All others need every message in one log.
_OF_MESSAGES = ("view queues", "view topics", "view deadLetters", "view traces")
_OF_STORES = (
    "view groups", "view consumed", "view stores", "view routes", "view assignments",
    "describe", "`include_pending`",
)  # fmt: skip


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


def store_kind(paths: StorePaths, why_unread: RmqStoreError | None = None) -> StoreKind:
    """Return the kind of a store, by the files that it has. Reads the checkpoint at most.

    Args:
        paths: the files of the store.
        why_unread: why its queues in RocksDB cannot be read; None if they can.
    """
    log = "CommitLog"
    if paths.dledger_logs:
        is_mixed = any(_entries(paths, folder) for folder in paths.commitlogs)
        log = "CommitLog and DLedger log" if is_mixed else "DLedger log"
    queues = []
    if paths.queue_folders.topics() or paths.batch_folders.topics() or paths.rocksdb_queues is None:
        queues.append("files")
    if paths.rocksdb_queues is not None:
        queues.append("RocksDB")
    version = earliest_release(paths)
    not_read = messages_elsewhere(paths)
    if why_unread is not None:
        not_read.append(f"queues in RocksDB: {why_unread}")
    if not can_read_rocksdb():
        for folder in BrokerConfig(paths).databases():
            not_read.append(f"tables of the broker in {folder}, {NEED_ROCKSDB}")
    return StoreKind(log, " and ".join(queues), version, tuple(not_read))


def tiered_kind(kind: StoreKind, tier: str) -> StoreKind:
    """Return the kind of a store together with its tiered storage, which is read too."""
    log = f"{kind.log}, continued from {tier}"
    rest = tuple(text for text in kind.not_read if not text.startswith(_IN_TIER))
    return kind._replace(log=log, version=max(kind.version, "5.1"), not_read=rest)


def messages_elsewhere(paths: StorePaths) -> list[str]:
    """Return a text for each other place of a store with messages that no read returns."""
    texts: list[str] = []
    signs = (paths.config / METADATA, paths.root / "tiered_index_file", paths.root / "tieredstore")
    if any(map(paths.storage.exists, signs)):
        texts.append(
            f"{_IN_TIER}: what is older than the local log is there alone, and `tiered=` with the "
            "broker's tieredStoreFilePath reads it too"
        )
    compaction = paths.root / COMPACTION
    if any(entry.is_folder for entry in _entries(paths, compaction)):
        texts.append(
            f"compacted logs of topics, which the broker serves: open {compaction} to read them"
        )
    return texts


def _entries(paths: StorePaths, folder: Path) -> list[Entry]:
    return paths.storage.list_folder(folder) if is_folder(paths.storage, folder) else []


@dataclass(frozen=True, eq=False)
class StoreParts(Closing):
    """What one open store is, for modules of this package and for connectors.

    A context manager; ``open_parts`` makes one. ``read.plan`` plans what is read of it, and
    ``rmqstore.MessageStore`` is the public API on top of it. Nothing in the folder of the store is
    created or changed, also beside a running broker.

    With tiered storage, reads, streams and views by queue are supported. Whatever reads the log of
    a broker in its own order, its index or its files as they are would leave out what was moved, so
    it is refused.

    Attributes:
        paths: the local store; one without files where tiered storage is read alone.
        has_store: whether there is a local store.
        config: the configuration of its broker.
        log: its CommitLog.
        ends: where log and queues end.
        queues: its queues, as their files and the log have them.
        store_queues: the queues, wherever their messages are.
        given_name: the broker's name if it was given, else None.
        lifetime: how long it may be read.

    Source: DefaultMessageStore.java.
    """

    paths: StorePaths
    has_store: bool
    config: BrokerConfig
    log: CommitLog
    ends: StoreEnds
    queues: Queues
    store_queues: StoreQueues
    given_name: str | None
    lifetime: Lifetime
    _logged: set[str] = field(default_factory=set)  # warnings that are given once

    @classmethod
    def of(
        cls,
        paths: StorePaths | None,
        *tiers: Tier | CompactedLogs,
        broker_name: str | None = None,
        ignore_log_end: bool = False,
        planned: PlannedEnds | None = None,
    ) -> Self:
        """Return the parts of a store.

        Args:
            paths: the local store, None where tiered storage is read alone.
            tiers: what the broker of the store has in tiered storage, or its compacted logs.
            broker_name: value of column ``brokerName``.
            ignore_log_end: read the local store past the end of a log that was not closed.
            planned: what planning found of the ends of the store, perhaps in another process.
        """
        has_store = paths is not None
        paths = paths or no_store(tiers[0].folder)
        config = BrokerConfig(paths)
        log = CommitLog(paths.commitlogs, paths.storage, entry_folders=paths.dledger_logs)
        ends = StoreEnds(paths, config, log, ignore_log_end=ignore_log_end, planned=planned)
        queues = Queues(paths, log, ends)
        return cls(
            paths=paths,
            has_store=has_store,
            config=config,
            log=log,
            ends=ends,
            queues=queues,
            store_queues=StoreQueues(config, log, queues, *map(TieredQueues, tiers)),
            given_name=broker_name,
            lifetime=lifetime_of_reads(str(paths.root), paths.storage),
        )

    @cached_property
    def ranges(self) -> QueueRanges:
        """The ranges of queues that selections name."""
        return QueueRanges(
            self.paths, self.config, self.log, self.queues, self.store_queues, self.ends
        )

    @cached_property
    def sampler(self) -> Sampler:
        """Takes samples of queues and of the log."""
        return Sampler(self.log, self.queues, self.store_queues)

    @cached_property
    def lookup(self) -> Lookup:
        """Finds candidates for look-ups."""
        return Lookup(self.paths, self.log, self.ends)

    def close(self) -> None:
        """Release the mapped files. Batches that were read stay valid."""
        self.lifetime.end()
        for tier in self.tiers:
            tier.close()
        self.queues.close()
        self.log.close()
        requests = self.paths.storage.requests_made()
        if requests is not None:
            logger.info("%s: %s", self.paths.root, requests)

    def require_open(self) -> None:
        """Refuse to read after :meth:`close`, or where another process opened a remote store.

        Raises:
            StoreStateError: so it is.
        """
        self.lifetime.require()

    def retry(self, ask: Callable[[], T], *changes: Change) -> T:
        """Return the answer to a question, asked again if files were deleted meanwhile.

        Args:
            ask: asks the question.
            changes: other changes of the store after which it is asked again.

        Raises:
            StoreStateError: the store was closed.
        """
        self.require_open()
        return retry(ask, Deletions(self), *changes)

    def refresh(self) -> None:
        """List the files again: those of a running broker come and go.

        The log end stays as it was found.
        """
        for tier in self.tiers:
            tier.refresh()
        self.paths.storage.refresh()
        self.log.refresh()
        self.queues.refresh()

    def forget(self) -> None:
        """Find the ends of the log and of its queues again, as after a repair elsewhere."""
        self.refresh()
        self.ends.forget()
        self.queues.refresh()  # another thread may have opened some with the old ends meanwhile

    def forget_recovered(self, key: QueueKey) -> None:
        """Read a queue by its files alone, which now hold the units recovered from the log."""
        self.ends.recovered.pop(key, None)
        self.queues.drop(key)

    @cached_property
    def broker_name(self) -> str:
        """The broker's name, as given or as the store has it."""
        return self.given_name or self.config.broker_name()

    @property
    def is_named(self) -> bool:
        """Whether the broker's name was given, or a file of the store has it."""
        try:
            name = self.given_name or identity.broker_name(self.paths, self.config.topics)
        except CorruptConfigError:
            return False
        return name is not None

    @cached_property
    def view_broker_name(self) -> str:
        """The broker's name, or that of the folder if the file with the name is damaged."""
        try:
            return self.broker_name
        except CorruptConfigError as err:
            logger.warning("%s; taking the folder's name for the broker's", err)
            return self.paths.name

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there and the one after the last.

        Raises:
            UnsupportedFeatureError: the queue is of a kind that cannot be read.
            CorruptQueueError: its files contradict themselves.
        """
        self.ranges.require_queues()
        return self.retry(lambda: self.store_queues.range(topic, queue_id))

    def warn_of_messages_elsewhere(self) -> None:
        """Log a warning of the store's messages that are not read.

        Of a store without tiered storage this is logged at the first call only.
        """
        texts = self.kind().not_read if self.is_tiered else messages_elsewhere(self.paths)
        for text in texts:
            if self.is_tiered or str(text) not in self._logged:
                self._logged.add(str(text))
                logger.warning("%s: not read: %s", self.paths.root, rendered(text))

    def kind(self) -> StoreKind:
        """Return the kind of the store, by the files that it has."""
        names = [f"{tier.what} in {tier.folder}" for tier in self.tiers]
        if not self.has_store:
            return StoreKind(", ".join(names), "files", "5.1", ())
        return reduce(tiered_kind, names, store_kind(self.paths, self.ends.why_unread))

    @property
    def tiers(self) -> Sequence[TieredQueues]:
        """The queues in tiered storage, or the compacted ones, if these are read."""
        return self.store_queues.tiers

    @property
    def is_tiered(self) -> bool:
        """Whether messages of the store are read from tiered storage, or from compacted logs."""
        return bool(self.tiers)

    def require(self, request: str) -> None:
        """Refuse a request that the sources of the messages cannot answer.

        Raises:
            UnsupportedFeatureError: they cannot; the text names the request.
        """
        is_answered = request in _OF_MESSAGES or (request in _OF_STORES and self.has_store)
        if is_answered or not self.tiers:
            return
        tier = self.tiers[0]
        alone = "; without `tiered=` the local store is read alone" if self.has_store else ""
        raise UnsupportedFeatureError(
            f"{request} is not supported with {tier.what} ({tier.folder}), where each "
            "queue has a log of its own: read by queue; a filter on columns finds "
            f"messages too{alone}"
        )


def having_topics(
    stores: Sequence[StoreParts],
    known: Sequence[Mapping[str, set[int]]],
    selection: Selection | None,
) -> list[StoreParts]:
    """Return those of some stores that have a topic that is named; all if none is named.

    Args:
        stores: the stores.
        known: the topics of each, with the ids of queues if queues are named.
        selection: what names topics; None if nothing does.

    Raises:
        OptionError: no store has a topic or queue that is named.
    """
    if selection is None:
        return [*stores]
    where = str(stores[0].paths.root)
    if len(stores) > 1:
        where = f"brokers {', '.join(store.view_broker_name for store in stores)}"
    require_named(selection, known, where)
    return [
        store for store, topics in zip(stores, known, strict=True) if concerns(selection, topics)
    ]


def leave_out_rocksdb(parts: StoreParts, damage: CorruptDatabaseError) -> None:
    """Read on without the queues in RocksDB, of which a part could not be read.

    Raises:
        CorruptDatabaseError: the damage, if it is that of another database.
    """
    in_rocksdb = parts.ends.in_rocksdb
    if in_rocksdb is None or in_rocksdb.path != damage.path:
        raise damage
    parts.forget()
    parts.ends.leave_out_rocksdb(damage)


def open_parts(
    path: str | os.PathLike[str],
    *,
    broker_name: str | None = None,
    ignore_log_end: bool = False,
    storage: Storage = LOCAL,
    tiered: str | os.PathLike[str] | None = None,
    planned: PlannedEnds | None = None,
    **folders: Unpack[FolderArguments],
) -> StoreParts:
    """Open a store, or tiered storage, for reading.

    Args:
        path: the folder that holds ``commitlog/``, or a folder of tiered storage. A part of a store
            stands for the whole, with a warning.
        broker_name: value of column ``brokerName``; taken from the store by default.
        ignore_log_end: read on past the end of a log that was not closed.
        storage: the storage that files are read from.
        tiered: the tiered storage with the older messages of the store.
        planned: what planning found of the ends of the store, perhaps in another process.
        folders: folders that lie outside of ``path``.

    Raises:
        NotAStoreError: there is no store, or no tiered storage.
        OptionError: it is not clear which broker's messages are meant.
        UnsupportedFeatureError: it is of a kind that cannot be read.
    """
    try:
        paths = find_store(path, storage=storage, **folders)
    except NotAStoreError:
        others = {**folders, "tiered": tiered}
        if are_compacted_logs(path, storage):
            _refuse_others(f"{path} holds compacted logs, not a store", others)
            folder = path_of(path if isinstance(path, Path) else os.fspath(path))
            root = storage.full_path(folder).parent
            name = broker_name or root.name
            with suppress(RmqStoreError):
                name = broker_name or BrokerConfig(find_store(root, storage=storage)).broker_name()
            logs = CompactedLogs(folder, name, storage)
            return StoreParts.of(None, logs, broker_name=name)
        if is_tier(path, storage):
            _refuse_others(f"{path} is tiered storage, not a store", others)
            alone = find_tier(path, storage, broker_name)
            name = broker_name or alone.broker_name
            return StoreParts.of(None, alone, broker_name=name)
        paths = find_store(root_for(path, storage), storage=storage, **folders)
    tiers = []
    if tiered is not None:
        if isinstance(storage, RemoteStorage):
            raise UnsupportedFeatureError(
                f"`tiered`: {path} is not on a local disk; read the tiered storage by itself, "
                "by its URI"
            )
        tiers.append(find_tier(tiered, storage, broker_name or BrokerConfig(paths).broker_name()))
    return StoreParts.of(
        paths, *tiers, broker_name=broker_name, ignore_log_end=ignore_log_end, planned=planned
    )


def open_ref(ref: StoreRef, planned: PlannedEnds | None = None) -> StoreParts:
    """Open the store that a reference names, for reading; see :func:`open_parts`."""
    path, storage = locate(ref.path, ref.storage_options)
    return open_parts(
        path,
        broker_name=ref.broker_name,
        ignore_log_end=ref.ignore_log_end,
        storage=storage,
        tiered=ref.tiered,
        planned=planned,
        **ref.folders,
    )


def paths_of(ref: StoreRef) -> StorePaths:
    """Return where the parts of the store lie that a reference names.

    Those of tiered storage alone have no files. Raises as :func:`open_parts` does.
    """
    path, storage = locate(ref.path, ref.storage_options)
    try:
        return find_store(path, storage=storage, **ref.folders)
    except NotAStoreError:
        if are_compacted_logs(path, storage) or is_tier(path, storage):
            return no_store(Path(path))
        return find_store(root_for(path, storage), storage=storage, **ref.folders)


def _refuse_others(text: str, others: dict[str, object]) -> None:
    misplaced = sorted(name for name, value in others.items() if value)
    if misplaced:
        raise OptionError(f"{marked(misplaced)}: {text}")
