"""What a rebuild would change, found out without a change."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from rmqstore.errors import StoreLockedError
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.index_files import index_files
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.write.repairer import Repairer

CLEARED, DELETED, MOVED = "cleared", "deleted", "moved"


class LogChange(NamedTuple):
    """A change of one file of the log.

    Attributes:
        what: :data:`CLEARED`, :data:`DELETED`, or :data:`MOVED` into ``.rmqstore/cut``.
        path: the file.
        start: the position in it from which on it is cleared; 0 for the whole file.
        stop: the position after the last byte that is not zero; 0 for the whole file.
    """

    what: str
    path: Path
    start: int = 0
    stop: int = 0

    def __str__(self) -> str:
        if self.what == CLEARED:
            return f"{self.path}: bytes {self.start:,} to {self.stop:,} are cleared; a copy is kept"
        if self.what == MOVED:
            return f"{self.path} is moved into .rmqstore/cut"
        return f"{self.path}, in which nothing is written, is deleted"


class RebuildPlan(NamedTuple):
    """What a rebuild would change.

    Attributes:
        root: the store.
        log_start: physical offset of the first file of the log.
        log_end: physical offset after the last record.
        reason: why the log ends there; "" for a sound end.
        log_changes: the changes of files of the log.
        n_queues: queues that are built again.
        n_queue_files: their files, which are replaced.
        n_index_files: index files that are replaced.
    """

    root: Path
    log_start: int
    log_end: int
    reason: str
    log_changes: tuple[LogChange, ...]
    n_queues: int
    n_queue_files: int
    n_index_files: int

    def lines(self) -> list[str]:
        """Return the plan in words."""
        reason = f" ({self.reason})" if self.reason else ""
        built = (
            f"{self.n_queue_files:,} files of {self.n_queues:,} queues and "
            f"{self.n_index_files:,} index files are built again from the log"
        )
        return [
            f"{self.root}: the log reaches from {self.log_start:,} to {self.log_end:,}{reason}",
            *map(str, self.log_changes or ("no byte of the log changes",)),
            built,
            "records that can have no unit show in the rebuild itself, which then exits with 1",
        ]


def plan_rebuild(
    paths: StorePaths, config: StoreConfig | None = None, *, truncate: bool = False
) -> RebuildPlan:
    """Return what a rebuild of a store would change. Nothing is changed, and no lock is taken.

    Args:
        paths: the store, which a writer may open.
        config: sizes of new files.
        truncate: cut a damaged log even if good records follow.

    Raises:
        StoreLockedError: a broker or a writer has the store.
        CorruptRecordError: good records follow damage of the log, and ``truncate`` is not set.
    """
    if LOCAL.is_locked(paths.lock):
        raise StoreLockedError(f"{paths.lock}: a running broker or another writer has the store")
    disk = _NoDisk()
    with closing(CommitLog(paths.commitlogs)) as log:
        repairer = Repairer(disk, paths, config or StoreConfig(), log)
        end, _ = repairer.cut_log(truncate=truncate)
        min_offset = log.min_offset
    topics, batch_topics = paths.queue_folders.topics(), paths.queue_folders.batch_topics()
    queue_files = [file for topic in topics for file in paths.queue_folders.queue_files(topic)]
    queue_files += [
        file for topic in batch_topics for file in paths.queue_folders.batch_files(topic)
    ]
    folders = set(paths.commitlogs)
    return RebuildPlan(
        paths.root,
        min_offset,
        end.physical_offset,
        end.reason,
        tuple(change for change in disk.changes if change.path.parent in folders),
        len({file.parent for file in queue_files}),
        len(queue_files),
        len(index_files(paths.index)),
    )


class _NoDisk(Disk):
    """Notes the changes that a repair of the log makes, and makes none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[LogChange] = []

    def make_folder(
        self,
        path: Path,
        *,
        is_flushed: bool = True,
        like: Path | None = None,
        is_private: bool = False,
    ) -> None:
        """Make no folder."""

    def create(self, path: Path, size: int, content: object = None) -> None:
        """Make no file."""

    def write(self, path: Path, position: int, data: object) -> None:
        """Write nothing."""

    def flush(self, path: Path) -> None:
        """Flush nothing."""

    def flush_folder(self, path: Path) -> None:
        """Flush nothing."""

    def clear_append(self, path: Path, start: int, stop: int) -> None:
        """Note that a part of a file is cleared."""
        self.changes.append(LogChange(CLEARED, path, start, stop))

    def rename(self, source: Path, target: Path) -> None:  # noqa: ARG002
        """Note that a file is moved."""
        self.changes.append(LogChange(MOVED, source))

    def delete(self, path: Path) -> None:
        """Note that a file is deleted."""
        self.changes.append(LogChange(DELETED, path))
