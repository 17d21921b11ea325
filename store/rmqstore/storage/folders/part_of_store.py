"""Finds the root of a store from a folder or file in it, which is easily given in its place."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from rmqstore.errors import NotAStoreError, RmqStoreError
from rmqstore.storage.files.paths import segment_files
from rmqstore.storage.files.storage import Storage, is_folder, path_of
from rmqstore.storage.folders.dledger import DLEDGER_PREFIX, dledger_data_folders

logger = logging.getLogger(__name__)

_PARTS: Final = {
    "commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "consumequeue_rocksdb",
    "index", "config", "compaction", "rocksdbstore", "timerlog", "timerwheel", "abort",
    "checkpoint", "lock", "brokerIdentity", "epochFileCheckpoint", ".rmqstore",
}  # fmt: skip
COMPACTION: Final = "compaction"  # the folder of a store with the compacted logs of topics
COMPACTION_LOGS: Final = "compactionLog"
_MAX_DEPTH: Final = 4  # of consumequeue/TOPIC/0/00000000000000000000


def root_of_part(path: str | os.PathLike[str], storage: Storage) -> Path | None:
    """Return the root of the store in which a path lies as a part of it, None if it does not."""
    given = path_of(path if isinstance(path, Path) else os.fspath(path))
    for name in dict.fromkeys((given, storage.full_path(given))):  # a part may be a link
        for root in islice(name.parents, _MAX_DEPTH):
            part = name.relative_to(root).parts[0]
            if (part in _PARTS or part.startswith(DLEDGER_PREFIX)) and _is_root(root, storage):
                return root
    return None


def root_around(path: Path, storage: Storage) -> Path | None:
    """Return the root of the store in whose folders a file lies, or would lie; None without one."""
    full = storage.full_path(path)
    return next((folder for folder in full.parents if _is_root(folder, storage)), None)


def _is_root(folder: Path, storage: Storage) -> bool:
    with suppress(RmqStoreError, OSError):  # who may read a part need not see what is above it
        logs = (folder / "commitlog", *dledger_data_folders(storage, folder))
        if any(segment_files(storage, log) for log in logs):
            return True
        return all(is_folder(storage, folder / name) for name in ("commitlog", "consumequeue"))
    return False


def root_for(path: str | os.PathLike[str], storage: Storage) -> Path:
    """Return the root of the store of which a path is a part, with a warning; else the path.

    The compacted logs of a store are a part that is read by itself.
    """
    given = path_of(path if isinstance(path, Path) else os.fspath(path))
    is_whole = _is_root(given, storage) or are_compacted_logs(given, storage)
    root = None if is_whole else root_of_part(given, storage)
    if root is None:
        return given
    logger.warning("%s is a part of a store; its root is opened: %s", path, root)
    return root


def are_compacted_logs(path: str | os.PathLike[str], storage: Storage) -> bool:
    """Tell whether a path is the folder with the compacted logs of a broker."""
    base = path_of(path if isinstance(path, Path) else os.fspath(path))
    with suppress(RmqStoreError, OSError):
        return is_folder(storage, base / COMPACTION_LOGS)
    return False


def refuse_part(path: Path, storage: Storage) -> None:
    """Refuse a part of a store where its root is needed.

    Raises:
        NotAStoreError: the path is a part of a store.
    """
    root = root_of_part(path, storage)
    if root is not None:
        raise NotAStoreError(f"{path} is a part of the store {root}: name that")
