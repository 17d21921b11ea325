"""``rmqstore.open``, ``rmqstore.open_cluster`` and ``rmqstore.create``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack, overload

from rmqstore.errors import (
    NotAStoreError,
    OptionError,
    StoreLockedError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.query.arguments import FolderArguments, takes
from rmqstore.query.selection import require_arguments
from rmqstore.read.store_parts import open_parts, open_ref
from rmqstore.read.store_ref import AnyPath, StoreRef, find_stores
from rmqstore.storage.broker.folders import find_store, read_brokers, refuse_part
from rmqstore.storage.broker.store_config import (
    StoreConfig,
    log_folders,
    read_conf,
    root_of,
    sizes_of,
)
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import BrokerSettings
from rmqstore.storage.files.remote_location import (
    is_live,
    is_pattern,
    is_uri,
    locate,
)
from rmqstore.storage.files.storage import Storage
from rmqstore.store.cluster import StoreCluster
from rmqstore.store.message_store import MessageStore
from rmqstore.write.messages import WriteSpec
from rmqstore.write.writer import StoreWriter

_BROKERS: Final = "rmqstore.live.opening"  # found by name: the core works without it
# not Sequence[str], which a single path is too
Several: TypeAlias = (
    list[str] | list[Path] | tuple[AnyPath, ...] | Mapping[str, AnyPath | Sequence[AnyPath]]
)


class OpenTogether(TypedDict, total=False):
    """The keyword arguments of :func:`open_for` for one store, and for several that are read."""

    ignore_log_end: bool
    storage_options: Mapping[str, object] | None


class OpenToRead(OpenTogether, FolderArguments, total=False):
    """Those for one store that is read."""

    broker_name: str | None
    storage: Storage
    tiered: AnyPath | None
    filesystem: object


class OpenToAppend(FolderArguments, total=False):
    """Those for one store that is appended to."""

    spec: WriteSpec | None
    config: StoreConfig | None
    truncate: bool
    check_log: bool
    broker_stopped: bool


class OpenArguments(OpenToRead, OpenToAppend, total=False):
    """All of them."""


_DEFAULTS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(OpenArguments.__annotations__),
    "ignore_log_end": False,
    "storage": LOCAL,
    "truncate": False,
    "check_log": False,
    "broker_stopped": False,
    "commitlogs": (),
    "dledger_logs": (),
}


@overload
def open_for(
    path: AnyPath | None = None, mode: Literal["r"] = "r", **arguments: Unpack[OpenToRead]
) -> MessageStore: ...


@overload
def open_for(
    path: Several, mode: Literal["r"] = "r", **arguments: Unpack[OpenTogether]
) -> StoreCluster: ...


@overload
def open_for(
    path: AnyPath | None, mode: Literal["a"], **arguments: Unpack[OpenToAppend]
) -> StoreWriter: ...


@takes(OpenArguments, _DEFAULTS, name="open")
def open_for(
    path: AnyPath | Several | None = None, mode: str = "r", **arguments: Unpack[OpenArguments]
) -> object:
    """Open the store at ``path``: to read (``mode="r"``) or to append to (``mode="a"``).

    Several stores, named by a list, are read as one.

    Args:
        path: the folder that holds ``commitlog/``, or the DLedger log ``dledger-*/data``. A reader
            also takes the URI of a folder in object storage or HDFS, such as ``s3://bucket/store``.
            A folder of tiered storage is read alone. The address of name servers, such as
            ``rocketmq://ns1:9876;ns2:9876``, opens running brokers (``open_live``). A list of
            paths and patterns such as ``/data/*/store``, or a table of them by broker name, is for
            :func:`open_cluster`. It may be left out with ``conf``.
        mode: a reader changes nothing and may be opened beside a running broker. A writer holds the
            store's lock, and first repairs what a crash has left.
        broker_name: value of column ``brokerName``; by default it is read from the store.
        ignore_log_end: read on after the end of a log that was not closed.
        spec: how appended messages are made.
        config: sizes of new files, for kinds of which the store has no file yet; by default those
            of ``conf``, else a broker's defaults.
        truncate: cut a damaged log even if good records follow; what is cut is kept under
            ``.rmqstore/cut``.
        check_log: for a writer: walk the last file of the log to find its end, and look at every
            queue, even if the last writer noted the end and the bytes of the log prove it.
        broker_stopped: for a writer: no broker runs on the store. A store that was not closed and
            has no lock file is refused without it, because brokers before 4.2 make no lock.
        storage: for a reader: what the files are read from, if not the local disk.
        tiered: for a reader: the tiered storage with the older messages of the store: the broker's
            ``tieredStoreFilePath``, or its folder ``<hash>_<cluster>/<broker>`` in it.
        storage_options: for a reader: how to reach the storage that a URI names, such as
            ``endpoint``, ``region`` and ``anonymous``; see ``docs/remote.md``.
        filesystem: for a reader: the file system that has ``path``, of ``pyarrow.fs`` or fsspec.
        commitlogs: the log's folders, where outside of ``path`` (``storePathCommitLog``).
        consumequeue: the queues' folder, where outside of ``path``.
        index: the index's folder, where outside of ``path``.
        dledger_logs: folders of a DLedger log, where outside (``storePathDLedgerCommitLog``).
        dledger_self_id: the node whose DLedger log to read, of several (``dLegerSelfId``).
        conf: the broker's properties file (``broker.conf``), which names all of these, the root,
            the sizes of files and the broker's name; what is given beside it goes first.

    Raises:
        NotAStoreError: ``path`` is not a store; :func:`create` makes one.
        StoreLockedError: a broker or another writer holds the store that is to be written to.
        UnsupportedFeatureError: the store is of a kind that cannot be read, or written.
    """
    require_arguments(arguments, ["path", "mode", *OpenArguments.__annotations__])
    given = {**_DEFAULTS, **arguments}
    storage = given["storage"]
    storage_options = given["storage_options"]
    asked = [name for name, value in arguments.items() if value and value is not LOCAL]
    if path is not None and not isinstance(path, (str, os.PathLike)):
        if mode != "r":
            raise OptionError(f"mode {mode!r}: several stores can only be read together; open one")
        of_one = [name for name in asked if name not in OpenTogether.__annotations__]
        if of_one:
            named = ", ".join(of_one)
            raise OptionError(f"{named}: for one store only, but a list of stores is opened")
        ignore_log_end = given["ignore_log_end"]
        return open_cluster(path, ignore_log_end=ignore_log_end, storage_options=storage_options)
    if path is not None and is_live(path):
        of_stores = [name for name in asked if name not in ("spec", "storage_options")]
        opening = import_module(_BROKERS)
        return opening.open_brokers(path, mode, given["spec"], storage_options, of_stores)
    folders = {name: given[name] for name in FolderArguments.__annotations__}
    path = root_of(path, given["conf"])
    if is_pattern(path) and not is_uri(path) and not LOCAL.exists(os.fspath(path)):
        raise NotAStoreError(
            f"{path} is not a store but a pattern: in a list, [{str(path)!r}], it names the stores "
            "that it matches, which are read as one"
        )
    if mode != "r":
        require_appendable(path, mode, given["tiered"])
    if storage is LOCAL:
        path, storage = locate(path, storage_options, given["filesystem"])
    if mode == "r":
        parts = open_parts(
            path,
            broker_name=given["broker_name"],
            ignore_log_end=given["ignore_log_end"],
            storage=storage,
            tiered=given["tiered"],
            **folders,
        )
        return MessageStore(parts)
    of_writer = {name: given[name] for name in OpenToAppend.__annotations__ if name not in folders}
    return StoreWriter(find_store(path, storage=storage, **folders), **of_writer)


def require_appendable(
    path: AnyPath, mode: str = "a", tiered: str | os.PathLike[str] | None = None
) -> None:
    """Refuse what a store cannot be opened with to append to it.

    Raises:
        OptionError: it is not the mode.
        UnsupportedFeatureError: the store is not on a local disk, or in tiered storage.
    """
    if mode != "a":
        raise OptionError(f"mode {mode!r}: must be 'r' to read or 'a' to append")
    if is_uri(path):
        raise UnsupportedFeatureError(
            f"{path} is not on a local disk: such a store can be read, not written"
        )
    if tiered is not None:
        raise UnsupportedFeatureError(
            "`tiered`: tiered storage is read only; leave it out to append"
        )


def create(
    path: AnyPath | None = None,
    *,
    config: StoreConfig | None = None,
    spec: WriteSpec | None = None,
    conf: AnyPath | None = None,
) -> StoreWriter:
    """Make a new store, and open it for appending.

    Args:
        path: the folder that becomes the root of the store; it may be left out with ``conf``.
        config: the sizes of its files; by default those of ``conf``, else a broker's defaults. A
            broker that opens the store must have the same sizes.
        spec: how appended messages are made.
        conf: the properties file of the broker that will open the store.

    Raises:
        StoreStateError: there is a store already.
        NotAStoreError: the path is a part of a store.
        UnsupportedFeatureError: the path is not on a local disk, or ``conf`` wants the log outside
            of the root.
    """
    base, settings = new_root(path, conf)
    disk = Disk()
    disk.keep_within(base)
    for folder in (base / "commitlog", base / "consumequeue", base / "config"):
        disk.make_folder(folder)
    return StoreWriter(
        find_store(base, conf=settings), config or sizes_of(settings), disk, spec=spec
    )


def new_root(
    path: AnyPath | None, conf: AnyPath | None = None
) -> tuple[Path, BrokerSettings | None]:
    """Return the root of a store that :func:`create` can make, and the settings in ``conf``.

    Raises:
        StoreStateError, NotAStoreError, UnsupportedFeatureError: as :func:`create`.
    """
    path = root_of(path, conf)
    if is_uri(path):
        raise UnsupportedFeatureError(f"{path} is not on a local disk: no store is made there")
    settings = None if conf is None else read_conf(conf)
    if settings is not None and log_folders(settings, Path(path)):
        raise UnsupportedFeatureError(
            f"{settings.file}: storePathCommitLog is not the folder commitlog of {path}, and a new "
            "store is made in one folder: let the broker make it"
        )
    base = Path(locate(path)[0])
    refuse_part(base, LOCAL)
    if is_store(base) and LOCAL.list_folder(base / "commitlog"):
        raise StoreStateError(f"{base} is a store already; open it with mode='a'")
    return base, settings


@contextmanager
def created(
    path: AnyPath | None, *, spec: WriteSpec | None = None, conf: AnyPath | None = None
) -> Iterator[StoreWriter]:
    """Make a new store as :func:`create` does, which an error before the first commit removes."""
    base, _ = new_root(path, conf)
    was_there = LOCAL.exists(base)
    before = _names(base)
    try:
        with create(path, spec=spec, conf=conf) as writer:
            yield writer
    except BaseException as err:
        if not (isinstance(err, StoreLockedError) or LOCAL.list_folder(base / "commitlog")):
            disk = Disk()
            made = [base]
            if was_there:
                disk.keep_within(base)
                made = [base / name for name in sorted(_names(base) - before)]
            for folder in made:
                disk.delete_tree(folder)
        raise


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in LOCAL.list_folder(folder)}


def is_store(path: AnyPath, **folders: Unpack[FolderArguments]) -> bool:
    """Return whether a path is a store."""
    try:
        find_store(path, **folders)
    except NotAStoreError:
        return False
    return True


def open_cluster(
    brokers: Mapping[str, AnyPath | Sequence[AnyPath]] | Sequence[AnyPath] | AnyPath = (),
    *,
    conf: AnyPath | Sequence[AnyPath] = (),
    ignore_log_end: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> StoreCluster:
    """Open the stores of several brokers to read them as one.

    Args:
        brokers: the paths or URIs of stores by broker name, several for a master and its replicas;
            a list of paths, whose names the stores give; or the path of a ``.json`` or ``.toml``
            file with stores by broker name. A path with ``*``, ``?`` or ``[`` is a pattern, for
            the folders that it matches.
        conf: the properties files of brokers on this host, whose stores are read too.
        ignore_log_end: read on after the end of a log that was not closed.
        storage_options: how to reach the storage that URIs name.

    Raises:
        NotAStoreError: a path is not a store.
        OptionError: two stores have the same broker name and are not replicas of each other, a path
            is named twice, or a pattern matches no folder.
    """
    if isinstance(brokers, (str, os.PathLike)):
        brokers = read_brokers(os.fspath(brokers))
    files = [conf] if isinstance(conf, (str, os.PathLike)) else conf
    common = StoreRef("", ignore_log_end=ignore_log_end, storage_options=storage_options or {})
    stores = find_stores(brokers, common, files)
    if not stores:
        raise OptionError("`brokers`: name at least one store")
    with ExitStack() as stack:
        cluster = StoreCluster([stack.enter_context(MessageStore(open_ref(ref))) for ref in stores])
        stack.pop_all()
    return cluster
