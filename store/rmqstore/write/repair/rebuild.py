"""The queues during a rebuild: set aside, and put back where the log has none of their records."""

from __future__ import annotations

import logging
from contextlib import closing

from rmqstore.findings import Finding
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import is_folder
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.bounds import pieces
from rmqstore.storage.queue.queue_set import open_files

logger = logging.getLogger(__name__)


def set_queues_aside(disk: Disk, paths: StorePaths) -> None:
    """Move all queues into a folder of our own, so that new ones can be built."""
    disk.make_folder(paths.replaced_queues)
    if is_folder(LOCAL, paths.consumequeue):
        disk.rename(paths.consumequeue, paths.replaced_queues / "consumequeue")
    disk.make_folder(paths.consumequeue)


def restore_queues(disk: Disk, paths: StorePaths, log: CommitLog) -> list[Finding]:
    """Put back the queues that were set aside and not built again; delete the others.

    Returns:
        Queues that are kept although their units point into the log, which has none of their
        records.
    """
    findings = []
    aside = paths.replaced_queues / "consumequeue"
    for topic in (entry for entry in LOCAL.list_folder(aside) if entry.is_folder):
        for queue in LOCAL.list_folder(aside / topic.name):
            target = paths.consumequeue / topic.name / queue.name
            if not LOCAL.exists(target):
                disk.make_folder(target.parent)
                disk.rename(aside / topic.name / queue.name, target)
                disk.flush_folder(target.parent)
                findings += _unfounded(paths, log, topic.name, queue.name)
    disk.delete_tree(paths.replaced_queues)
    return findings


def _unfounded(paths: StorePaths, log: CommitLog, topic: str, queue_name: str) -> list[Finding]:
    if not queue_name.isdecimal() or int(queue_name) not in paths.queue_ids(topic):
        return []
    with closing(open_files(paths, topic, int(queue_name))) as queue:
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
