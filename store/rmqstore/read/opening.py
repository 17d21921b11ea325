"""Opens a store, tiered storage, or both together, for reading."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Unpack

from rmqstore.errors import (
    NotAStoreError,
    OptionError,
    RmqStoreError,
    UnsupportedFeatureError,
    marked,
)
from rmqstore.query.arguments import FolderArguments
from rmqstore.read.store_parts import StoreParts
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.folders import are_compacted_logs, find_store, root_for
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import Storage, path_of
from rmqstore.storage.queue.tiered import NO_FILES, CompactedLogs, find_tier, is_tier
from rmqstore.storage.recovery.store_ends import PlannedEnds
from rmqstore.storage.remote.remote_storage import RemoteStorage


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
            return StoreParts.of(_no_store(folder), logs, broker_name=name)
        if is_tier(path, storage):
            _refuse_others(f"{path} is tiered storage, not a store", others)
            alone = find_tier(path, storage, broker_name)
            name = broker_name or alone.broker_name
            return StoreParts.of(_no_store(alone.folder), alone, broker_name=name)
        paths = _above(path, storage, folders)
    if tiered is None:
        return StoreParts.of(
            paths, broker_name=broker_name, ignore_log_end=ignore_log_end, planned=planned
        )
    if isinstance(storage, RemoteStorage):
        raise UnsupportedFeatureError(
            f"`tiered`: {path} is not on a local disk; read the tiered storage by itself, "
            "by its URI"
        )
    name = broker_name or BrokerConfig(paths).broker_name()
    tier = find_tier(tiered, storage, name)
    return StoreParts.of(
        paths, tier, broker_name=broker_name, ignore_log_end=ignore_log_end, planned=planned
    )


def paths_for(
    path: str | os.PathLike[str], storage: Storage = LOCAL, **folders: Unpack[FolderArguments]
) -> StorePaths:
    """Return where the parts of a store lie; those of tiered storage alone have no files.

    Raises as :func:`open_parts` does.
    """
    try:
        return find_store(path, storage=storage, **folders)
    except NotAStoreError:
        if are_compacted_logs(path, storage) or is_tier(path, storage):
            return _no_store(Path(path))
        return _above(path, storage, folders)


def _above(path: str | os.PathLike[str], storage: Storage, folders: FolderArguments) -> StorePaths:
    """Return the store of which a path is a part, with a warning.

    Raises:
        NotAStoreError: the path is not a part of a store.
    """
    return find_store(root_for(path, storage), storage=storage, **folders)


def _refuse_others(text: str, others: dict[str, object]) -> None:
    misplaced = sorted(name for name, value in others.items() if value)
    if misplaced:
        raise OptionError(f"{marked(misplaced)}: {text}")


def _no_store(root: Path) -> StorePaths:
    return StorePaths(root, (), root / "consumequeue", root / "index", NO_FILES)
