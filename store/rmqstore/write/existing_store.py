"""What an existing store requires of a writer: stores that are refused, and the sizes of files."""

from __future__ import annotations

from dataclasses import replace

from rmqstore.errors import OptionError, StoreStateError, UnsupportedFeatureError
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.index.index_file import index_files, was_ended
from rmqstore.storage.index.sizes import IndexSizes, find_sizes
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.write.indexed_tags import has_tag_items


def require_local(paths: StorePaths) -> None:
    """Refuse a store that does not lie on a local disk.

    Raises:
        UnsupportedFeatureError: it does not.
    """
    if paths.storage is not LOCAL:
        raise UnsupportedFeatureError(
            f"{paths.root} is not on a local disk: such a store can be read, not written"
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
    if paths.dledger_logs:
        raise UnsupportedFeatureError(
            f"{paths.dledger_logs[0]} holds a DLedger CommitLog, which a quorum of brokers writes; "
            "nobody else may append to the store"
        )


def existing_config(paths: StorePaths, log: CommitLog, config: StoreConfig) -> StoreConfig:
    """Return the sizes of a store's files, and whether its index holds tags.

    The sizes of ``config`` stay for those kinds of files that the store does not have yet.

    Raises:
        StoreStateError: files of one kind differ in length, or no sizes fit an index file.
    """
    changes: dict[str, int] = {"index_tags": config.index_tags or has_tag_items(paths, log)}
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
    queue = next((queue for topic in paths.topics() for queue in paths.queue_files(topic)), None)
    if queue is not None:
        changes["mapped_file_size_consume_queue"] = LOCAL.size(queue)
    queue = next(
        (queue for topic in paths.batch_topics() for queue in paths.batch_files(topic)), None
    )
    if queue is not None:
        changes["mapper_file_size_batch_consume_queue"] = LOCAL.size(queue)
    files = [path for path in index_files(paths.index) if was_ended(path)]
    if files:
        sizes = find_sizes(files[0], IndexSizes.of(config))
        changes |= {"max_hash_slot_num": sizes.n_slots, "max_index_num": sizes.n_items}
    try:
        return replace(config, **changes)  # type: ignore[arg-type]  # sizes all of them
    except OptionError as err:
        raise StoreStateError(
            f"{paths.root} has files of sizes that no broker uses: {err}"
        ) from err
