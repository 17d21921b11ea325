"""Predicts the start of a broker on a store: whether it starts, what it keeps and builds.

All of it was tried with RocketMQ 5.3.3; what it did with broken stores lies in
``tests/golden/broken.json``.

Source: MappedFileQueue.java#doLoad; DefaultMessageStore.java#load, #recover;
CommitLog.java#recoverNormally, #recoverAbnormally; ConsumeQueue.java#recover,
#putMessagePositionInfo; IndexService.java#load.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rmqstore.errors import (
    CorruptConfigError,
    CorruptDatabaseError,
    Finding,
    StoreFormatError,
    UnsupportedFeatureError,
    rendered,
)
from rmqstore.spans import FOREVER, QueueKey
from rmqstore.storage.broker.broker_run import may_be_before_5, read_checkpoint
from rmqstore.storage.broker.config_files import TOPICS, BrokerConfig, batch_topics_of
from rmqstore.storage.broker.store_config import StoreConfig, named_size
from rmqstore.storage.files.mapped_file_queue import usual_size
from rmqstore.storage.files.paths import (
    StorePaths,
    ext_folders,
    name_to_offset,
    offset_to_name,
    segment_files,
)
from rmqstore.storage.files.storage import Storage, is_folder
from rmqstore.storage.index_files import is_name
from rmqstore.storage.index_search import IndexTable
from rmqstore.storage.log.commitlog import CommitLog, misnamed_segments
from rmqstore.storage.queue.queue_set import built_end, misnamed_files, open_files
from rmqstore.storage.recovery.log_end import (
    LogEnd,
    count_after,
    end_in_last_files,
    end_of_broker,
    find_end_from,
    is_damaged_at,
)
from rmqstore.storage.recovery.store_ends import StoreEnds

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 8 << 20
_MESSAGE = '"length not matched message store config value"'


class BrokerStart(NamedTuple):
    """Where a starting broker ends the log, and from where on it builds units and items.

    Of records before ``built_from`` it builds nothing: a unit that is missing stays missing.
    """

    log_end: LogEnd
    built_from: int  # physical offset
    keys_until: int  # store time, ms; it deletes index files with later records
    cuts_queues: bool = False  # whether it looks for units that lead behind the end of the log
    builds_first: bool = False  # whether it does so when it has built, as after a crash
    by_chance: frozenset[Path] = frozenset()  # folders of queues of which it may keep anything

    @property
    def cuts_built(self) -> bool:
        """Whether it looks for such units among those that it has built."""
        return self.cuts_queues and self.builds_first

    def of_queue(self, paths: StorePaths, key: QueueKey) -> BrokerStart | None:
        """Return what it does with one queue; None if that is left to chance."""
        if not self.by_chance:  # the names of some topics are none of folders
            return self
        folders = {paths.queue_folders.queue(*key), paths.batch_folders.queue(*key)}
        return None if folders & self.by_chance else self


def foresee(
    paths: StorePaths, log: CommitLog, ends: StoreEnds, misplaced: Sequence[Finding] = ()
) -> BrokerStart | None:
    """Return what a starting broker would do; None for a log or queues that are not read.

    It takes the log for built up to the last record that any queue has, of whichever kind. What it
    reads of files with the names of other places (``misplaced``) is as its arithmetic has it.
    Brokers before 5.0 look for the end of a log in its last three files, those of today from the
    file of that record on, and only the former build the unit of a record right after it; None if
    these differ, and nothing shows which broker will start, or in what kind of queues it builds.
    """
    if log.entry_segments or ends.why_unread is not None or is_by_chance(misplaced):
        return None
    by_chance = frozenset(Path(one.place).parent for one in misplaced if one.kind == "name")
    end = ends.log_end
    is_gone = not any(segment.size for segment in log.segments)
    if is_gone:  # it deletes all queues
        end = LogEnd(0, "", "", 0)
    in_rocksdb = ends.in_rocksdb
    units_end = -1 if in_rocksdb is None else in_rocksdb.checkpoint
    keys = (*paths.queue_folders.queues(), *paths.batch_folders.queues())
    for key in keys:
        with closing(open_files(paths, *key, log=log)) as queue:
            units_end = max(units_end, built_end(queue))
    if end is not None:
        found = end
        built_from = end.scanned_from
        keys_until = read_checkpoint(paths).index_msg_timestamp
    else:
        start = log.min_offset
        for segment in log.segments:
            if segment.size and segment.start <= max(units_end, 0):
                start = segment.start
        found = find_end_from(log, start)
        last_in_table = _last_in_table(paths)
        if not keys and units_end < 0 and not start and last_in_table < FOREVER:
            return None  # with queues in RocksDB, it does not build the record at 0
        built_from = min(units_end, last_in_table) + 1
        keys_until = FOREVER
        by_files = end_in_last_files(log, paths)
        as_today = {units_end, found.physical_offset}
        if by_files is not None and as_today != {by_files.physical_offset}:
            return None
    log_end = end_of_broker(log, found)
    cuts_queues = is_gone or units_end >= log_end.physical_offset
    builds_first = end is not None
    return BrokerStart(log_end, built_from, keys_until, cuts_queues, builds_first, by_chance)


def _last_in_table(paths: StorePaths) -> int:
    """Return the last record that an index in RocksDB surely has; ``FOREVER`` without one.

    A broker that keeps its index there builds units from that record on as well.

    Source: IndexRocksDBStore.java#getDispatchFromPhyOffset, from RocketMQ 5.5 on.
    """
    with suppress(StoreFormatError, UnsupportedFeatureError):  # reported by itself
        table = IndexTable.of(paths)
        if table is not None and table.last_offset > 0:
            return table.last_offset
    return FOREVER


def is_by_chance(misplaced: Sequence[Finding]) -> bool:
    """Return whether files of the log have the names of other places, or one name.

    What a broker keeps of queues then is not foretold.
    """
    return any(one.part == "log" and one.kind in ("name", "twins") for one in misplaced)


def why_not_foretold(
    paths: StorePaths, log: CommitLog, start: BrokerStart | None, misplaced: Sequence[Finding]
) -> str:
    """Return the kind of store of which nobody can say what a broker keeps; "" for others."""
    if log.entry_segments:
        return "a DLedger log"
    if paths.rocksdb_queues is not None:
        return "queues in RocksDB"
    if start is not None:
        return ""
    if is_by_chance(misplaced):
        return "a log with files of other places"
    if not may_be_before_5(paths):
        return "a log without queues, with an index in RocksDB, where queues may have been as well"
    return (
        "a log whose broker may be older than 5.0, with damage in its last files or records that "
        "no queue has"
    )


def after_end(log: CommitLog, ends: StoreEnds, start: BrokerStart | None) -> Iterator[Finding]:
    """Yield findings of records that a starting broker drops, after one that its recovery refuses.

    After the end of a log that was closed there may be records that a recovery has cut off.
    """
    end = ends.log_end
    n_records, n_bytes = ends.after_end
    if end is None:
        if start is None:
            return
        end = start.log_end
        if not is_damaged_at(log, end, start.built_from - 1):
            return
        n_records, n_bytes = count_after(log, end)
    if n_records and not end.is_stale_after:  # entries that were cut off are no messages
        text = (
            f"{n_records} records of {n_bytes} bytes follow the end of the log; "
            "a broker that starts drops them"
        )
        yield Finding("end", f"{end.path}, {end.physical_offset}", text)


def misplaced_files(paths: StorePaths) -> Iterator[Finding]:
    """Yield files with a wrong length or name; because of most of them a broker does not start."""
    of_log = _files_in(paths, paths.commitlogs)
    yield from _refused("log", paths, of_log, "mapped_file_size_commit_log")
    for folders, size in (
        (paths.queue_folders, "mapped_file_size_consume_queue"),
        (paths.batch_folders, "mapper_file_size_batch_consume_queue"),
        (ext_folders(paths), ""),
    ):
        of_queues = _files_in(paths, (folders.queue(*key) for key in folders.queues()))
        refused = [*_refused("queue", paths, of_queues, size)]
        if not size:  # units that lead to no unit of an extension show whether one was lost there
            refused = [finding for finding in refused if finding.kind != "name"]
        if refused and paths.rocksdb_queues is not None:
            logger.warning(
                "%s: %s; a broker that reads queues in RocksDB alone does not look at it",
                refused[0].place, refused[0].text,
            )  # fmt: skip
        else:
            yield from refused
        if size:
            yield from _emptied(of_queues)
    yield from _of_another_type(paths)
    yield from _misnamed(paths)
    if paths.rocksdb_queues is None:
        yield from _misnamed_queues(paths)
    yield from _twins(paths)
    entries = paths.storage.list_folder(paths.index)
    names = [entry.name for entry in entries if entry.is_folder and is_name(entry.name)]
    as_files = [("index", paths.index / name) for name in names]
    if as_files and may_be_before_5(paths):  # it loads the index without a look at what comes of it
        logger.warning("%s is a folder: a broker from 5.0 on does not start", as_files[0][1])
        as_files = []
    # It writes the abort file again, and keeps the one before.
    written = ("lock", paths.lock), ("abort", paths.abort.with_name("abort.bak"))
    as_files += [(part, path) for part, path in written if is_folder(paths.storage, path)]
    for part, path in as_files:
        text = "this is a folder where a broker reads a file: it does not start"
        yield Finding(part, str(path), text, "start", stops_broker=True)


def misplaced_timers(paths: StorePaths) -> Iterator[Finding]:
    """Yield files of the timer log with a wrong length or name, as :func:`misplaced_files` does.

    Source: TimerLog.java#load; BrokerController.java#recoverAndInitService.
    """
    for finding in _refused("timer", paths, _files_in(paths, [paths.timer_log])):
        yield finding if finding.kind == "foreign" else finding._replace(kind="timer")


class _File(NamedTuple):
    """A file where a starting broker looks for those that it loads."""

    path: Path
    start: int | None  # its name; None if that is not an offset
    length: int
    last: str  # the name of the last entry of its folder

    @property
    def is_deleted(self) -> bool:
        """Whether it is empty and at the end; a broker deletes it then, whatever its name is."""
        return not self.length and self.path.name == self.last


def _files_in(paths: StorePaths, folders: Iterable[Path]) -> list[_File]:
    """Return the files of folders, folder by folder; warn of folders among them."""
    files = []
    for folder in folders:
        entries = sorted(paths.storage.list_folder(folder), key=attrgetter("name"))
        for entry in entries:
            path, start = folder / entry.name, name_to_offset(entry.name)
            if not entry.is_folder:
                files.append(_File(path, start, paths.storage.size(path), entries[-1].name))
            elif may_be_before_5(paths):  # later ones pass over it
                logger.warning("%s is a folder: a broker before 5.0 does not start", path)
    return files


def _refused(
    part: str, paths: StorePaths, files: Iterable[_File], setting: str = ""
) -> Iterator[Finding]:
    """Yield files that have another name or another length than those that a broker loads.

    All files of a kind have one length, which the broker's settings name. Without them it is the
    one that most files have, and that their names are multiples of.

    Args:
        part: of the findings.
        paths: the files of the store.
        files: those of one kind.
        setting: the length of these files, an attribute of :class:`StoreConfig`; "" without one.
    """
    emptied = [file for file in files if file.is_deleted]
    if emptied and may_be_before_5(paths):  # later ones delete it
        logger.warning("%s is empty: a broker before 5.0 does not start", emptied[0].path)
    files = [file for file in files if not file.is_deleted]
    lengths = [(file.start, file.length) for file in files if file.start is not None]
    named = named_size(paths.settings, setting) if setting else None
    expected = named or usual_size(lengths)
    is_shown = len(lengths) > 1 and any(start for start, _ in lengths)
    if setting and named is None and not is_shown:
        _warn_if_unknown(files, setting, expected)
    for path, start, length, last in files:
        if start is None:
            text = "the name of the file is not an offset: a broker does not start"
            stem = path.name.partition(".")[0]
            kind = "foreign"
            if name_to_offset(stem) is not None and not paths.storage.exists(path.parent / stem):
                text += f"; there is no file {stem}, so it may be this one"
                kind = "start"
            yield Finding(part, str(path), text, kind, stops_broker=True)
            continue
        if expected and start % expected:
            text = (
                f"the name of the file is not a multiple of {expected:,}, the length of such "
                "files; a broker that starts does not find what it holds"
            )
            yield Finding(part, str(path), text, "name")
        if expected and length != expected:
            text = (
                f"the file has {length:,} bytes and should have {expected:,}: a broker does not "
                f"start ({_MESSAGE})"
            )
            if not length:
                text += f"; it deletes an empty file only at the end, and {last} follows"
            yield Finding(part, str(path), text, "start", stops_broker=True)


def _emptied(files: Iterable[_File]) -> Iterator[Finding]:
    """Yield empty files that alone say that their queues had messages."""
    for _, of_queue in groupby(files, lambda file: file.path.parent):
        first, *others = of_queue
        if first.start and not first.length and not others:
            text = (
                "the file is empty, and the only one of its queue: a broker that starts deletes "
                "it, and gives out queue offsets from 0 on again unless the log has messages of it"
            )
            yield Finding("queue", str(first.path), text, "emptied")


def _warn_if_unknown(files: Sequence[_File], setting: str, expected: int) -> None:
    """Log that nothing shows the right length of files that begin their folders, or are alone."""
    usual: int = getattr(StoreConfig(), setting)
    if files and expected != usual:
        logger.warning(
            "%s has %d bytes, and RocketMQ's default is %d: a broker with another length in its "
            "settings does not start, and %s shows it",
            files[0].path, files[0].length, usual, rendered("only the broker's file (`conf=`)"),
        )  # fmt: skip


def _of_another_type(paths: StorePaths) -> Iterator[Finding]:
    """Yield topics whose folders of queues are not of the type in ``topics.json``.

    Source: ConsumeQueueStore.java#queueTypeShouldBe, from RocketMQ 5.0 on.
    """
    in_batches = {topic for topic, _ in paths.batch_folders.queues()}
    config, table = BrokerConfig(paths), paths.config / TOPICS
    known: Mapping[str, Mapping[str, Any]] = {}
    try:
        known = config.topic_entries()
    except (CorruptDatabaseError, UnsupportedFeatureError):
        return  # which is reported by itself
    except CorruptConfigError as err:
        if err.path != str(table):
            return
        # a broker starts without topics
    if not known and not paths.storage.exists(table):  # a copy may lack it
        if in_batches:
            logger.warning(
                "%s is missing, so a broker that starts with it takes the queues of %s for "
                "ordinary ones, and does not start",
                table, ", ".join(sorted(in_batches)),
            )  # fmt: skip
        return
    configured = batch_topics_of(known)
    ordinary = {topic for topic, _ in paths.queue_folders.queues()}
    for folders, topics, text in (
        (paths.batch_folders, in_batches - configured, "does not have queue.type BatchCQ"),
        (paths.queue_folders, ordinary & configured, "has queue.type BatchCQ"),
    ):
        for topic in sorted(topics):
            yield Finding(
                "queue", str(folders.root / topic),
                f"topic {topic} {text} in topics.json: a broker from 5.0 on does not start",
                "type", stops_broker=True,
            )  # fmt: skip


def _misnamed(paths: StorePaths) -> Iterator[Finding]:
    """Yield files of the log whose first record has a physical offset of another file."""
    for path, start in misnamed_segments(paths.storage, paths.commitlogs):
        text = (
            f"the first record of the file says physical offset {start}, so the name of the "
            f"file should be {offset_to_name(start)}; a broker that starts does not find its "
            "messages"
        )
        yield Finding("log", str(path), text, "name")


def _misnamed_queues(paths: StorePaths) -> Iterator[Finding]:
    """Yield files of queues whose first unit has its place in a file that is missing."""
    log = CommitLog(paths.commitlogs, paths.storage, entry_folders=paths.dledger_logs)
    with closing(log):
        for key in paths.queue_folders.queues():
            with closing(open_files(paths, *key, log=log)) as queue:
                for path, start in misnamed_files(queue, key, log):
                    text = (
                        "the first unit of the file belongs to another one, so the name of the "
                        f"file should be {offset_to_name(start)}; a broker may not start"
                    )
                    yield Finding("queue", str(path), text, "name")


def _twins(paths: StorePaths) -> Iterator[Finding]:
    """Yield files of the log that two folders have."""
    by_name: dict[str, list[Path]] = {}
    for folder in paths.commitlogs:
        for path in segment_files(paths.storage, folder):
            by_name.setdefault(path.name, []).append(path)
    for first, *others in by_name.values():
        for other in others:
            position = _first_difference(paths.storage, first, other)
            if position is None:
                text = f"{first} holds the same bytes: one of the two is to be moved away"
                yield Finding("log", str(other), text, "twin")
            else:
                text = (
                    f"{first} has the same name, and other bytes from position {position} on: "
                    "a broker reads one of the two"
                )
                yield Finding("log", str(other), text, "twins")


def _first_difference(storage: Storage, first: Path, second: Path) -> int | None:
    """Return the position of the first byte that differs in two files, None if there is none."""
    first_size = storage.size(first)
    second_size = storage.size(second)
    common_size = min(first_size, second_size)
    with storage.open(first) as first_file, storage.open(second) as second_file:
        for start in range(0, common_size, _BLOCK_BYTES):
            size = min(_BLOCK_BYTES, common_size - start)
            is_other = first_file.read(start, size) != second_file.read(start, size)
            differing = np.flatnonzero(is_other)
            if len(differing):
                return start + int(differing[0])
    return None if first_size == second_size else common_size
