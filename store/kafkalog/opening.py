"""Opens the log directories of a broker, and finds the partitions and offsets of a scan."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kafkalog.format.layout import KEY_FIELDS, RECORD
from kafkalog.groups import read_consumer_groups
from kafkalog.partition import Partition, Span, read_spans, span_at
from kafkalog.scan import (
    IsolationLevel,
    Scan,
    ScanSpec,
    parse_scan,
)
from kafkalog.storage.log_dirs import LogDir, list_log_dirs
from kafkalog.storage.names import TopicPartition, is_internal
from rmqstore.errors import OffsetOutOfRangeError, OptionError
from rmqstore.progress import Progress, ignore_progress
from rmqstore.query.arguments import Time
from rmqstore.query.arrow_rows import require_positive
from rmqstore.query.damage import CORRUPT_RECORD, FAILFAST, Mode
from rmqstore.query.selection import (
    EARLIEST,
    LATEST,
    Bound,
    Selection,
    choose_topics,
    nearest_topics,
    parse_selection,
)
from rmqstore.storage.files.lifetime import lifetime_of_reads
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.remote_location import is_uri, locate, name_in_storage, require_known
from rmqstore.storage.files.storage import Closing, Storage

logger = logging.getLogger(__name__)

LISTED: Final = "rmqstore kafka stat"  # all topics, for errors
NO_BROKER: Final = ""  # a log directory does not have the name of its broker
# The committed offset of each partition of a consumer group, by the name of the group.
Committed: TypeAlias = Mapping[str, Mapping[TopicPartition, int]]


def by_topic(offsets: Mapping[Any, Any] | str | None) -> Mapping[str, Any] | str | None:
    """Return offsets by topic and partition as tables of partitions by topic."""
    if not isinstance(offsets, Mapping):
        return offsets
    tables: dict[str, Any] = {}
    for key, value in offsets.items():
        if isinstance(key, tuple):
            topic, partition = key
            tables.setdefault(topic, {})[partition] = value
        else:
            tables[key] = value
    return tables


def committed_offsets(log_dirs: LogDirs, selection: Selection, spec: ScanSpec) -> Committed:
    """Return the committed offsets of groups, as far as damage lets a scan know them.

    Args:
        log_dirs: have the records of the groups; nothing is read without a group.
        selection: starts or ends at the offsets of the groups.
        spec: of the scan.

    Raises:
        OptionError: a group has no committed offset.
        CorruptBatchError: a batch of commits is damaged and the mode is FAILFAST.
    """
    bounds = (selection.start, selection.end)
    groups = [bound.group for bound in bounds if bound.group is not None]
    if not groups:
        return {}
    mode: Mode = "FAILFAST" if spec.mode == FAILFAST else "DROPMALFORMED"
    committed: dict[str, dict[TopicPartition, int]] = {}
    for row in log_dirs.consumer_groups(mode=mode).to_pylist():
        if row["group"] is not None:
            offsets = committed.setdefault(row["group"], {})
            offsets[TopicPartition(row["topic"], row["partition"])] = row["offset"]
    for name in groups:
        if name not in committed:
            known = ", ".join(committed) or "none"
            raise OptionError(f"group {name!r} has no committed offsets; groups that have: {known}")
    return committed


def span_of(partition: Partition, selection: Selection, committed: Committed) -> Span:
    """Return where a selection starts and ends in a partition.

    Raises:
        OffsetOutOfRangeError: no record is as late as a start time, and that is an error.
        CorruptBatchError: the batch that a time leads to is damaged.
    """
    key = TopicPartition(partition.topic, partition.partition)
    start_ms = _time(selection.start, key)
    end_ms = _time(selection.end, key)
    is_strict = selection.timestamp_strategy == "error"
    if start_ms is not None and is_strict and partition.offset_for_time(start_ms) is None:
        raise OffsetOutOfRangeError(
            f"{key} has no record of {start_ms} ms or later; "
            "`starting_offsets_by_timestamp_strategy=latest` begins at the end of such "
            "partitions"
        )
    start = _offset(selection.start, key, committed)
    end = _offset(selection.end, key, committed)
    return span_at((start, end), partition, start_ms, end_ms)


def _needs_look_ups(selection: Selection) -> bool:
    """Return whether a selection starts or ends at a time or at the offsets of a group."""
    return any(
        bound.group is not None or bound.timestamp is not None or bound.by_timestamp
        for bound in (selection.start, selection.end)
    )


def _time(bound: Bound, key: TopicPartition) -> int | None:
    if bound.timestamp is not None:
        return bound.timestamp
    return bound.of(NO_BROKER, *key, bound.by_timestamp)


def _offset(bound: Bound, key: TopicPartition, committed: Committed) -> int | None:
    """Return the offset that decides, None for the start or the end of the log."""
    offset = None if bound.group is None else committed[bound.group].get(key)
    if offset is None:
        offset = bound.of(NO_BROKER, *key, bound.offsets)
    if offset is None:
        offset = bound.default
    if offset in {EARLIEST, LATEST}:
        return None
    return offset


class LogDirs(Closing):
    """The log directories of one broker, which are only read. A context manager.

    Nothing is held open: a folder is listed when this is made, and again by :meth:`refresh`. After
    :meth:`close` neither this nor its partitions and scans are read any more. Threads may share it.
    """

    def __init__(self, paths: Iterable[str], storage: Storage = LOCAL) -> None:
        """List the log directories.

        Args:
            paths: of the directories.
            storage: the storage to read from.

        Raises:
            NotAStoreError: a path is not a log directory, or a partition folder.
            StoreStateError: two directories hold the same partition.
        """
        self._paths = tuple(paths)
        self._storage = storage
        self._dirs: tuple[LogDir, ...] = ()
        self._listed: dict[TopicPartition, Partition] = {}
        self._lifetime = lifetime_of_reads(", ".join(self._paths), storage)
        self.refresh()

    def __repr__(self) -> str:
        """Return the directories and how much is in them."""
        topics = {topic for topic, _ in self._listed}
        n_partitions = len(self._listed)
        return (
            f"<LogDirs {', '.join(self._paths)}: {len(topics)} topics, {n_partitions} partitions>"
        )

    def refresh(self) -> None:
        """List the directories again, so that bounds are looked up again. Raises as the class."""
        self._require_open()
        dirs, folders = list_log_dirs(self._storage, self._paths)
        partitions = {}
        for key, folder in folders.items():
            before = self._listed.get(key)
            if before is not None and before.path != folder.path:
                before = None  # the partition was moved
            partitions[key] = Partition(self._storage, folder, self._lifetime, before)
        self._listed = partitions
        self._dirs = dirs

    def close(self) -> None:
        """Let nothing be read any more."""
        self._lifetime.end()

    def _require_open(self) -> None:
        self._lifetime.require()

    @property
    def _partitions(self) -> dict[TopicPartition, Partition]:
        self._require_open()
        return self._listed

    @property
    def log_dirs(self) -> tuple[LogDir, ...]:
        """The directories, with what ``meta.properties`` says and with folders left aside."""
        return self._dirs

    def topics(self) -> list[str]:
        """Return every topic, sorted, with Kafka's own, such as ``__consumer_offsets``."""
        return sorted({topic for topic, _ in self._partitions})

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """The partitions by topic and number, sorted; plain tuples are keys, too."""
        return dict(self._partitions)

    @property
    def default_partitions(self) -> Mapping[TopicPartition, Partition]:
        """Those that are read if no topic is named: of the topics of users, and folders opened.

        A partition folder that was opened by itself is among them whatever its topic is.
        """
        opened = {key for folder in self._dirs if folder.is_partition for key in folder.partitions}
        return {
            key: partition
            for key, partition in self._partitions.items()
            if key in opened or not is_internal(key.topic)
        }

    @property
    def missing(self) -> Mapping[TopicPartition, str]:
        """The partitions that a directory's checkpoints name and none holds, with the directory."""
        return {
            key: folder.path
            for folder in self._dirs
            for key in folder.missing
            if key not in self._partitions
        }

    def partition(self, topic: str, partition: int) -> Partition:
        """Return one partition.

        Raises:
            OptionError: there is no such partition in these directories.
        """
        found = self._partitions.get(TopicPartition(topic, partition))
        if found is None:
            raise OptionError(
                f"`partition`: {', '.join(self._paths)} does not hold "
                f"{TopicPartition(topic, partition)}"
            )
        return found

    def scan(
        self,
        subscribe: str | Iterable[str] | None = None,
        partitions: Iterable[int] | None = None,
        *,
        subscribe_pattern: str | None = None,
        assign: str | Mapping[str, Iterable[int]] | None = None,
        include_system_topics: bool = False,
        starting_offsets: str | Mapping[Any, Any] | None = None,
        ending_offsets: str | Mapping[Any, Any] | None = None,
        starting_timestamp: Time | None = None,
        ending_timestamp: Time | None = None,
        starting_offsets_by_timestamp: str | Mapping[Any, Any] | None = None,
        ending_offsets_by_timestamp: str | Mapping[Any, Any] | None = None,
        starting_offsets_by_timestamp_strategy: str | None = None,
        columns: str | Iterable[str] | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
        mode: Mode = "FAILFAST",
        column_name_of_corrupt_record: str = CORRUPT_RECORD,
        check_crc: bool = True,
        fail_on_data_loss: bool = True,
        limit: int | None = None,
        last: int | None = None,
        progress: Progress = ignore_progress,
    ) -> Scan:
        """Return records of several partitions, one partition after the other.

        The arguments are those of ``rmqstore.MessageStore.scan``, as far as Kafka's logs have what
        they mean.

        Args:
            subscribe: topics: a list, or text with commas; by default :attr:`default_partitions`
                are read.
            partitions: numbers of the partitions to read; by default all of the topics.
            subscribe_pattern: topics by a regular expression for the whole name, in place of
                ``subscribe``.
            assign: partitions by topic, such as ``{'Orders': [0, 1]}``, in place of ``subscribe``.
            include_system_topics: whether Kafka's own topics are among all topics, and among those
                that a pattern matches.
            starting_offsets: where partitions start: earliest, ``group:NAME``, which is where a
                consumer group has committed, or offsets by partition, such as
                ``{'Orders': {0: 23}}`` or ``{('Orders', 0): 23}``; -2 is the earliest.
            ending_offsets: where partitions end, excluded: latest, ``group:NAME`` or offsets by
                partition; -1 is the latest. An offset after the end means the end.
            starting_timestamp: start at the offset that a broker gives for this time: epoch ms,
                ISO-8601, such as ``-1h``, or a datetime.
            ending_timestamp: end at the offset that a broker gives for this time, excluded.
            starting_offsets_by_timestamp: start times by partition.
            ending_offsets_by_timestamp: end times by partition.
            starting_offsets_by_timestamp_strategy: error or latest, where no record is that late.
            columns: names of columns, as a list or joined by commas; ``topic`` (string) and
                ``partition`` (int32) are among them. By default these and all of
                ``kafkalog.format.layout.RECORD``.
            isolation_level: see :meth:`Partition.scan`, as for all that follow.
            mode: FAILFAST, DROPMALFORMED or PERMISSIVE.
            column_name_of_corrupt_record: name of the column with the reason.
            check_crc: whether a batch is damaged if its CRC is wrong.
            fail_on_data_loss: whether records that are gone are an error.
            limit: return only this many records, the first ones; reading stops then.
            last: return only this many records of each partition, the newest ones.
            progress: called while the scan is read, with the offsets that are done and the total.
                All partitions are opened at the start then.

        Raises:
            OptionError: a topic, partition, column, the mode or the isolation level is unknown, or
                arguments contradict one another.
        """
        require_positive("last", last)
        every = pa.schema([*KEY_FIELDS, *RECORD])
        given = ScanSpec(
            isolation_level=isolation_level,
            mode=mode,
            corrupt_column=column_name_of_corrupt_record,
            check_crc=check_crc,
            fail_on_data_loss=fail_on_data_loss,
        )
        spec, names = parse_scan(columns, every.names, given)
        selection = parse_selection(
            subscribe=subscribe,
            subscribe_pattern=subscribe_pattern,
            assign=assign,
            include_system_topics=include_system_topics,
            starting_offsets=by_topic(starting_offsets),
            ending_offsets=by_topic(ending_offsets) or "latest",
            starting_timestamp=starting_timestamp,
            ending_timestamp=ending_timestamp,
            starting_offsets_by_timestamp=by_topic(starting_offsets_by_timestamp),
            ending_offsets_by_timestamp=by_topic(ending_offsets_by_timestamp),
            starting_offsets_by_timestamp_strategy=starting_offsets_by_timestamp_strategy,
        )
        chosen = self._choose(selection, partitions)
        fields = {field.name: field for field in (*KEY_FIELDS, *spec.schema)}
        schema = pa.schema([fields[name] for name in names])

        def read() -> Iterator[pa.RecordBatch]:
            committed = committed_offsets(self, selection, spec)
            spans = ((part, span_of(part, selection, committed)) for part in chosen.values())
            for key, batch in read_spans(spans, spec, last, progress):
                yield _with_key(batch, key, schema)

        has_look_ups = spec.is_committed or _needs_look_ups(selection)
        is_quick = not has_look_ups and all(part.is_clean for part in chosen.values())
        return Scan(schema, read, limit=limit, is_quick=is_quick)

    def _choose(
        self, selection: Selection, partitions: Iterable[int] | None
    ) -> dict[TopicPartition, Partition]:
        """Return the partitions of a selection; refuses unknown names."""
        if partitions is not None and selection.assign is not None:
            raise OptionError("`partitions`: assign has numbers of partitions already")
        self._require_topics(selection)
        names_topics = selection.subscribe is not None or selection.assign is not None
        takes_all = names_topics or selection.include_system_topics
        numbers = None if partitions is None else set(partitions)
        candidates = self.partitions if takes_all else self.default_partitions
        gone = {
            key: path
            for key, path in self.missing.items()
            if takes_all or not is_internal(key.topic)
        }
        topics = {key.topic for key in (*candidates, *gone)}
        if not selection.is_open:
            topics = set(choose_topics(selection, sorted(topics)))
        for key, path in gone.items():
            if key.topic in topics and (numbers is None or key.partition in numbers):
                text = "data loss: partition %s is gone: the checkpoints of %s name it"
                logger.warning(text, key, path)
        chosen = {
            key: found
            for key, found in candidates.items()
            if key.topic in topics
            and (selection.assign is None or key.partition in selection.assign[key.topic])
        }
        if numbers is not None:
            lacking = numbers - {key.partition for key in chosen}
            if lacking:
                names = ", ".join(sorted({key.topic for key in chosen}))
                raise OptionError(f"`partitions`: there is no partition {min(lacking)} of {names}")
            chosen = {key: found for key, found in chosen.items() if key.partition in numbers}
        self._require_bounds(selection, chosen)
        return chosen

    def _require_topics(self, selection: Selection) -> None:
        """Refuse topics and partitions that are to be read and are not there."""
        where = ", ".join(self._paths)
        name = "subscribe" if selection.assign is None else "assign"
        known = self.topics()
        missing = sorted({*(selection.subscribe or ()), *(selection.assign or {})} - {*known})
        if missing:
            nearest = nearest_topics(missing, known, listed=LISTED)
            raise OptionError(f"`{name}`: {where} has no {', '.join(missing)}; {nearest}")
        for topic, numbers in (selection.assign or {}).items():
            for number in sorted(numbers):
                if (topic, number) not in self._partitions:
                    key = TopicPartition(topic, number)
                    raise OptionError(f"`{name}`: {where} does not hold {key}")

    def _require_bounds(self, selection: Selection, chosen: Collection[TopicPartition]) -> None:
        """Refuse bounds of partitions that are not read."""
        for name, table in selection.tables.items():
            for broker, topic, number in table:
                if broker is not None:
                    raise OptionError(
                        f"`{name}`: log directories are of one broker, so {broker!r} cannot "
                        "be named"
                    )
                key = TopicPartition(topic, number)
                if key not in chosen:
                    raise OptionError(f"`{name}`: {key} is not read")

    def consumer_groups(self, *, mode: Mode = "FAILFAST") -> pa.Table:
        """Return the committed offsets of all groups whose records are in these directories.

        Commits of a transaction count once its marker says so.

        Args:
            mode: FAILFAST raises at a damaged batch; DROPMALFORMED drops it with a warning;
                PERMISSIVE adds a row for it at the end, whose only value is the reason, in the
                column ``_corrupt_record``. What was committed in it is not known.

        Returns:
            One row for each group, topic and partition, sorted: group, topic (string), partition
            (int32), offset (int64), leader_epoch (int32, null if unknown), metadata (string),
            commit_timestamp (timestamp[ms, UTC]).

        Raises:
            OptionError: the mode is unknown.
            CorruptBatchError: a batch of ``__consumer_offsets`` is damaged, and the mode is
                FAILFAST.

        Source: GroupMetadataManager.java, OffsetMetadataManager.java.
        """
        return read_consumer_groups(self._partitions.values(), mode)


def _with_key(batch: pa.RecordBatch, key: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    known = {field.name: value for field, value in zip(KEY_FIELDS, key, strict=True)}
    arrays = [
        pa.repeat(pa.scalar(known[field.name], field.type), batch.num_rows)
        if field.name in known
        else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def open_log_dirs(
    *log_dirs: str | PathLike[str],
    storage_options: Mapping[str, object] | None = None,
    filesystem: object = None,
    storage: Storage | None = None,
) -> LogDirs:
    """Open the log directories of a broker, or one partition folder, for reading.

    Args:
        log_dirs: all directories of one broker (``log.dirs``), or some of them; a partition folder
            can be given alone. Local paths, or URIs such as ``s3://bucket/kafka-logs``.
        storage_options: how to reach the storage of URIs, as for ``rmqstore.open``.
        filesystem: the file system that has the paths, of pyarrow or of fsspec.
        storage: the storage that has the paths, in place of these two.

    Raises:
        OptionError: no directory is given, they lie in several storages, or an option of the
            storage is unknown.
        UnsupportedFeatureError: a URI is of a file system that is not known.
        NotAStoreError: a path is not a log directory, or a partition folder.
        StoreStateError: two directories hold the same partition.
    """
    if not log_dirs:
        raise OptionError("name at least one log directory")
    names = [fspath(path) for path in log_dirs]
    if storage is None:
        if filesystem is None:
            names, storage = names_in_storage(names, storage_options)
        else:
            _require_one_storage(names)
            located = [locate(name, storage_options, filesystem) for name in names]
            names = [fspath(name) for name, _ in located]
            storage = located[0][1]
    return LogDirs(names, storage)


def names_in_storage(
    paths: Sequence[str], storage_options: Mapping[str, object] | None = None
) -> tuple[list[str], Storage]:
    """Return the storage of paths, and their names in it.

    Raises as :func:`require_reachable` does.
    """
    require_reachable(paths, storage_options)
    _, storage = locate(paths[0], storage_options)
    return [fspath(name_in_storage(path)) for path in paths], storage


def require_reachable(
    log_dirs: Sequence[str], storage_options: Mapping[str, object] | None = None
) -> None:
    """Refuse log directories of several storages, or of an unknown one; reaches none of them.

    Raises:
        OptionError: not all are local, or URIs of one scheme and host; a URI has credentials in
            it, or an option of the storage is unknown.
        UnsupportedFeatureError: a URI is of a file system that is not known.
    """
    for name in log_dirs:
        require_known(name, storage_options)  # before another error shows a URI with credentials
    _require_one_storage(log_dirs)


def _require_one_storage(names: Sequence[str]) -> None:
    if len({"/".join(name.split("/")[:3]) if is_uri(name) else "" for name in names}) > 1:
        raise OptionError(
            f"`path`: {', '.join(names)} do not lie in one storage, as those of one broker do"
        )
