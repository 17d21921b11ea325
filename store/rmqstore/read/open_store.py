"""The parts of one store that is open for reading, and its topics, queues and kind."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from rmqstore.errors import (
    Argument,
    CorruptConfigError,
    MessageNotFoundError,
    OffsetOutOfRangeError,
    RmqStoreError,
    StoreStateError,
    Text,
    UnsupportedFeatureError,
)
from rmqstore.format.layout import LMQ_PREFIX
from rmqstore.progress import Progress, ignore_progress
from rmqstore.query.selection import BY_LOG, Selection, require_named
from rmqstore.read.queue_ranges import QueueRanges
from rmqstore.spans import LogSlice, QueueKey
from rmqstore.storage.broker.broker_run import earliest_release
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.folders import COMPACTION
from rmqstore.storage.broker.topic_table import queue_nums
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.retry import retry_if_deleted
from rmqstore.storage.files.storage import Closing, Entry, is_folder
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.queue import total_weight
from rmqstore.storage.queue.queue_set import Queues
from rmqstore.storage.queue.rocksdb_queue import has_unreadable_queues
from rmqstore.storage.recovery.log_end import LogEnd, written_end
from rmqstore.storage.recovery.store_ends import StoreEnds
from rmqstore.storage.rocksdb.database import can_read_rocksdb

logger = logging.getLogger(__name__)

_IN_TIER = "messages in tiered storage"


_MOST_QUEUES = 1 << 16  # of a topic, as far as a damaged table is believed


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
    if paths.topics() or paths.batch_topics() or paths.rocksdb_queues is None:
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


class QueueInfo(NamedTuple):
    """One queue.

    Attributes:
        topic: topic name.
        queue_id: queue id.
        min_offset: queue offset of the first message.
        max_offset: queue offset after the last message.
        first_store_timestamp: store time (ms) of the first message; None for an empty queue.
        last_store_timestamp: store time (ms) of the last message; None for an empty queue.
        n_bytes: bytes of all its records.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first_store_timestamp: int | None
    last_store_timestamp: int | None
    n_bytes: int


class OpenStore(Closing):
    """The log, the queues and the configuration of one store, and where log and queues end.

    Nothing in its folder is created or changed, also beside a running broker.

    Attributes:
        progress: told how far a scan is, from when it is planned: in messages if it is by queue, in
            bytes of the log otherwise.

    Source: DefaultMessageStore.java.
    """

    def __init__(
        self, paths: StorePaths, *, broker_name: str | None = None, ignore_log_end: bool = False
    ) -> None:
        self.paths = paths
        self.progress: Progress = ignore_progress
        self.config = BrokerConfig(paths)
        self._given_name = broker_name
        self._has_warned_of_elsewhere = False
        self._is_closed = False
        self.log = CommitLog(paths.commitlogs, paths.storage, entry_folders=paths.dledger_logs)
        self.ends = StoreEnds(paths, self.config, self.log, ignore_log_end=ignore_log_end)
        self.queues = Queues(paths, lambda: self.ends.recovered, lambda: self.ends.in_rocksdb)
        self.ranges = QueueRanges(paths, self.log, self.queues, self.ends.of_records)

    def close(self) -> None:
        """Release the mapped files. Batches that were read stay valid."""
        self._is_closed = True
        self.queues.close()
        self.log.close()
        requests = self.paths.storage.requests_made()
        if requests is not None:
            logger.info("%s: %s", self.paths.root, requests)

    def require_open(self) -> None:
        """Refuse to read after :meth:`close`.

        Raises:
            StoreStateError: the store was closed.
        """
        if self._is_closed:
            raise StoreStateError(f"{self.paths.root} was closed: open the store again to read it")

    def refresh(self) -> None:
        """List the files again: those of a running broker come and go.

        The log end stays as it was found.
        """
        self.paths.storage.refresh()
        self.log.refresh()
        self.queues.refresh()

    def forget(self) -> None:
        """Find the ends of the log and of its queues again, as after a repair elsewhere."""
        self.queues.close()
        self.refresh()
        self.ends.forget()

    def forget_recovered(self, key: QueueKey) -> None:
        """Read a queue by its files alone, which now hold the units recovered from the log."""
        self.ends.recovered.pop(key, None)
        self.queues.drop(key)

    @cached_property
    def broker_name(self) -> str:
        """The broker's name, as given or as the store tells it."""
        return self._given_name or self.config.broker_name()

    @property
    def has_given_name(self) -> bool:
        """Whether the broker's name was given and does not come from the store."""
        return self._given_name is not None

    @cached_property
    def view_broker_name(self) -> str:
        """The broker's name, or that of the folder if the file with the name is damaged."""
        try:
            return self.broker_name
        except CorruptConfigError as err:
            logger.warning("%s; taking the folder's name for the broker's", err)
            return self.paths.name

    @property
    def light_messages_apart(self) -> Mapping[str, int]:
        """The number of messages in each light queue that only RocksDB holds."""
        return self.ranges.light_messages_apart

    @property
    def log_end(self) -> LogEnd | None:
        """Where the log ends; None for a closed store, which has no ``abort`` file."""
        return self.ends.log_end

    def log_slice(self) -> LogSlice:
        """Return the range of the log that holds records.

        In a closed store it reaches to the last byte of the log.
        """
        return self.ends.log_slice()

    def n_written(self, pieces: Iterable[LogSlice]) -> int:
        """Return how many bytes of parts of the log may hold records.

        A file of a closed log has its full size, however little was written to it.
        """
        end = self.log.max_offset if self.log.is_remote else written_end(self.log)
        return sum(max(min(piece.end, end) - piece.start, 0) for piece in pieces)

    def require_before_end(self, physical_offset: int) -> None:
        """Refuse a physical offset after the last record.

        Raises:
            MessageNotFoundError: the log of a store that was not closed has ended there.
            OffsetOutOfRangeError: so have the files of one that was.
        """
        end = self.ends.of_records()
        text = "the log ends at {}: nothing is stored at physical offset {}"
        if end is not None and physical_offset >= end:
            raise MessageNotFoundError(text.format(end, physical_offset))
        if physical_offset >= self.log.max_offset:
            raise OffsetOutOfRangeError(text.format(written_end(self.log), physical_offset))

    def topics(self) -> list[str]:
        """Return every topic with queues, including system topics, sorted."""
        return self.queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self.queues.ids(topic)

    @retry_if_deleted
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there and the one after the last.

        Raises:
            UnsupportedFeatureError: the queue is of a kind that cannot be read.
            CorruptQueueError: its files contradict themselves.
        """
        self.ranges.require_plain_queues()
        return self.ranges.range(topic, queue_id)

    @retry_if_deleted
    def first_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the first queue offset whose message is there, or the end if none is.

        None for a queue without files.
        """
        return self.ranges.first(topic, queue_id)

    @retry_if_deleted
    def queue_info(self, topic: str, queue_id: int) -> QueueInfo:
        """Return where a queue begins and ends, by offset and by time, and its bytes."""
        start, end = self.queue_range(topic, queue_id)
        if start >= end:
            return QueueInfo(topic, queue_id, start, end, None, None, 0)
        queue = self.queues.open(topic, queue_id)
        first_time = self.log.store_timestamp(queue.unit(start)[0])
        last_time = self.log.store_timestamp(queue.unit(end - 1)[0])
        n_bytes = total_weight(queue, start, end)
        return QueueInfo(topic, queue_id, start, end, first_time, last_time, n_bytes)

    def known_topics(self) -> list[str]:
        """Return every topic with queues or an entry in ``config/topics.json``, sorted."""
        return self.ranges.known_topics(self.config)

    def named_queues(self, selection: Selection) -> dict[str, set[int]]:
        """Return every topic if the selection names topics, else nothing.

        Beside each topic stand its queues if the selection names queues of it, else none. A queue
        that the broker serves need not have a message yet.
        """
        if not selection.named_topics:
            return {}
        named, served = selection.named_queues, dict[str, int]()
        if named:
            with suppress(RmqStoreError):  # said where the topics are asked for
                served = queue_nums(self.paths)
        return {
            topic: {*self.queue_ids(topic), *range(min(served.get(topic, 0), _MOST_QUEUES))}
            if topic in named
            else set()
            for topic in self.known_topics()
        }

    def chosen_queues(self, selection: Selection) -> dict[str, list[int]]:
        """Return the chosen topics and their queues; see ``QueueRanges.choose``."""
        return self.ranges.choose(selection, self.config)

    def is_chosen(self, selection: Selection, topic: str, queue_id: int) -> bool:
        """Tell whether a selection names a queue, whether or not the queue exists."""
        return self.ranges.is_chosen(selection, topic, queue_id)

    def indexed_topics(self, topics: Iterable[str]) -> set[str]:
        """Return those topics whose messages the index knows by their own keys.

        The index knows records, not the messages of inner batches, nor light queues, which show
        other queues' records.
        """
        batch_topics = set(self.queues.batch_topics())
        return {topic for topic in topics if not topic.startswith(LMQ_PREFIX)} - batch_topics

    def require_topics(self, selection: Selection) -> None:
        """Refuse a selection that names topics or queues which are not there.

        Raises:
            OptionError: a topic or queue is missing. The message lists those that exist.
        """
        self.ranges.require_plain_queues(selection)
        self._require_named(selection)

    def _require_named(self, selection: Selection) -> None:
        require_named(selection, self.named_queues(selection), str(self.paths.root))

    def require_records(self, selection: Selection) -> None:
        """Refuse an exact copy, by queue, of messages that share a record."""
        batch_topics = {*self.queues.batch_topics()} & {*self.chosen_queues(selection)}
        if batch_topics:
            raise UnsupportedFeatureError(
                Text(
                    f"{', '.join(sorted(batch_topics))}: a record holds several messages "
                    "(queue.type=BatchCQ), exact copies are of records: use ",
                    Argument("scan", "commitlog"),
                )
            )

    def warn_unknown_topics(
        self, selection: Selection, consequence: str = "the records of the log decide"
    ) -> None:
        """Log named topics that neither queues nor ``config/topics.json`` know.

        They are misspelt, deleted, or not created yet.
        """
        unknown = sorted(selection.named_topics - set(self.known_topics()))
        if unknown:
            logger.warning(
                "%s: neither a queue nor config/topics.json knows %s; %s",
                self.paths.root, ", ".join(unknown), consequence,
            )  # fmt: skip

    def warn_of_messages_elsewhere(self) -> None:
        """Log where the store has messages that are not read, at the first call only."""
        if not self._has_warned_of_elsewhere:
            self._has_warned_of_elsewhere = True
            self._warn_not_read(messages_elsewhere(self.paths))

    def _warn_not_read(self, texts: Iterable[str]) -> None:
        for text in texts:
            logger.warning("%s: not read: %s", self.paths.root, text)

    def kind(self) -> StoreKind:
        """Return the kind of the store, by the files that it has."""
        return store_kind(self.paths)

    def warn_without_queues(self) -> None:
        """Log that a store has a log but no queues at all: a read by queue then gives nothing."""
        if self.log.segments and not self.topics():
            logger.warning(
                "%s has a CommitLog but no queues in %s: "
                "a read by queue finds nothing, use %s",
                self.paths.root, self.paths.consumequeue, Text(BY_LOG),
            )  # fmt: skip
