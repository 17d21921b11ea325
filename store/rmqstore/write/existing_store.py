"""What an existing store requires of a writer: what is refused, the sizes of files, index tags."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from rmqstore.errors import (
    OptionError,
    RmqStoreError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.format.columns.dispatch_requests import key_hashes, tag_key
from rmqstore.format.layout import DELAY_LEVELS_MS
from rmqstore.storage.broker.rocksdb_tables import database_folders
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.index_files import (
    IndexFile,
    IndexSizes,
    find_sizes,
    find_sizes_in_any,
    index_files,
    was_ended,
)
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.recovery.delay_levels import find_delay_levels

logger = logging.getLogger(__name__)

_NEWEST_ITEMS = 64

_BROKERS_LOCK = b"lock"  # what a broker writes into the file


def has_tag_items(paths: StorePaths, log: CommitLog) -> bool:
    """Return whether tags are to be added to the index of a store, which is not changed yet.

    Brokers from 5.4 on put one more item for each record with tags, ``topic#T#tags``. No file says
    which release wrote it, but every such broker makes the folder ``rocksdbstore``. In a copy
    without that folder the newest items of the index show it. Brokers before 5.4 never ask for the
    additional items, so a store that went back to such a broker comes to no harm by them.

    Args:
        paths: the files of the store.
        log: its log.
    """
    if LOCAL.exists(paths.rocksdb_store):
        return True
    files = index_files(paths.index)
    if not files:
        return False
    try:
        sizes = find_sizes_in_any(files, IndexSizes.of(StoreConfig()))
        return any(_hold_tags(path, sizes, log) for path in files[-2:])
    except RmqStoreError as err:  # a repair builds the index again
        logger.info("%s: it does not show whether tags are indexed", err)
        return False


def _hold_tags(path: Path, sizes: IndexSizes, log: CommitLog) -> bool:
    """Return whether an item of a record's tags is among the newest items of a file."""
    items = IndexFile(path, sizes).newest_items(_NEWEST_ITEMS)
    for place in np.unique(items["physical_offset"]).tolist():
        try:
            message = log.get(place, check_crc=False)
        except (RmqStoreError, LookupError):  # a crash may leave items without a record
            continue
        if not message.tags:
            continue
        (key_hash,) = key_hashes([message.topic], [tag_key(message.tags)]).ravel()
        if ((items["physical_offset"] == place) & (items["key_hash"] == key_hash)).any():
            return True
    return False


def require_local(paths: StorePaths) -> None:
    """Refuse a store that does not lie on a local disk.

    Raises:
        UnsupportedFeatureError: it does not.
    """
    if paths.storage is not LOCAL:
        raise UnsupportedFeatureError(
            f"{paths.root} is not on a local disk: such a store can be read, not written"
        )


def require_no_old_broker(paths: StorePaths) -> None:
    """Refuse a store that is open, or was not closed, and has no lock file of a broker.

    Brokers before 4.2 make no lock, so one of them may be running on the store.

    Raises:
        StoreStateError: it is such a store.

    Source: DefaultMessageStore.java#start.
    """
    if not paths.has_abort or paths.has_our_abort:
        return
    try:
        start = LOCAL.read_bytes(paths.lock, len(_BROKERS_LOCK))
    except FileNotFoundError:
        start = b""
    if start != _BROKERS_LOCK:
        raise StoreStateError(
            f"{paths.abort} says that a broker has the store open or died with it open, and "
            "no broker has made a lock file beside it. Brokers before 4.2 make none, so "
            "one may be running on it: stop it, and then say so with `broker_stopped=True`"
        )


def require_writable(paths: StorePaths) -> None:
    """Refuse a store that cannot be written.

    Raises:
        UnsupportedFeatureError: its queues or its log are of a kind that cannot be written.
    """
    if paths.rocksdb_queues is not None:
        raise UnsupportedFeatureError(
            f"{paths.rocksdb_queues} holds RocksDB queues, which cannot be written"
        )
    databases = database_folders(paths.config, LOCAL, "topics.json")
    if databases:
        raise UnsupportedFeatureError(
            f"{databases[0]} holds the topics of the broker in RocksDB, which cannot be written: "
            "the queues of new messages would not be known to it"
        )
    if paths.dledger_logs:
        raise UnsupportedFeatureError(
            f"{paths.dledger_logs[0]} holds a DLedger CommitLog, which a quorum of brokers writes; "
            "nobody else may append to the store"
        )


def existing_config(paths: StorePaths, log: CommitLog, config: StoreConfig) -> StoreConfig:
    """Return the sizes of a store's files, whether its index holds tags, and its delay levels.

    The sizes of ``config`` stay for those kinds of files that the store does not have yet.

    Raises:
        StoreStateError: files of one kind differ in length, or no sizes fit an index file.
    """
    changes: dict[str, int | None] = {"index_tags": config.index_tags or has_tag_items(paths, log)}
    if log.segments:
        lengths = {LOCAL.size(segment.path) for segment in log.segments} - {0}
        if len(lengths) > 1:
            raise StoreStateError(
                f"{log.folders}: files of {sorted(lengths)} bytes; "
                "a broker requires all files to have the same size"
            )
        size = next(iter(lengths), config.mapped_file_size_commit_log)
        odd = next((segment for segment in log.segments if segment.start % size), None)
        if odd is not None:
            raise StoreStateError(
                f"{odd.path}: offset {odd.start} is not a multiple of {size} bytes, "
                "the size of this store's log files; the file was renamed, "
                "or all files are empty and mappedFileSizeCommitLog must be given"
            )
        changes["mapped_file_size_commit_log"] = size
    folders = paths.queue_folders
    for name, topics, files_of in (
        ("mapped_file_size_consume_queue", folders.topics, folders.queue_files),
        ("mapper_file_size_batch_consume_queue", folders.batch_topics, folders.batch_files),
    ):
        queue = next((queue for topic in topics() for queue in files_of(topic)), None)
        if queue is not None:
            changes[name] = LOCAL.size(queue)
    files = [path for path in index_files(paths.index) if was_ended(path)]
    if files:
        sizes = find_sizes(files[0], IndexSizes.of(config))
        changes |= {"max_hash_slot_num": sizes.n_slots, "max_index_num": sizes.n_items}
    if config.delay_levels == DELAY_LEVELS_MS and not find_delay_levels(paths, log).are_known:
        changes["delay_levels"] = None
    try:
        return replace(config, **changes)  # type: ignore[arg-type]  # sizes all of them
    except OptionError as err:
        raise StoreStateError(
            f"{paths.root} has files of sizes that no broker uses: {err}"
        ) from err
