"""The streaming sink: appends every micro-batch exactly once, whatever process is killed when.

A micro-batch is identified by the id of its query, which is kept in the checkpoint, and its number.
The store's ledger holds the number of the newest micro-batch, and the log decides whether it was
committed. A repeated one is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmqstore.sink import COMMIT_SECONDS, Staged, StoreSink
from pyspark_rmqstore.staging import job_folder, job_ids, join, sweep
from pyspark_rmqstore.write_options import WriteOptions
from rmqstore.errors import StoreStateError

# Source: StreamExecution.scala#QUERY_ID_KEY, MicroBatchExecution.scala#BATCH_ID_KEY.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class StagedOfQuery(Staged):
    """The message of a task to the driver."""

    query_id: str  # which Spark does not tell a stream writer


class RmqStoreStreamWriter:
    """Appends the rows of one micro-batch to one store.

    Spark makes one writer for the tasks and another to commit. ``spark_versions`` chooses the class
    of PySpark that this class is combined with.
    """

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._path = options.path
        # A query does not hold the store between its micro-batches, so another query may commit
        # now, which can take long.
        self._sink = StoreSink(schema, options, patience=COMMIT_SECONDS)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Encode the rows of one task. Runs in a task; stateless."""
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        query_id, batch_id = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if not query_id or not batch_id:
            raise StoreStateError(
                f"Spark has not set {_QUERY_ID} and {_BATCH_ID}: "
                "a repeated micro-batch could not be recognised"
            )
        job_id = _job_id(query_id, int(batch_id))
        join(self._path, job_id)
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
        """Remove what the tasks of this micro-batch staged, and what is left of earlier ones.

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
