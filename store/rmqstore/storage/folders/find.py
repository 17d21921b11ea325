"""Finds the folders of a store from its root."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rmqstore.errors import Argument, NotAStoreError, StoreStateError, Text, UnreadableFileError
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import UNFINISHED_COPY, BrokerSettings, StorePaths
from rmqstore.storage.files.storage import Storage, is_folder, path_of
from rmqstore.storage.folders.broker_conf import (
    dledger_folders,
    dledger_node,
    log_folders,
    other_folder,
    read_conf,
)
from rmqstore.storage.folders.dledger import find_dledger_logs
from rmqstore.storage.folders.part_of_store import refuse_part


def find_store(
    root: str | os.PathLike[str],
    *,
    commitlogs: Sequence[str | Path] = (),
    consumequeue: str | Path | None = None,
    index: str | Path | None = None,
    dledger_logs: Sequence[str | Path] = (),
    dledger_self_id: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    storage: Storage = LOCAL,
) -> StorePaths:
    """Return the paths of the store at ``root``.

    Args:
        root: the folder that holds ``commitlog/``.
        commitlogs: log folders outside of the root (the broker's ``storePathCommitLog``).
        consumequeue: the queue folder if it lies elsewhere.
        index: the index folder if it lies elsewhere.
        dledger_logs: folders of a DLedger log outside of the root (the broker's
            ``storePathDLedgerCommitLog``).
        dledger_self_id: the node whose DLedger log is read, if there are logs of several nodes
            (the broker's ``dLegerSelfId``).
        conf: the broker's properties file, for what is not given.
        storage: the storage to read the files from.

    Raises:
        NotAStoreError: there is no such folder, or it has no log.
        OptionError: it is not clear which DLedger log is meant, or ``conf`` cannot be used.
        StoreStateError: it is a copy that is not complete.
    """
    base = path_of(root if isinstance(root, Path) else os.fspath(root))
    if storage.exists(base / UNFINISHED_COPY):
        raise StoreStateError(
            f"{base} holds a copy of a store that is not complete: "
            "`rmqstore copy` with the same arguments goes on with it"
        )
    settings = None if conf is None else read_conf(conf)
    if settings is not None:
        commitlogs = commitlogs or _those_there(log_folders(settings, base), storage)
        dledger_logs = dledger_logs or dledger_folders(settings, base)
        dledger_self_id = dledger_self_id or dledger_node(settings)
        consumequeue = consumequeue or _elsewhere(settings, base, "consumequeue", storage)
        index = index or _elsewhere(settings, base, "index", storage)
    logs = tuple(path_of(log) for log in commitlogs) or (base / "commitlog",)
    try:
        entries = find_dledger_logs(base, dledger_logs, dledger_self_id, storage)
    except UnreadableFileError as err:
        if is_folder(storage, base):
            raise
        refuse_part(base, storage)
        raise NotAStoreError(f"{base} is not a RocketMQ store but a file") from err
    needed = logs if commitlogs or not entries else ()
    missing = next((log for log in needed if not is_folder(storage, log)), None)
    if missing is not None:
        refuse_part(base, storage)
        raise NotAStoreError(
            Text(
                f"{base} is not a RocketMQ store: there is no folder {missing}; "
                "give the folder that holds commitlog/, or the log's own folders with ",
                Argument("commitlogs", ""),
            )
        )
    return StorePaths(
        root=base,
        commitlogs=logs,
        consumequeue=path_of(consumequeue) if consumequeue else base / "consumequeue",
        index=path_of(index) if index else base / "index",
        storage=storage,
        dledger_logs=entries,
        settings=settings,
    )


_OLD_KEYS: Final = {"consumequeue": "storePathConsumeQueue", "index": "storePathIndex"}


def _those_there(folders: tuple[Path, ...], storage: Storage) -> tuple[Path, ...]:
    """Return the folders that are there, as a broker does; all of them if none is."""
    return tuple(folder for folder in folders if is_folder(storage, folder)) or folders


def _elsewhere(conf: BrokerSettings, root: Path, name: str, storage: Storage) -> Path | None:
    """Return a folder that settings name, if it is there and the root has none."""
    folder = other_folder(conf, root, _OLD_KEYS[name])
    if folder is None or is_folder(storage, root / name) or not is_folder(storage, folder):
        return None
    return folder
