"""Requirements of an existing store on a writer: refusals, sizes of files, the broker's release.

A broker cuts its log at the first record that it cannot read, and everything after it is lost. So a
record that only newer brokers know is written into a store only if its broker is known to be one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import (
    OptionError,
    RmqStoreError,
    StoreStateError,
    UnreadableFileError,
    UnsupportedFeatureError,
)
from rmqstore.format.columns.dispatch_requests import (
    have_units,
    key_hashes,
    read_requests,
    tag_key,
)
from rmqstore.format.columns.inner_batch import is_inner_batch
from rmqstore.format.framing import StopKind
from rmqstore.format.layout import (
    DELAY_LEVELS_MS,
    MAX_FILE_BYTES,
    MAX_V1_TOPIC_BYTES,
    MESSAGE_MAGIC_V2,
    SysFlag,
)
from rmqstore.storage.broker.broker_run import Release, earliest_release, parse_release
from rmqstore.storage.broker.rocksdb_tables import database_folders
from rmqstore.storage.broker.store_config import StoreConfig, named_size, sizes_of
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.mapped_file_queue import usual_size
from rmqstore.storage.files.paths import (
    QueueFolders,
    StorePaths,
    name_to_offset,
    offset_to_name,
    segment_files,
)
from rmqstore.storage.files.storage import is_folder, read_start
from rmqstore.storage.index_files import (
    IndexFile,
    IndexSizes,
    find_sizes_in_any,
    index_files,
    was_ended,
)
from rmqstore.storage.index_search import may_have_index_table
from rmqstore.storage.log.commitlog import CommitLog, misnamed_segments
from rmqstore.storage.log.walks import newest_windows, walk_forward, whole_records
from rmqstore.storage.log.writer_notes import read_commits
from rmqstore.storage.recovery.delay_levels import find_delay_levels
from rmqstore.write.queue_files import folder_set_aside, known_batch_topics
from rmqstore.write.truncation import RESIZED, LogChange

logger = logging.getLogger(__name__)

_NEWEST_ITEMS = 64
_CHECKED_FILES = 16  # of queues, whose lengths are compared
_LISTED_QUEUES = 256  # of a closed store; a recovery lists all of them anyway

_BROKERS_LOCK = b"lock"  # what a broker writes into the file
_LONG_TOPICS: Release = (5, 1)  # Source: MessageVersion.java, MESSAGE_VERSION_V2
_IPV6_HOSTS: Release = (4, 7)
_NEW_STORE: Release = (9999, 0)


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
    items = IndexFile(path, sizes).items(_NEWEST_ITEMS)
    for physical_offset in np.unique(items["physical_offset"]).tolist():
        try:
            message = log.get(physical_offset, with_body=False)
        except (RmqStoreError, LookupError):  # a crash may leave items without a record
            continue
        if not message.tags:
            continue
        (key_hash,) = key_hashes([message.topic], [tag_key(message.tags)]).ravel()
        of_record = items["physical_offset"] == physical_offset
        if (of_record & (items["key_hash"] == key_hash)).any():
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
    if read_start(LOCAL, paths.lock, len(_BROKERS_LOCK)) != _BROKERS_LOCK:
        raise StoreStateError(
            f"{paths.abort} says that a broker has the store open or died with it open, and "
            "no broker has made a lock file beside it. Brokers before 4.2 make none, so "
            "one may be running on it: stop it, and then say so with `broker_stopped=True`"
        )


def require_writable(paths: StorePaths) -> None:
    """Refuse a store that cannot be written.

    Raises:
        UnsupportedFeatureError: its queues or its log are of a kind that cannot be written.
        UnreadableFileError: a folder lies in the place of a file.
    """
    for path in (paths.lock, paths.checkpoint, paths.abort):
        if is_folder(LOCAL, path):
            raise UnreadableFileError(str(path), "a folder", "a file")
    kinds = (paths.queue_folders, paths.batch_folders)
    of_queues = (kind.queue(*key) for kind in kinds for key in kind.queues())
    looked_at = islice(of_queues, None if paths.has_abort else _LISTED_QUEUES)
    for folder in chain(paths.commitlogs, looked_at):
        for entry in LOCAL.list_folder(folder):
            if entry.is_folder and name_to_offset(entry.name) is not None:
                raise UnreadableFileError(str(folder / entry.name), "a folder", "a file")
    settings = {} if paths.settings is None else paths.settings.values
    if paths.rocksdb_queues is not None or "rocksdb" in settings.get("storeType", "").lower():
        raise UnsupportedFeatureError(
            f"{paths.rocksdb_queues or paths.root} holds RocksDB queues, which cannot be written"
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


def _require_log(paths: StorePaths, log: CommitLog, config: StoreConfig) -> None:
    """Refuse a store whose log is not in its place, or gone though it has queues.

    A broker deletes the queues of a store without a log when it starts. Behind a file with the name
    of another one a log seems to end, and what follows would be cut off and written over.

    Source: CommitLog.java#recoverNormally.
    """
    for path, start in misnamed_segments(LOCAL, paths.commitlogs):
        raise StoreStateError(
            f"{path}: the first record of the file says physical offset {start}: give "
            f"the file the name {offset_to_name(start)}, or move it out of the store"
        )
    for path in chain.from_iterable(segment_files(LOCAL, folder) for folder in paths.commitlogs):
        if path.name != (name := offset_to_name(int(path.name))):
            raise StoreStateError(f"{path}: give the file the name {name}, as a broker writes it")
    size = config.mapped_file_size_commit_log
    is_named = paths.settings is not None or size != StoreConfig().mapped_file_size_commit_log
    is_known = any(segment.size or is_named for segment in log.segments)
    if is_known or not _has_queue_files(paths):
        return
    lacking = "only an empty file" if log.segments else "no file"
    raise StoreStateError(
        f"{log.folders}: there is {lacking} of the log, to which the queues in {paths.root} lead, "
        "and a broker that starts deletes them. Put the files of the log back, or name the folders "
        "that hold them (`commitlogs=`, `conf=`); the length of an empty file is "
        "mappedFileSizeCommitLog. To begin again without these messages, move the folders of "
        "queues and of the index away first"
    )


def fit_log_files(disk: Disk, paths: StorePaths, log: CommitLog) -> None:
    """Give all files of a log one length, without which a broker does not start.

    Zeros are added to files that are too short, and cut from those that are too long. An empty
    file at the end stays as it is: a broker, and a repair, delete it.

    Raises:
        StoreStateError: a file that is too long has other bytes than zeros there.
    """
    changes = plan_sizes(paths, log)
    for _, path, length, size in changes:
        logger.warning(
            "%s: the file has %d bytes and should have %d; zeros are %s",
            path, length, size, "added" if length < size else "cut off",
        )  # fmt: skip
        disk.resize(path, size)
    if changes:
        log.refresh()


def plan_sizes(paths: StorePaths, log: CommitLog) -> list[LogChange]:
    """Return what :func:`fit_log_files` changes.

    Raises:
        StoreStateError: as :func:`fit_log_files` does.
    """
    files = [(segment.start, LOCAL.size(segment.path)) for segment in log.segments]
    size = _expected_log_size(paths, log, files)
    changes = []
    for segment, (_, length) in zip(log.segments, files, strict=True):
        if length == size or (not length and segment is log.segments[-1]):
            continue
        if length > size:
            with LOCAL.open(segment.path) as file:
                written = file.written_end(length)
            if written > size:
                raise StoreStateError(
                    f"{segment.path}: the file has {length} bytes, of which {written} are written, "
                    f"and should have {size}; a broker does not start on it. Get it from a backup "
                    "or a replica"
                )
        changes.append(LogChange(RESIZED, segment.path, length, size))
    return changes


def writable_config(
    paths: StorePaths, log: CommitLog, config: StoreConfig | None = None
) -> StoreConfig:
    """Return what :func:`existing_config` does, of a store that a writer may open.

    Args:
        paths: the files of the store.
        log: its log.
        config: the sizes of new files, if the caller names them.

    Raises:
        StoreStateError: it has queues and no log to which they lead, files of one kind differ in
            length, or nothing shows the sizes of files that it lacks.
    """
    named = config or sizes_of(paths.settings)
    _require_log(paths, log, named)
    sizes = existing_config(paths, log, named, is_fitted=True)
    if config is None:
        _require_known_sizes(paths, log, sizes)
    return sizes


def existing_config(
    paths: StorePaths, log: CommitLog, config: StoreConfig, *, is_fitted: bool = False
) -> StoreConfig:
    """Return the sizes of a store's files, whether its index holds tags, and its delay levels.

    The sizes of ``config`` stay for those kinds of files that the store does not have yet.

    Args:
        paths: the files of the store.
        log: its log.
        config: the sizes of new files.
        is_fitted: whether files of the log that differ in length will be made fit; see
            :func:`fit_log_files`.

    Raises:
        StoreStateError: files of one kind differ in length, or no sizes fit an index file.
    """
    changes: dict[str, int | None] = {"index_tags": config.index_tags or has_tag_items(paths, log)}
    if log.segments:
        size = _log_file_size(paths, log, config, is_fitted=is_fitted)
        changes["mapped_file_size_commit_log"] = size
    for name, folders in (
        ("mapped_file_size_consume_queue", paths.queue_folders),
        ("mapper_file_size_batch_consume_queue", paths.batch_folders),
    ):
        checked = islice(_queue_files(paths, folders), _CHECKED_FILES)
        sizes_of_files = [(int(file.name), LOCAL.size(file)) for file in checked]
        too_long = [length for _, length in sizes_of_files if length > MAX_FILE_BYTES]
        size = next(iter(too_long), usual_size(sizes_of_files))
        if size:
            changes[name] = size
    ended = [path for path in index_files(paths.index) if was_ended(path)]
    if ended and (sizes := _index_sizes(paths, ended, config)) is not None:
        changes |= {"max_hash_slot_num": sizes.n_slots, "max_index_num": sizes.n_items}
    if config.delay_levels == DELAY_LEVELS_MS and not find_delay_levels(paths, log).are_known:
        changes["delay_levels"] = None
    try:
        return replace(config, **changes)  # type: ignore[arg-type]  # sizes all of them
    except OptionError as err:
        raise StoreStateError(
            f"{paths.root} has files of sizes that no broker uses: {err}"
        ) from err


def _queue_files(paths: StorePaths, folders: QueueFolders) -> Iterator[Path]:
    """Yield the files of queues, and those that an interrupted rebuild has set aside."""
    aside = replace(folders, root=folder_set_aside(paths, folders))
    for kind in (folders, aside):
        for topic in kind.topics():
            yield from kind.files(topic)


def _has_queue_files(paths: StorePaths) -> bool:
    kinds = (paths.queue_folders, paths.batch_folders)
    return any(any(_queue_files(paths, kind)) for kind in kinds)


def _index_sizes(paths: StorePaths, files: list[Path], config: StoreConfig) -> IndexSizes | None:
    """Return the sizes of index files; None if none is intact, and the settings name the sizes."""
    try:
        return find_sizes_in_any(files, IndexSizes.of(config))
    except StoreStateError:
        if named_size(paths.settings, "max_hash_slot_num") is None:
            raise
        return None


def _require_known_sizes(paths: StorePaths, log: CommitLog, config: StoreConfig) -> None:
    """Refuse a store whose broker may have other sizes than those in which files are made.

    A broker does not start on queues of another size, and finds no keys in such index files.

    Raises:
        StoreStateError: it is such a store.

    Source: MappedFileQueue.java#load.
    """
    if paths.settings is not None:
        return
    usual = StoreConfig()
    size = config.mapped_file_size_commit_log
    is_usual_index = IndexSizes.of(config) == IndexSizes.of(usual)
    showing = f"files of the log of {size:,} bytes show"
    unknown = []
    if not log.segments and not is_usual_index:
        showing, unknown = f"those of the index in {paths.index} show", ["log"]
    elif size == usual.mapped_file_size_commit_log or not any(
        log.written_end(segment) > segment.start for segment in log.segments
    ):
        return
    for kind, name, folders in (
        ("queue", "mapped_file_size_consume_queue", paths.queue_folders),
        ("BatchConsumeQueue", "mapper_file_size_batch_consume_queue", paths.batch_folders),
    ):
        in_batches = kind != "queue"
        if getattr(config, name) != getattr(usual, name):
            continue
        if in_batches and not known_batch_topics(paths):
            continue
        has_files = any(map(LOCAL.size, _queue_files(paths, folders)))
        unknown += [] if has_files or not _has_messages(log, in_batches=in_batches) else [kind]
    if config.message_index_enable and is_usual_index:
        has_index = any(map(was_ended, index_files(paths.index))) or may_have_index_table(paths)
        unknown += [] if has_index or not _has_keys(log, config) else ["index"]
    if unknown:
        raise StoreStateError(
            f"{paths.root} has no {' and no '.join(unknown)} file that shows how long such files "
            f"are, and {showing} that its broker does not use "
            "RocketMQ's defaults: name the broker's file (`conf=`)"
        )


def _has_messages(log: CommitLog, *, in_batches: bool) -> bool:
    """Return whether a record belongs in a BatchConsumeQueue, or in an ordinary one."""
    return any(
        (have_units(records.column("sys_flag")) & (is_inner_batch(records) == in_batches)).any()
        for _, records in whole_records(log, log.min_offset, log.max_offset)
    )


def _has_keys(log: CommitLog, config: StoreConfig) -> bool:
    """Return whether a record has keys, as nearly all have, so that there will be an index file."""
    return any(
        len(read_requests(window.data, records, config.rules).key_rows)
        for window, records in whole_records(log, log.min_offset, log.max_offset)
    )


def _expected_log_size(paths: StorePaths, log: CommitLog, files: Sequence[tuple[int, int]]) -> int:
    """Return the length that files of a log should have, 0 if nothing shows it.

    A file alone does not show whether it was cut. If the broker's file names a greater length, and
    no blank closes the file, it was.

    Args:
        paths: the files of the store.
        log: its log.
        files: offset and length of each file of the log.
    """
    size = usual_size(files)
    named = named_size(paths.settings, "mapped_file_size_commit_log")
    if len(files) != 1 or named is None or named <= size:
        return size
    segment = log.segments[0]
    windows = walk_forward(log, segment, segment.start, segment.end)
    is_closed = any(window.records.kind is StopKind.BLANK for window in windows)
    return size if is_closed else named


def _log_file_size(
    paths: StorePaths, log: CommitLog, config: StoreConfig, *, is_fitted: bool
) -> int:
    """Return the size of the files of a log that has some.

    Raises:
        StoreStateError: they differ in length, or the name of one does not fit that length.
    """
    lengths = [(segment.start, LOCAL.size(segment.path)) for segment in log.segments]
    if not is_fitted and plan_sizes(paths, log):
        raise StoreStateError(
            f"{log.folders}: files of {sorted({length for _, length in lengths})} bytes; "
            "a broker requires all files to have the same size"
        )
    size = _expected_log_size(paths, log, lengths) or config.mapped_file_size_commit_log
    odd = next((segment for segment in log.segments if segment.start % size), None)
    if odd is not None:
        raise StoreStateError(
            f"{odd.path}: offset {odd.start} is not a multiple of {size} bytes, "
            "the size of this store's log files; the file was renamed, "
            "or all files are empty and mappedFileSizeCommitLog must be given"
        )
    return size


class BrokerRelease:
    """The release of the broker that will open a store, as far as it is known.

    Args:
        paths: the files of the store.
        log: its log.
        given: the release that the caller names.
    """

    def __init__(self, paths: StorePaths, log: CommitLog, given: str | None) -> None:
        self._paths = paths
        self._log = log
        self._known = None if given is None else parse_release(given)
        # No broker has ever opened a store without a checkpoint and without a file of the log.
        is_new = not log.segments and not paths.storage.exists(paths.checkpoint)
        if given is None and (is_new or _is_all_ours(paths, log)):
            self._known = _NEW_STORE

    def require(self, topics: Iterable[str], sys_flags: NDArray[np.int32]) -> None:
        """Refuse records that the broker of the store may not be able to read.

        Args:
            topics: the distinct topics of the records.
            sys_flags: their sysFlag, (n,).

        Raises:
            UnsupportedFeatureError: its release is not known to be new enough.
        """
        long = next((name for name in topics if len(name.encode()) > MAX_V1_TOPIC_BYTES), None)
        if long is not None:
            what = f"a topic of more than {MAX_V1_TOPIC_BYTES} bytes ({long!r})"
            self._require(_LONG_TOPICS, what)
        if (sys_flags & np.int32(SysFlag.HOSTS_V6)).any():
            self._require(_IPV6_HOSTS, "an IPv6 host")

    def _require(self, since: Release, what: str) -> None:
        if self._known is None:
            self._known = self._earliest()
        if self._known < since:
            number = f"{since[0]}.{since[1]}"
            raise UnsupportedFeatureError(
                f"{self._paths.root}: brokers before {number} cannot read a record with "
                f"{what}; they cut the log there, and lose it and all that follows. Nothing "
                "in the store shows that its broker is newer; if it is, say so with "
                f"`broker_version={number}`"
            )

    def _earliest(self) -> Release:
        """Return the earliest release that can have left the files and the newest records."""
        seen = parse_release(earliest_release(self._paths))
        for window in islice(newest_windows(self._log), 1):
            for _, headers, is_complete in window.headers():
                valid = headers.take(is_complete)
                if (valid.column("magic") == MESSAGE_MAGIC_V2).any():
                    seen = max(seen, _LONG_TOPICS)
                if (valid.column("sys_flag") & np.int32(SysFlag.HOSTS_V6)).any():
                    seen = max(seen, _IPV6_HOSTS)
        return seen


def _is_all_ours(paths: StorePaths, log: CommitLog) -> bool:
    """Return whether writers of ours have written every record of a log."""
    end = 0
    file_bytes = max((segment.size for segment in log.segments), default=0)
    try:
        commits = read_commits(paths)
    except RmqStoreError:  # then it is not known
        return False
    for commit in commits:
        if commit.start is None or commit.end is None:
            continue
        segment = log.find(commit.start)
        is_next_file = segment is not None and commit.start == segment.start
        # The rest of a file may be a blank.
        follows = commit.start == end or (is_next_file and 0 < commit.start - end < file_bytes)
        if not follows:
            return False
        end = commit.end
    return end > 0 and all(log.written_end(last) <= end for last in log.segments[-1:])
