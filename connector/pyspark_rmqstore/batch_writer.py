"""The batch sink: appends all rows of a job, or none."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmqstore.sink import StoreSink
from pyspark_rmqstore.staging import begin, job_folder, sweep
from pyspark_rmqstore.write_options import WriteOptions


class RmqStoreWriter(DataSourceArrowWriter):
    """Appends rows to one store."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options, self._job_id = options, uuid.uuid4().hex
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
