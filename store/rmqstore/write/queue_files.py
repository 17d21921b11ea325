"""The queues of a store that is repaired: opened by their kind, cut, and appended to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set as AbstractSet
from contextlib import closing
from functools import partial
from pathlib import Path

from rmqstore.errors import CorruptQueueError, Finding
from rmqstore.format.layout import SCHEDULE_TOPIC
from rmqstore.spans import FOREVER, QueueKey
from rmqstore.storage.broker.config_files import BrokerConfig, batch_topics_of
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import (
    QueueFolders,
    StorePaths,
    can_name_queues,
    is_queue_id,
    name_to_offset,
    offset_to_name,
)
from rmqstore.storage.files.storage import is_folder
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.appender import BatchQueueAppender, FoundQueue, QueueAppender
from rmqstore.storage.queue.batch_consumequeue import BatchConsumeQueue
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import chunks, records_end
from rmqstore.storage.queue.queue_set import kept_end, misnamed_files
from rmqstore.write.truncation import LeftOpen, QueueInFiles, cut_queue, delete_behind

logger = logging.getLogger(__name__)


def _kinds(
    paths: StorePaths, log: CommitLog
) -> Iterator[tuple[QueueFolders, Callable[[Path], QueueInFiles]]]:
    """Yield for each kind of queues their folders, and what opens one."""
    yield paths.queue_folders, ConsumeQueue
    yield paths.batch_folders, partial(BatchConsumeQueue, log=log)


def folder_set_aside(paths: StorePaths, folders: QueueFolders) -> Path:
    """Return where queues of one kind are kept while new ones are built."""
    name = "batchconsumequeue" if folders == paths.batch_folders else "consumequeue"
    return paths.own.replaced_queues / name


def topics_set_aside(paths: StorePaths) -> tuple[set[str], set[str]]:
    """Return the topics with plain queues and with BatchConsumeQueues that are set aside."""
    plain = LOCAL.list_folder(folder_set_aside(paths, paths.queue_folders))
    in_batches = LOCAL.list_folder(folder_set_aside(paths, paths.batch_folders))
    return {entry.name for entry in plain}, {entry.name for entry in in_batches}


def restore_queues(disk: Disk, paths: StorePaths, log: CommitLog) -> list[Finding]:
    """Put back the queues that were set aside and not built again; delete the others.

    So are ordinary queues of a topic that has BatchConsumeQueues now: a broker would not start.

    Returns:
        Queues that are kept although their units point into the log, which has none of their
        records.
    """
    findings = []
    for folders, kind in _kinds(paths, log):
        aside = folder_set_aside(paths, folders)
        for topic in (entry for entry in LOCAL.list_folder(aside) if entry.is_folder):
            if kind is ConsumeQueue and paths.batch_folders.has_topic(topic.name):
                continue
            for queue in LOCAL.list_folder(aside / topic.name):
                old, target = (root / topic.name / queue.name for root in (aside, folders.root))
                if not LOCAL.exists(target) and not (queue.is_folder and _is_empty(kind(old))):
                    disk.make_folder(target.parent)
                    disk.rename(old, target)
                    disk.flush_folder(target.parent)
                    if is_queue_id(queue.name):
                        kept = kind(target)
                        delete_behind(disk, kept)
                        findings += _unfounded(kept, log, f"{topic.name}-{queue.name}")
    disk.delete_tree(paths.own.replaced_queues)
    return findings


def _is_empty(queue: QueueInFiles) -> bool:
    """Return whether a queue has files, and no unit was ever written to them."""
    with closing(queue):
        return bool(queue.segments) and not queue.end()


def _unfounded(queue: QueueInFiles, log: CommitLog, name: str) -> list[Finding]:
    with closing(queue):
        n_wrong = sum(
            int((queue.units(low, high).physical_offsets >= log.min_offset).sum())
            for low, high in chunks(queue, queue.begin, queue.end())
        )
    if not n_wrong:
        return []
    text = (
        f"{n_wrong} units point into the log, which holds no record of this queue; "
        "the queue is kept because only its files show its next queue offset"
    )
    logger.warning("%s: %s", name, text)
    return [Finding("queue", name, text)]


def known_batch_topics(paths: StorePaths) -> set[str]:
    """Return the topics whose queues are BatchConsumeQueues, as far as the files show it.

    They are those that have a folder of such queues, and those that ``topics.json`` says so of and
    that have no other queues.
    """
    plain, in_batches = topics_set_aside(paths)
    in_batches |= {*paths.batch_folders.topics()}
    configured = batch_topics_of(BrokerConfig(paths).topic_entries()) - plain
    # Source: ConsumeQueueStore.java#loadConsumeQueues, which skips folders without queues.
    in_batches |= {
        topic
        for topic in configured
        if can_name_queues(topic) and not paths.queue_folders.queue_ids(topic)
    }
    return in_batches


class QueueFiles:
    """The queues of one store, plain ones and BatchConsumeQueues.

    Records that are appended may show that a topic was deleted and made again.

    Args:
        disk: performs all changes.
        paths: the files of the store.
        log: its log.
        config: sizes of new files.
        batch_topics: the topics whose queues are BatchConsumeQueues; records may add to them.
    """

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        log: CommitLog,
        config: StoreConfig,
        batch_topics: set[str],
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._log = log
        self._config = config
        self._unchecked_after: int | None = None
        self._unfit: dict[Path, str] = {}  # folders of queues, and why a broker does not keep them
        self._plain = {*paths.queue_folders.topics()}
        self.batch_topics = batch_topics

    def numbers(self) -> Iterator[int]:
        """Yield the number of queues of each topic."""
        for folders, _ in _kinds(self._paths, self._log):
            for topic in folders.topics():
                yield len(folders.queue_ids(topic))

    def _all(self) -> Iterator[tuple[QueueKey, QueueInFiles]]:
        for folders, kind in _kinds(self._paths, self._log):
            for key in folders.queues():
                yield key, kind(folders.queue(*key))

    def files(self, topic: str, queue_id: int) -> QueueInFiles:
        """Return the files of a queue."""
        if topic in self.batch_topics:
            folder = self._paths.batch_folders.queue(topic, queue_id)
            return BatchConsumeQueue(folder, log=self._log)
        return ConsumeQueue(self._paths.queue_folders.queue(topic, queue_id))

    def turn_into_batches(self, topics: AbstractSet[str]) -> bool:
        """Give topics BatchConsumeQueues whose other queues are new; return if there are any.

        Args:
            topics: those whose records hold inner batches. ``topics.json`` may say otherwise, as of
                a topic that was deleted and made again.
        """
        entries = BrokerConfig(self._paths).topic_entries()
        ordinary = self._plain | (entries.keys() - batch_topics_of(entries))
        found = sorted(topics - ordinary - self.batch_topics)
        for topic in found:
            logger.warning("%s: its records hold inner batches, so its queues do", topic)
            self._disk.delete_tree(self._paths.queue_folders.root / topic)
        self.batch_topics.update(found)
        return bool(found)

    def end(self) -> int:
        """Return the physical offset after the last record with a unit, -1 without any unit."""
        ends = [-1]
        for _, files in self._all():
            with closing(files) as queue:
                ends.append(records_end(queue, queue.end()))
        return max(ends)

    def check_when_opened(self, log_end: int) -> None:
        """Look for units of records after the log end only when a queue is opened, and cut it."""
        self._unchecked_after = log_end

    def set_aside(self) -> None:
        """Move all queues into a folder of our own, so that new ones can be built."""
        self._unchecked_after = None
        aside = self._paths.own.replaced_queues
        self._disk.make_folder(aside)
        for folders in (self._paths.queue_folders, self._paths.batch_folders):
            if is_folder(LOCAL, folders.root):
                self._disk.rename(folders.root, folder_set_aside(self._paths, folders))
                self._disk.flush_folder(aside)
                self._disk.flush_folder(folders.root.parent)
        self._disk.make_folder(self._paths.consumequeue)

    def cut(self, log_end: int, left_open: LeftOpen | None) -> int:
        """Remove the units of records after the log end; see :func:`truncation.cut_queue`.

        A queue that a broker which starts would not keep whole is built again when a record of it
        is met.

        Returns:
            The physical offset after the last record that no queue lacks a unit of.

        Raises:
            StoreStateError: a queue that is to be built again has times of delivery, which follow a
                table of levels that is not known.
        """
        queues_end = n_queues = n_units = 0
        is_whole = True
        for key, files in self._all():
            with closing(files) as queue:
                is_whole &= all(segment.size for segment in queue.segments)
                end, n_removed = cut_queue(self._disk, queue, key, log_end, left_open)
                is_whole &= end > 0 or not queue.segments  # all of its units may be lost
                reason = self._why_not_kept(queue, key, end, log_end)
                if reason and not end:  # it holds no unit
                    self.empty(queue.folder)
                elif reason:
                    self._unfit[queue.folder] = reason
                    if key[0] == SCHEDULE_TOPIC:
                        self._config.require_delay_levels()
                queues_end = max(queues_end, records_end(queue, end))
                n_queues += n_removed > 0
                n_units += n_removed
        if n_units:
            logger.warning(
                "%s: the queues are cut at physical offset %d: %d units of %d queues are removed",
                self._paths.root, log_end, n_units, n_queues,
            )  # fmt: skip
        return queues_end if is_whole and not self._unfit else self._log.min_offset

    def _file_size(self, queue: QueueInFiles) -> int:
        if queue.is_batch:
            return self._config.mapper_file_size_batch_consume_queue
        return self._config.mapped_file_size_consume_queue

    def _why_not_kept(self, queue: QueueInFiles, key: QueueKey, end: int, log_end: int) -> str:
        """Return why a broker refuses the files of a queue, or ends it before ``end``; or ""."""
        size = self._file_size(queue)
        starts = {
            entry.name: start
            for entry in LOCAL.list_folder(queue.folder)
            if (start := name_to_offset(entry.name)) is not None
        }
        if len({*starts.values()}) < len(starts):
            return "two files have the name of one position"
        for name, start in starts.items():
            if start % size:
                return f"the name of {name} is not a multiple of {size}, the length of files"
            if name != offset_to_name(start):  # a broker writes to it, and we by its usual name
                return f"the name of {name} should be {offset_to_name(start)}"
        for segment in queue.segments:
            if (length := LOCAL.size(segment.path)) != size:
                return f"{segment.path.name} has {length} bytes and should have {size}"
        for path, start in misnamed_files(queue, key, self._log):
            return f"the name of {path.name} should be {offset_to_name(start)}"
        # a unit that leads behind the log may stand before others
        kept = min(kept_end(queue, FOREVER), kept_end(queue, log_end, is_cut=True))
        return f"a broker that starts ends the queue at {kept} of {end}" if kept < end else ""

    def appender(self, topic: str, queue_id: int) -> QueueAppender:
        """Return the appender of a queue.

        Raises:
            CorruptQueueError: a broker that starts would not keep what is appended.
        """
        with closing(self.files(topic, queue_id)) as queue:
            if reason := self._unfit.get(queue.folder):
                raise CorruptQueueError(str(queue.folder), 0, reason)
            if self._unchecked_after is None:
                end = queue.end()
            else:
                end, _ = cut_queue(self._disk, queue, (topic, queue_id), self._unchecked_after)
            begin = queue.begin
            kind: type[QueueAppender] = BatchQueueAppender if queue.is_batch else QueueAppender
            found = FoundQueue(
                records_start=queue.unit(begin)[0] if begin else -1,
                end=end,
                records_end=records_end(queue, end),
                n_units=queue.position(end) // kind.unit_type.itemsize,
                is_new=begin == end if queue.is_batch else not queue.segments,
            )
            return kind(self._disk, queue.folder, self._file_size(queue), found)

    def empty(self, folder: Path) -> None:
        """Delete the files of a queue, given its folder."""
        for entry in LOCAL.list_folder(folder):
            self._disk.delete(folder / entry.name)
        self._disk.flush_folder(folder)
        self._unfit.pop(folder, None)
