"""The queues during a rebuild: set aside, and put back where the log has none of their records."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

from rmqstore.errors import Finding
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import is_folder
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.batch_consumequeue import BatchConsumeQueue
from rmqstore.storage.queue.bounds import pieces
from rmqstore.storage.queue.consumequeue import ConsumeQueue

logger = logging.getLogger(__name__)


def set_queues_aside(disk: Disk, paths: StorePaths) -> None:
    """Move all queues into a folder of our own, so that new ones can be built."""
    disk.make_folder(paths.replaced_queues)
    for folder, name in _folders(paths):
        if is_folder(LOCAL, folder):
            disk.rename(folder, paths.replaced_queues / name)
            disk.flush_folder(paths.replaced_queues)
            disk.flush_folder(folder.parent)
    disk.make_folder(paths.consumequeue)


def _folders(paths: StorePaths) -> tuple[tuple[Path, str], tuple[Path, str]]:
    """Return the folders of plain queues and of BatchConsumeQueues, and their names when aside."""
    return (paths.consumequeue, "consumequeue"), (paths.batch_consumequeue, "batchconsumequeue")


def topics_set_aside(paths: StorePaths) -> tuple[set[str], set[str]]:
    """Return the topics with plain queues and with BatchConsumeQueues that are set aside."""
    plain, in_batches = (
        {entry.name for entry in LOCAL.list_folder(paths.replaced_queues / name)}
        for _, name in _folders(paths)
    )
    return plain, in_batches


def restore_queues(disk: Disk, paths: StorePaths, log: CommitLog) -> list[Finding]:
    """Put back the queues that were set aside and not built again; delete the others.

    Returns:
        Queues that are kept although their units point into the log, which has none of their
        records.
    """
    findings = []
    for folder, name in _folders(paths):
        aside = paths.replaced_queues / name
        for topic in (entry for entry in LOCAL.list_folder(aside) if entry.is_folder):
            for queue in LOCAL.list_folder(aside / topic.name):
                target = folder / topic.name / queue.name
                if not LOCAL.exists(target):
                    disk.make_folder(target.parent)
                    disk.rename(aside / topic.name / queue.name, target)
                    disk.flush_folder(target.parent)
                    findings += _unfounded(paths, log, topic.name, queue.name)
    disk.delete_tree(paths.replaced_queues)
    return findings


def _unfounded(paths: StorePaths, log: CommitLog, topic: str, queue_name: str) -> list[Finding]:
    if not queue_name.isdecimal():
        return []
    queue: ConsumeQueue | BatchConsumeQueue
    if int(queue_name) in paths.queue_ids(topic):
        queue = ConsumeQueue(paths.queue(topic, int(queue_name)))
    elif int(queue_name) in paths.batch_queue_ids(topic):
        queue = BatchConsumeQueue(paths.batch_queue(topic, int(queue_name)))
    else:
        return []
    with closing(queue):
        n_wrong = sum(
            int((queue.units(low, high).physical_offsets >= log.min_offset).sum())
            for low, high in pieces(queue, queue.begin, queue.end())
        )
    if not n_wrong:
        return []
    text = (
        f"{n_wrong} units point into the log, which holds no record of this queue; "
        "the queue is kept because only its files tell its next queue offset"
    )
    logger.warning("%s-%s: %s", topic, queue_name, text)
    return [Finding("queue", f"{topic}-{queue_name}", text)]
