"""The folders of a store, from its root, from one of its parts, or from a file that lists brokers.

A file of brokers is a JSON object, or a file of JSON or TOML::

    broker-a = "s3://bucket/broker-a"
    broker-b = ["/data/b/store", "/backup/b/store"]  # a master and its replica

In a TOML file these lines may also stand in a table ``[brokers]``.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from rmqstore.errors import (
    NotAStoreError,
    OptionError,
    RmqStoreError,
    StoreStateError,
    UnreadableFileError,
)
from rmqstore.json_text import parse_json
from rmqstore.storage.broker.store_config import (
    dledger_folders,
    dledger_node,
    log_folders,
    other_folder,
    read_conf,
)
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import (
    OWN_FOLDER,
    UNFINISHED_COPY,
    BrokerSettings,
    StorePaths,
    is_text,
    segment_files,
)
from rmqstore.storage.files.storage import Storage, is_folder, path_of, read_small

logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 16 << 20
_TABLE: Final = "brokers"

# What a broker makes in the root of its store.
PARTS: Final = {
    "commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "consumequeue_rocksdb",
    "index", "config", "compaction", "rocksdbstore", "timerlog", "timerwheel", "abort",
    "checkpoint", "lock", "brokerIdentity", "epochFileCheckpoint",
}  # fmt: skip
COMPACTION: Final = "compaction"  # the folder of a store with the compacted logs of topics
COMPACTION_LOGS: Final = "compactionLog"
_MAX_LISTED: Final = 100  # folders, of which those that are stores are looked for
_MAX_NAMED: Final = 5
_OF_KAFKA: Final = {"meta.properties", "leader-epoch-checkpoint", "partition.metadata"}
_MAX_DEPTH: Final = 4  # of consumequeue/TOPIC/0/00000000000000000000

DLEDGER_PREFIX: Final = "dledger-"  # of the folder of a node


def read_brokers(value: str) -> dict[str, tuple[str, ...]]:
    """Return the paths of each broker's stores, by broker name and in the order given.

    Args:
        value: the text of a JSON object, or the path of a ``.json`` or ``.toml`` file.

    Raises:
        OptionError: there is no such file, or it is not a table of paths by name.
    """
    is_text = value.lstrip().startswith("{")
    where = "brokers" if is_text else f"brokers {value!r}"
    try:
        if is_text:
            table = parse_json(value)
        else:
            file = Path(value)
            text = read_small(LOCAL, file, _MAX_BYTES).decode()
            table = tomllib.loads(text) if file.suffix == ".toml" else parse_json(text)
    except (ValueError, OSError) as err:  # tomllib's and json's errors are ValueErrors
        raise OptionError(
            f"{where}: must be a JSON object, or a .json or .toml file ({err})"
        ) from err
    if isinstance(table, dict) and isinstance(table.get(_TABLE), dict) and len(table) == 1:
        table = table[_TABLE]
    if not isinstance(table, dict) or not table:
        raise OptionError(f"{where}: must be a table of stores by broker name")
    stores: dict[str, tuple[str, ...]] = {}
    for name, given in table.items():
        paths = given if isinstance(given, list) else [given]
        if not name or not paths or not all(isinstance(path, str) and path for path in paths):
            raise OptionError(f"{where}: {name!r} must have a path, or a list of paths")
        stores[name] = tuple(paths)
    return stores


def names_by_path(brokers: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the broker's name for each path.

    Raises:
        OptionError: a path is there twice.
    """
    names: dict[str, str] = {}
    for name, paths in brokers.items():
        for path in paths:
            if path in names:
                raise OptionError(f"`brokers`: a path of {name} is named twice")
            names[path] = name
    return names


def root_of_part(path: str | os.PathLike[str], storage: Storage) -> Path | None:
    """Return the root of the store in which a path lies as a part of it, None if it does not."""
    given = path_of(path if isinstance(path, Path) else os.fspath(path))
    for name in dict.fromkeys((given, storage.full_path(given))):  # a part may be a link
        for root in islice(name.parents, _MAX_DEPTH):
            part = name.relative_to(root).parts[0]
            is_part = part in {*PARTS, OWN_FOLDER} or part.startswith(DLEDGER_PREFIX)
            if is_part and _is_root(root, storage):
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
    """Return whether a path is the folder with the compacted logs of a broker."""
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


def find_dledger_logs(
    base: Path, given: Sequence[str | Path], self_id: str | None, storage: Storage
) -> tuple[Path, ...]:
    """Return the folders that hold the DLedger log of a store; none in most stores.

    Raises:
        NotAStoreError: a given folder is not there.
        OptionError: there are logs of several nodes, or none of the given one; or both are given.

    Source: DLedgerConfig.java#getDataStorePath.
    """
    if given:
        if self_id is not None:
            text = f"`dledger_self_id={self_id}` names a node whose log lies in the store"
            raise OptionError(f"{base}: {text}, and `dledger_logs=` its folders: give one")
        folders = tuple(path_of(folder) for folder in given)
        missing = next((folder for folder in folders if not is_folder(storage, folder)), None)
        if missing is not None:
            raise NotAStoreError(
                f"{base}: there is no folder {missing}, which `dledger_logs=` names as one "
                "that holds the files of a DLedger log"
            )
        return folders
    by_id = {
        folder.parent.name.removeprefix(DLEDGER_PREFIX): folder
        for folder in dledger_data_folders(storage, base)
        if segment_files(storage, folder)
    }
    listed = ", ".join(f"{node} in {folder}" for node, folder in by_id.items()) or "none"
    if self_id is not None and self_id not in by_id:
        raise OptionError(
            f"{base}: `dledger_self_id={self_id}` names a node without a DLedger log; there "
            f"are: {listed}"
        )
    if self_id is None and len(by_id) > 1:
        raise OptionError(
            f"{base} holds the DLedger logs of several nodes ({listed}); choose one of them "
            "with `dledger_self_id=`"
        )
    return tuple(folder for node, folder in by_id.items() if self_id in (None, node))


def dledger_data_folders(storage: Storage, root: Path) -> list[Path]:
    """Return the folders of the files of DLedger logs, whether or not there are any.

    Source: DLedgerConfig.java.
    """
    entries = storage.list_folder(root)
    names = (entry.name for entry in entries if entry.is_folder and is_text(entry.name))
    return sorted(root / name / "data" for name in names if name.startswith(DLEDGER_PREFIX))


def _found_instead(base: Path, storage: Storage) -> str:
    """Return in words what is in a folder that is not a store, empty if that says nothing."""
    try:
        entries = list(islice(storage.list_folder(base), _MAX_LISTED))
    except (RmqStoreError, OSError):
        return ""
    inside = [base / entry.name for entry in entries if entry.is_folder]
    stores = [str(folder) for folder in inside if _is_root(folder, storage)]
    if stores:
        return f"; stores in it: {', '.join(sorted(stores)[:_MAX_NAMED])}"
    if not _OF_KAFKA.isdisjoint(entry.name for entry in entries):
        return "; it is a folder of Kafka, which `rmqstore kafka` and the package kafkalog read"
    return ""


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
            "`rmqstore copy` with the same arguments continues it"
        )
    settings = None if conf is None else read_conf(conf)
    if settings is not None:
        if not commitlogs:  # the folders that are there, as a broker does; all of them if none is
            named = log_folders(settings, base)
            commitlogs = [log for log in named if is_folder(storage, log)] or named
        if not dledger_self_id:
            dledger_logs = dledger_logs or dledger_folders(settings, base)
            dledger_self_id = None if dledger_logs else dledger_node(settings)
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
    for folder in () if entries or commitlogs else dledger_data_folders(storage, base):
        if segment_files(storage, folder.with_name("index")):
            logger.warning("%s: the index beside it leads to a DLedger log, which is gone", folder)
    paths = StorePaths(
        root=base,
        commitlogs=logs,
        consumequeue=path_of(consumequeue) if consumequeue else base / "consumequeue",
        index=path_of(index) if index else base / "index",
        storage=storage,
        dledger_logs=entries,
        settings=settings,
    )
    if commitlogs or not entries:
        require_log(paths)
    return paths


def require_log(paths: StorePaths) -> None:
    """Raise NotAStoreError if a folder of the log is not there, as when it is not mounted."""
    root, storage = paths.root, paths.storage
    missing = next((log for log in paths.commitlogs if not is_folder(storage, log)), None)
    if missing is not None:
        refuse_part(root, storage)
        raise NotAStoreError(
            f"{root} is not a RocketMQ store: there is no folder {missing}; give the folder "
            "that holds commitlog/, or the log's own folders with `commitlogs=`"
            f"{_found_instead(root, storage)}"
        )


_OLD_KEYS: Final = {"consumequeue": "storePathConsumeQueue", "index": "storePathIndex"}


def _elsewhere(conf: BrokerSettings, root: Path, name: str, storage: Storage) -> Path | None:
    """Return a folder that settings name, if it is there and the root has none."""
    folder = other_folder(conf, root, _OLD_KEYS[name])
    if folder is None or is_folder(storage, root / name) or not is_folder(storage, folder):
        return None
    return folder
