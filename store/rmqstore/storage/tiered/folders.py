"""The folders of tiered storage, and how they are named.

Messages are moved queue by queue, so each queue has a log of its own beside its units::

    <tieredStoreFilePath>/<hash>_<cluster>/<broker>/<topic>/<queue id>/COMMIT_LOG/<hash><offset>
                                                                      /CONSUME_QUEUE/<hash><offset>

The hash of a name spreads the keys of an object store; nothing is found by it.

Source: MessageStoreUtil.java, PosixFileSegment.java.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore.errors import NotAStoreError, OptionError, UnreadableFileError
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.storage.files.open_files import OpenFiles
from rmqstore.storage.files.storage import Storage, is_folder, path_of
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.tiered.queue import TieredQueue
from rmqstore.storage.tiered.segments import SegmentLister

COMMIT_LOG: Final = "COMMIT_LOG"
CONSUME_QUEUE: Final = "CONSUME_QUEUE"
INDEX_TOPIC: Final = "rmq_sys_INDEX"  # its folder has files of the index in place of queues

_HASH_DIGITS = 8
_CLUSTER = re.compile(rf"([0-9a-f]{{{_HASH_DIGITS}}})_(.+)", re.DOTALL)
_MAX_QUEUE_ID = (1 << 31) - 1
_TOPICS_TO_LOOK_AT = 64  # to tell the folder of a broker from any other


class Tier(NamedTuple):
    """What one broker has in tiered storage.

    Attributes:
        folder: the folder of the broker, which holds those of topics.
        broker_name: the name of the broker, which is that of the folder.
        storage: the storage that the files are read from.
    """

    folder: Path
    broker_name: str
    storage: Storage

    @property
    def what(self) -> str:
        """What is read, in words."""
        return "tiered storage"

    def topics(self) -> list[str]:
        """Return the topics that have a folder, sorted."""
        return sorted({*subfolders(self.storage, self.folder)} - {INDEX_TOPIC})

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        names = subfolders(self.storage, self.folder / topic)
        return sorted(int(name) for name in names if is_queue_id(name))

    def open_queue(
        self, topic: str, queue_id: int, unit_files: OpenFiles, log_files: OpenFiles
    ) -> TieredQueue:
        """Return a queue; it is empty if there are no files.

        Args:
            topic: topic name.
            queue_id: queue id.
            unit_files: opens the files of units.
            log_files: opens those of the log.
        """
        folder = self.folder / topic / str(queue_id)
        listers = SegmentLister(QUEUE_UNIT.itemsize), SegmentLister()
        # A broker writes records before their units, so units are listed first.
        units = ConsumeQueue(folder / CONSUME_QUEUE, unit_files, listers[0])
        log = CommitLog([folder / COMMIT_LOG], files=log_files, lister=listers[1])
        return TieredQueue(units, log, listers)


def hash_of(name: str) -> str:
    """Return the digits that stand before a name.

    Source: MessageStoreUtil.java#getHash.
    """
    digest = hashlib.md5(name.encode(), usedforsecurity=False)
    return digest.hexdigest()[:_HASH_DIGITS]


def is_tier(path: str | os.PathLike[str], storage: Storage) -> bool:
    """Tell whether a path is a folder of tiered storage: of a broker, a cluster or several."""
    base = path_of(path if isinstance(path, Path) else os.fspath(path))
    try:
        return _is_of_broker(storage, base) or any(_brokers(storage, base))
    except UnreadableFileError:
        return False


def find_tier(
    path: str | os.PathLike[str], storage: Storage, broker_name: str | None = None
) -> Tier:
    """Return what a broker has in the tiered storage at a path.

    Args:
        path: the folder of a broker, that of a cluster, or ``tieredStoreFilePath``.
        storage: the storage that holds the folder.
        broker_name: the broker that is meant, if there are several.

    Raises:
        NotAStoreError: the path is not a folder of tiered storage.
        OptionError: it is not clear which broker is meant.
    """
    base = path_of(path if isinstance(path, Path) else os.fspath(path))
    if _is_of_broker(storage, base):
        return Tier(base, storage.full_path(base).name, storage)
    tiers = [Tier(folder, folder.name, storage) for folder in _brokers(storage, base)]
    if not tiers:
        raise NotAStoreError(
            f"{base} is not a folder of tiered storage: give the broker's tieredStoreFilePath, or "
            "the folder <hash>_<cluster>/<broker> in it"
        )
    chosen = (
        tiers if len(tiers) == 1 else [tier for tier in tiers if tier.broker_name == broker_name]
    )
    if len(chosen) != 1:
        listed = ", ".join(str(tier.folder) for tier in tiers)
        raise OptionError(
            f"{base} holds the messages of several brokers; give the folder of one of them: "
            f"{listed}"
        )
    return chosen[0]


def _is_of_broker(storage: Storage, base: Path) -> bool:
    """Tell whether a folder is that of a broker, by its place or by the queues in it."""
    if not is_folder(storage, base):
        return False
    if _is_cluster(storage.full_path(base).parent.name):
        return True
    return any(
        is_queue_id(queue_id) and _is_of_queue(storage, base / topic / queue_id)
        for topic in subfolders(storage, base)[:_TOPICS_TO_LOOK_AT]
        for queue_id in subfolders(storage, base / topic)
    )


def _is_of_queue(storage: Storage, folder: Path) -> bool:
    return any(is_folder(storage, folder / kind) for kind in (COMMIT_LOG, CONSUME_QUEUE))


def _brokers(storage: Storage, base: Path) -> Iterator[Path]:
    """Yield the folders of brokers in the folder of a cluster, or in that of several clusters."""
    if not is_folder(storage, base):
        return
    names = subfolders(storage, base)
    is_one = _is_cluster(storage.full_path(base).name)
    clusters = [base] if is_one else [base / name for name in names if _is_cluster(name)]
    for cluster in clusters:
        yield from (cluster / name for name in subfolders(storage, cluster))


def _is_cluster(name: str) -> bool:
    match = _CLUSTER.fullmatch(name)
    return match is not None and match[1] == hash_of(match[2])


def is_queue_id(name: str) -> bool:
    """Tell whether the name of a folder is the id of a queue."""
    return re.fullmatch(r"0|[1-9][0-9]{0,9}", name) is not None and int(name) <= _MAX_QUEUE_ID


def subfolders(storage: Storage, folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    names = (entry.name for entry in storage.list_folder(folder) if entry.is_folder)
    return sorted(name for name in names if _is_text(name))


def _is_text(name: str) -> bool:
    """Tell whether a name is UTF-8 on the disk: Python escapes any other as lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in name)
