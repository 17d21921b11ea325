"""``rmqstore.open`` and ``rmqstore.create``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Literal, Unpack, overload

from rmqstore.errors import (
    NotAStoreError,
    OptionError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.query.arguments import FolderArguments
from rmqstore.query.selection import require_arguments
from rmqstore.read.tiered.opening import open_session
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Storage
from rmqstore.storage.folders.find import find_store
from rmqstore.storage.remote.location import is_uri, locate
from rmqstore.store.message_store import MessageStore
from rmqstore.write.messages import WriteSpec
from rmqstore.write.writer import StoreWriter


@overload
def open_for(
    path: str | os.PathLike[str],
    mode: Literal["r"] = "r",
    *,
    broker_name: str | None = None,
    ignore_log_end: bool = False,
    storage: Storage = LOCAL,
    tiered: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, object] | None = None,
    filesystem: object = None,
    **folders: Unpack[FolderArguments],
) -> MessageStore: ...


@overload
def open_for(
    path: str | os.PathLike[str],
    mode: Literal["a"],
    *,
    spec: WriteSpec | None = None,
    config: StoreConfig | None = None,
    truncate: bool = False,
    check_log: bool = False,
    **folders: Unpack[FolderArguments],
) -> StoreWriter: ...


def open_for(
    path: str | os.PathLike[str],
    mode: str = "r",
    *,
    broker_name: str | None = None,
    ignore_log_end: bool = False,
    spec: WriteSpec | None = None,
    config: StoreConfig | None = None,
    truncate: bool = False,
    check_log: bool = False,
    storage: Storage = LOCAL,
    tiered: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, object] | None = None,
    filesystem: object = None,
    **folders: Unpack[FolderArguments],
) -> MessageStore | StoreWriter:
    """Open the store at ``path``: to read (``mode="r"``) or to append to (``mode="a"``).

    Args:
        path: the folder that holds ``commitlog/``, or the DLedger log ``dledger-*/data``. A reader
            also takes the URI of a folder in object storage or HDFS, such as ``s3://bucket/store``.
            A folder of tiered storage is read alone.
        mode: a reader changes nothing and may be opened beside a running broker. A writer holds the
            store's lock, and first repairs what a crash has left.
        broker_name: value of column ``brokerName``; by default it is read from the store.
        ignore_log_end: read on after the end of a log that was not closed.
        spec: how appended messages are made.
        config: sizes of new files, for kinds of which the store has no file yet.
        truncate: cut a damaged log even if good records follow; what is cut is kept under
            ``.rmqstore/cut``.
        check_log: for a writer: walk the last file of the log to find its end, and look at every
            queue, even if the last writer noted the end and the bytes of the log prove it.
        storage: for a reader: what the files are read from, if not the local disk.
        tiered: for a reader: the tiered storage with the older messages of the store: the broker's
            ``tieredStoreFilePath``, or its folder ``<hash>_<cluster>/<broker>`` in it.
        storage_options: for a reader: how to reach the storage that a URI names, such as
            ``endpoint``, ``region`` and ``anonymous``; see ``docs/remote.md``.
        filesystem: for a reader: the file system that has ``path``, of ``pyarrow.fs`` or fsspec.
        folders: what lies elsewhere: ``commitlogs``, the log's folders (the broker's
            ``storePathCommitLog``); ``consumequeue``, the queues'; ``index``, the index's;
            ``dledger_logs``, those of a DLedger log (``storePathDLedgerCommitLog``). Where
            ``path`` has the DLedger logs of several nodes, ``dledger_self_id`` names the node
            (``dLegerSelfId``).

    Raises:
        NotAStoreError: ``path`` is not a store; :func:`create` makes one.
        StoreLockedError: a broker or another writer holds the store that is to be written to.
        UnsupportedFeatureError: the store is of a kind that cannot be read, or written.
    """
    names = {*signature(open_for).parameters, *FolderArguments.__annotations__} - {"folders"}
    require_arguments(folders, names)
    if mode == "a" and is_uri(path):
        raise UnsupportedFeatureError(
            f"{path} is not on a local disk: such a store can be read, not written"
        )
    if storage is LOCAL:
        path, storage = locate(path, storage_options, filesystem)
    if mode == "r":
        session = open_session(
            path,
            broker_name=broker_name,
            ignore_log_end=ignore_log_end,
            storage=storage,
            tiered=tiered,
            **folders,
        )
        return MessageStore(session)
    if mode != "a":
        raise OptionError(f"mode {mode!r}: must be 'r' to read or 'a' to append")
    if tiered is not None:
        raise UnsupportedFeatureError(
            "tiered=: tiered storage is read only; leave it out to append"
        )
    return StoreWriter(
        find_store(path, storage=storage, **folders),
        config or StoreConfig(),
        spec=spec,
        truncate=truncate,
        check_log=check_log,
    )


def create(
    path: str | os.PathLike[str],
    *,
    config: StoreConfig | None = None,
    spec: WriteSpec | None = None,
) -> StoreWriter:
    """Make a new store, and open it for appending.

    Args:
        path: the folder that becomes the root of the store.
        config: the sizes of its files. A broker that opens the store must have the same sizes.
        spec: how appended messages are made.

    Raises:
        StoreStateError: there is a store already.
        UnsupportedFeatureError: the path is not on a local disk.
    """
    if is_uri(path):
        raise UnsupportedFeatureError(f"{path} is not on a local disk: no store is made there")
    base, disk = Path(locate(path)[0]), Disk()
    disk.keep_within(base)
    if is_store(base) and LOCAL.list_folder(base / "commitlog"):
        raise StoreStateError(f"{base} is a store already; open it with mode='a'")
    for folder in (base / "commitlog", base / "consumequeue", base / "config"):
        disk.make_folder(folder)
    return StoreWriter(find_store(base), config or StoreConfig(), disk, spec=spec)


def is_store(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is a store."""
    try:
        find_store(path)
    except NotAStoreError:
        return False
    return True
