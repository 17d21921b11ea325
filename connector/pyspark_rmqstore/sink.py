"""Writers of batches and of streams: tasks stage messages, and the driver commits them.

Each task stages its encoded rows in a file, and one process appends all of them.

A micro-batch is identified by the id of its query, which is kept in the checkpoint, and its number.
The store's ledger holds the number of the newest micro-batch, and the log decides whether it was
committed. A repeated one is skipped.

Each job has a folder of its own under ``.rmqstore/staging``; ``write.staged`` has the files in it.
The commit only uses the files that the messages of the tasks name; other files in the folder are of
failed attempts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname
from time import monotonic, sleep, time
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmqstore.hosts import require_folder, require_staged
from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.worker import tune_worker
from pyspark_rmqstore.write_options import WriteOptions
from rmqstore.errors import IllegalMessageError, StoreLockedError, StoreStateError
from rmqstore.format.schema import ASSIGNED, WRITE_TYPES
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.files.disk import Disk, named_os_errors
from rmqstore.storage.files.local import LOCAL
from rmqstore.store.opening import create, is_store, open_for
from rmqstore.write.messages import MessageMaker, WriteSpec
from rmqstore.write.staged import PartWriter, StagedTask
from rmqstore.write.writer import StoreWriter

logger = logging.getLogger(__name__)

_FOLDER = Path(".rmqstore", "staging")
_ABANDONED_SECONDS = 24 * 60 * 60
_MAX_RETRIES = 100

# Source: StreamExecution.scala#QUERY_ID_KEY, MicroBatchExecution.scala#BATCH_ID_KEY.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"

_BEGIN_SECONDS = 2
COMMIT_SECONDS = 300
_PAUSE_SECONDS = 0.05


def job_folder(root: str, job_id: str) -> Path:
    """Return the folder of a job."""
    return Path(root) / _FOLDER / job_id


def job_ids(root: str) -> list[str]:
    """Return the ids of the jobs that have a folder."""
    return [entry.name for entry in LOCAL.list_folder(Path(root) / _FOLDER)]


def begin(root: str, job_id: str) -> None:
    """Make the folder of a job unless it is there, and remove those of jobs whose driver died.

    For a batch only the driver does this, so a task that still runs when its job is aborted cannot
    write any more. For a stream its tasks do, because its driver does not know the id of the query.
    """
    disk = disk_of(root)
    folder = job_folder(root, job_id)
    with named_os_errors(Path(root), "the job wrote nothing and can be repeated"):
        for n_left in reversed(range(_MAX_RETRIES)):
            try:
                disk.make_folder(folder)
            except (FileExistsError, FileNotFoundError):  # an ended job removes empty folders
                if not n_left:
                    raise
            else:
                break
        for other in folder.parent.iterdir():
            if other == folder:
                continue
            try:
                changed = max(path.lstat().st_mtime for path in (other, *other.rglob("*")))
            except FileNotFoundError:
                continue  # the folder is being removed
            if time() - changed > _ABANDONED_SECONDS:
                logger.warning("%s was left by a job that never ended; it is removed", other)
                disk.delete_tree(other)


def disk_of(root: str) -> Disk:
    """Return what changes a store's files; it does not follow links inside the store."""
    disk = Disk()
    disk.keep_within(Path(root))
    return disk


def sweep(root: str, job_id: str) -> None:
    """Remove the folder of a job, and the folders above it that are empty then.

    If this fails, nothing is lost: a later job removes the folder.
    """
    folder = job_folder(root, job_id)
    disk = disk_of(root)
    # a task that is being killed may still make a file while the others are removed
    for _ in range(_MAX_RETRIES):
        disk.delete_tree(folder)
        if not folder.exists():
            break
    else:
        logger.warning("%s could not be removed; a later job removes it", folder)
    for above in (folder.parent, folder.parent.parent):
        with suppress(OSError):  # the folder of another job is in it
            above.rmdir()


def micro_batch() -> tuple[str, str]:
    """Return the ids of the query and of the micro-batch of this task. Runs in a task.

    Raises:
        StoreStateError: Spark has not set them.
    """
    context = TaskContext.get()
    assert context is not None, "Spark runs this in a task"
    query_id = context.getLocalProperty(QUERY_ID)
    batch_id = context.getLocalProperty(BATCH_ID)
    if not query_id or not batch_id:
        raise StoreStateError(
            f"Spark has not set {QUERY_ID} and {BATCH_ID}: "
            "a repeated micro-batch could not be recognised"
        )
    return query_id, batch_id


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    ArrowStreamWriter = datasource.DataSourceStreamArrowWriter
else:

    class ArrowStreamWriter(DataSourceArrowWriter, datasource.DataSourceStreamWriter):
        """A stream writer for Arrow batches in PySpark 4.0, whose own class takes rows.

        Rows would need a loop, and their times are local times, which are ambiguous for an hour of
        each autumn. But PySpark 4.0 recognises its class of Arrow writers in streams too, and
        passes batches to a writer that has both classes.
        """


class RmqStoreStreamWriter(ArrowStreamWriter):
    """Appends the rows of one micro-batch to one store.

    Spark makes one writer for the tasks and another to commit.
    """

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._path = options.path
        # A query does not lock the store between its micro-batches, so another query may commit
        # now, which can take long.
        self._sink = StoreSink(schema, options, patience=COMMIT_SECONDS)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Encode the rows of one task. Runs in a task; stateless."""
        query_id, batch_id = micro_batch()
        job_id = _job_id(query_id, int(batch_id))
        begin(self._path, job_id)
        staged = self._sink.stage(iterator, job_folder(self._path, job_id))
        return StagedOfQuery(staged.partition, staged.part, staged.host, query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Append what the tasks staged, unless the store has this micro-batch already.

        Runs on the driver.
        """
        if batchId == 0:
            self._sink.warn_ignored()
        for query_id in _queries(messages):
            self._sink.append(messages, (f"query:{query_id}", batchId))
        self._sweep(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Remove what the tasks staged; committed rows stay. Runs on the driver."""
        self._sweep(messages, batchId)

    def _sweep(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Remove the staged files of this micro-batch, and those left by earlier ones.

        An attempt that begins after the end of its micro-batch makes the folder again.
        """
        for query_id in _queries(messages):
            for job_id in {_job_id(query_id, batch_id), *job_ids(self._path)}:
                of_query, _, number = job_id.rpartition("-")
                if of_query == query_id and number.isdecimal() and int(number) <= batch_id:
                    sweep(self._path, job_id)


def _queries(messages: Sequence[WriterCommitMessage | None]) -> set[str]:
    """Return the id of the query that messages are of; an empty set if no task left a message."""
    return {message.query_id for message in messages if isinstance(message, StagedOfQuery)}


def _job_id(query_id: str, batch_id: int) -> str:
    return f"{query_id}-{batch_id}"


class RmqStoreWriter(DataSourceArrowWriter):
    """Appends rows to one store."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        self._job_id = uuid4().hex
        self._sink = StoreSink(schema, options)
        self._sink.warn_ignored()
        begin(options.path, self._job_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Encode the rows of one task. Runs in a task; stateless."""
        return self._sink.stage(iterator, job_folder(self._options.path, self._job_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append what the tasks staged. Runs on the driver."""
        self._sink.append(messages, self._options.txn)
        sweep(self._options.path, self._job_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what the tasks staged; committed rows stay. Runs on the driver."""
        del messages
        sweep(self._options.path, self._job_id)


def require_columns(names: Sequence[str], spec: WriteSpec) -> None:
    """Refuse columns of which no row could be written, before any task runs.

    Raises:
        IllegalMessageError: a column is unknown, or body or the topic is missing.
    """
    unknown = [name for name in names if name not in WRITE_TYPES and name not in ASSIGNED]
    if unknown:
        raise IllegalMessageError(
            f"unknown columns {', '.join(unknown)}; a message has {', '.join(WRITE_TYPES)}: "
            "select or rename columns"
        )
    if "body" not in names:
        raise IllegalMessageError(f"column body is missing; there are {', '.join(names) or 'none'}")
    if "topic" not in names and spec.topic is None:
        raise IllegalMessageError(
            "no topic: give a column named topic, or one topic for all rows with option topic"
        )


@dataclass
class Staged(WriterCommitMessage):
    """The message of a task to the driver."""

    partition: int
    part: StagedTask
    host: str  # that the task ran on


@dataclass
class StagedOfQuery(Staged):
    """The message of a task to the driver."""

    query_id: str  # which Spark does not give to a stream writer


class StoreSink:
    """Stages rows in tasks and appends them on the driver.

    It is made on the driver and pickled to tasks.
    """

    @option_names()
    def __init__(
        self, schema: StructType, options: WriteOptions, patience: float = _BEGIN_SECONDS
    ) -> None:
        require_columns(schema.names, options.spec)
        self._options = options
        self._ignored = [name for name in schema.names if name in ASSIGNED]
        queue_nums = options.spec.queue_nums
        config = options.config
        if is_store(options.path, conf=options.conf):
            # A store that a broker holds is refused before any work.
            with _open(options, patience) as store:
                queue_nums = store.queue_nums()
                config = store.config
        self._spec = replace(
            options.spec, queue_nums=queue_nums, n_delay_levels=config.n_delay_levels
        )
        self._file_size = config.mapped_file_size_commit_log
        self._rules = config.rules

    def warn_ignored(self) -> None:
        """Log which columns of the rows are not written."""
        if self._ignored:
            logger.warning(
                "columns that the store assigns are not written: %s", ", ".join(self._ignored)
            )

    @option_names()
    def stage(self, batches: Iterator[pa.RecordBatch], folder: Path) -> Staged:
        """Encode the rows of one task into a file of its own. Runs in a task."""
        tune_worker()
        require_folder(folder)
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        partition = context.partitionId()
        attempt = context.taskAttemptId()
        maker = MessageMaker(self._spec, turn=partition)
        # Attempts of a driver that died may still run, and have the numbers of the next driver's.
        path = folder / f"part-{partition}-{attempt}-{uuid4().hex}"
        disk = disk_of(self._options.path)
        with PartWriter(disk, path, self._file_size, self._rules) as file:
            for batch in batches:
                file.write(maker.make(batch, first_row=file.n_records + 1))
            return Staged(partition, file.part(), gethostname())

    @option_names()
    def append(
        self, messages: Sequence[WriterCommitMessage | None], txn: tuple[str, int] | None
    ) -> None:
        """Append what tasks staged, unless the store has this version of the application.

        Runs on the driver.
        """
        staged = [message for message in messages if isinstance(message, Staged)]
        staged.sort(key=lambda message: message.partition)
        with _open(self._options, COMMIT_SECONDS) as store:
            if txn is not None:
                done = store.done_version(txn[0])
                if done is not None and txn[1] <= done:
                    logger.warning(
                        "%s version %d is in %s already; skipped", *txn, self._options.path
                    )
                    return
            for message in staged:
                if message.part.n_records:
                    require_staged(message.part.path, message.host)
            store.append_staged([message.part for message in staged], are_all=True)
            store.flush(txn=txn)


def _open(options: WriteOptions, patience: float) -> StoreWriter:
    """Open the store, or make it.

    If a writer of ours has the store, this waits until that has committed, at most
    ``COMMIT_SECONDS``; for anybody else it waits ``patience`` seconds. A writer of ours that is
    closing the store has no ``abort`` file any more before it releases the lock.
    """
    started = seen_ours = monotonic()
    while True:
        try:
            if is_store(options.path, conf=options.conf):
                return open_for(
                    options.path,
                    "a",
                    config=options.config,
                    spec=options.spec,
                    broker_stopped=options.broker_stopped,
                    conf=options.conf,
                )
            return create(options.path, config=options.config, spec=options.spec, conf=options.conf)
        except StoreLockedError as err:
            now = monotonic()
            # Whether the writer that holds the store seems to be one of ours, and not a broker.
            path = options.path
            conf = options.conf
            if is_store(path, conf=conf) and find_store(path, conf=conf).has_our_abort:
                seen_ours = now
            if now - started > COMMIT_SECONDS or now - seen_ours > patience:
                raise
            logger.info("%s; waiting", err)
            sleep(_PAUSE_SECONDS)
