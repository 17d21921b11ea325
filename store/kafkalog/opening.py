"""Opens the log directories of a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath

import pyarrow as pa

from kafkalog.read.groups import read_consumer_groups
from kafkalog.read.partition import Partition
from kafkalog.read.scan import CORRUPT_RECORD, IsolationLevel, Mode, Scan, ScanSpec, parse_columns
from kafkalog.storage.log_dirs import LogDir, list_log_dirs
from kafkalog.storage.names import TopicPartition, is_internal
from rmqstore.errors import OptionError, about
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Closing, Storage
from rmqstore.storage.remote.location import is_uri, locate, name_in_storage, require_known

TOPIC, PARTITION = PLACE = (
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
)


class LogDirs(Closing):
    """The log directories of one broker, which are only read. A context manager.

    Nothing is held open: a folder is listed when this is made, and again by :meth:`refresh`.
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
        self._paths, self._storage = tuple(paths), storage
        self._dirs: tuple[LogDir, ...] = ()
        self._partitions: dict[TopicPartition, Partition] = {}
        self.refresh()

    def __repr__(self) -> str:
        """Return the directories and how much is in them."""
        topics = {topic for topic, _ in self._partitions}
        n_partitions = len(self._partitions)
        return (
            f"<LogDirs {', '.join(self._paths)}: {len(topics)} topics, {n_partitions} partitions>"
        )

    def refresh(self) -> None:
        """List the directories again, so that bounds are looked up again. Raises as the class."""
        dirs, folders = list_log_dirs(self._storage, self._paths)
        partitions = {}
        for key, folder in folders.items():
            before = self._partitions.get(key)
            if before is not None and before.path != folder.path:
                before = None  # the partition was moved
            partitions[key] = Partition(self._storage, folder, before)
        self._partitions = partitions
        self._dirs = dirs

    def close(self) -> None:
        """Do nothing: nothing is held open."""

    @property
    def log_dirs(self) -> tuple[LogDir, ...]:
        """The directories, with what ``meta.properties`` says and with folders left aside."""
        return self._dirs

    @property
    def topics(self) -> list[str]:
        """The topics, sorted; Kafka's own, such as ``__consumer_offsets``, are among them."""
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
        opened = {key for each in self._dirs if each.is_partition for key in each.partitions}
        return {
            key: partition
            for key, partition in self._partitions.items()
            if key in opened or not is_internal(key.topic)
        }

    @property
    def missing(self) -> Mapping[TopicPartition, str]:
        """The partitions that a directory's checkpoints name and none holds, with the directory."""
        return {
            key: each.path
            for each in self._dirs
            for key in each.missing
            if key not in self._partitions
        }

    def partition(self, topic: str, partition: int) -> Partition:
        """Return one partition.

        Raises:
            OptionError: there is no such partition in these directories.
        """
        found = self._partitions.get(TopicPartition(topic, partition))
        if found is None:
            text = f": {', '.join(self._paths)} does not hold {TopicPartition(topic, partition)}"
            raise OptionError(about("partition", text))
        return found

    def scan(
        self,
        topics: str | Iterable[str] | None = None,
        partitions: Iterable[int] | None = None,
        *,
        start_offsets: Mapping[tuple[str, int], int] | None = None,
        end_offsets: Mapping[tuple[str, int], int] | None = None,
        columns: str | Iterable[str] | None = None,
        isolation_level: IsolationLevel = "read_uncommitted",
        mode: Mode = "FAILFAST",
        column_name_of_corrupt_record: str = CORRUPT_RECORD,
        check_crcs: bool = True,
        fail_on_data_loss: bool = True,
    ) -> Scan:
        """Return records of several partitions, one partition after the other.

        Args:
            topics: names, as a list or joined by commas; by default :attr:`default_partitions` are
                read.
            partitions: numbers of the partitions to read; by default all of the topics.
            start_offsets: the first offset by topic and partition; by default that of the log.
            end_offsets: the offset after the last one by topic and partition; by default the end.
            columns: names of columns, as a list or joined by commas; ``topic`` (string) and
                ``partition`` (int32) are among them. By default these and all of
                ``kafkalog.format.layout.RECORD``.
            isolation_level: see :meth:`Partition.scan`, as for all that follow.
            mode: FAILFAST, DROPMALFORMED or PERMISSIVE.
            column_name_of_corrupt_record: name of the column with the reason.
            check_crcs: whether a batch is damaged if its CRC is wrong.
            fail_on_data_loss: whether records that are gone are an error.

        Raises:
            OptionError: a topic, partition, column, the mode or the isolation level is unknown.
        """
        every = (*(field.name for field in PLACE), *parse_columns(None))
        names = every if columns is None else parse_columns(columns)
        unknown_columns = [name for name in names if name not in every]
        if unknown_columns:
            text = f": unknown {', '.join(unknown_columns)}; there are {', '.join(every)}"
            raise OptionError(about("columns", text))
        spec = ScanSpec(
            tuple(name for name in names if name not in every[: len(PLACE)]) or ("offset",),
            isolation_level,
            mode,
            column_name_of_corrupt_record,
            check_crcs,
            fail_on_data_loss,
        )
        chosen = self._choose(topics, partitions)
        starts, ends = dict(start_offsets or {}), dict(end_offsets or {})
        unknown = [key for key in {**starts, **ends} if key not in chosen]
        if unknown:
            text = f": {TopicPartition(*unknown[0])} is not read"
            raise OptionError(
                about("start_offsets" if unknown[0] in starts else "end_offsets", text)
            )
        if len(set(names)) < len(names):
            raise OptionError(about("columns", ": a column is named twice"))
        fields = {field.name: field for field in (*PLACE, *spec.schema)}
        corrupt = (spec.corrupt_column,) if spec.is_permissive else ()
        schema = pa.schema([fields[name] for name in (*names, *corrupt)])

        def read() -> Iterator[pa.RecordBatch]:
            for key, partition in chosen.items():
                for batch in partition.read(spec, starts.get(key), ends.get(key)):
                    yield _placed(batch, key, schema)

        return Scan(schema, read)

    def _choose(
        self, topics: str | Iterable[str] | None, partitions: Iterable[int] | None
    ) -> dict[tuple[str, int], Partition]:
        candidates = self._partitions if topics is not None else self.default_partitions
        if topics is None:
            names = sorted({key.topic for key in candidates})
        else:
            given = topics.split(",") if isinstance(topics, str) else topics
            names = [name.strip() for name in given]
        for name in names:
            if name not in self.topics:
                raise OptionError(about("topics", f": {', '.join(self._paths)} has no {name}"))
        numbers = None if partitions is None else set(partitions)
        chosen: dict[tuple[str, int], Partition] = {
            key: partition
            for key, partition in candidates.items()
            if key.topic in names and (numbers is None or key.partition in numbers)
        }
        if numbers:
            lacking = numbers - {number for _, number in chosen}
            if lacking:
                text = f": there is no partition {min(lacking)} of {', '.join(names)}"
                raise OptionError(about("partitions", text))
        return chosen

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


def _placed(batch: pa.RecordBatch, key: tuple[str, int], schema: pa.Schema) -> pa.RecordBatch:
    places = {field.name: value for field, value in zip(PLACE, key, strict=True)}
    arrays = [
        pa.repeat(pa.scalar(places[field.name], field.type), batch.num_rows)
        if field.name in places
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
            names, storage = places_in_storage(names, storage_options)
        else:
            _require_one_storage(names)
            places = [locate(name, storage_options, filesystem) for name in names]
            names, storage = [fspath(name) for name, _ in places], places[0][1]
    return LogDirs(names, storage)


def places_in_storage(
    paths: Sequence[str], storage_options: Mapping[str, object] | None = None
) -> tuple[list[str], Storage]:
    """Return the names that paths have in the storage that has them, and the storage.

    Raises as :func:`require_reachable` does.
    """
    require_reachable(paths, storage_options)
    _, storage = locate(paths[0], storage_options)
    return [fspath(name_in_storage(path)) for path in paths], storage


def require_reachable(
    log_dirs: Sequence[str], storage_options: Mapping[str, object] | None = None
) -> None:
    """Refuse log directories that do not lie in one storage that is known; reaches none of them.

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
        text = f": {', '.join(names)} do not lie in one storage, as those of one broker do"
        raise OptionError(about("path", text))
