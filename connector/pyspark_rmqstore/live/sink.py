"""The sink for running brokers: each task sends its rows, at least once.

The unique keys of rows that have none are made of their numbers in the task, so messages that a
repeated task sends again have equal ids if its rows come in the same order.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_rmqstore.option_names import SPARK_OWN, option_names
from pyspark_rmqstore.sink import ArrowStreamWriter, micro_batch, require_columns
from pyspark_rmqstore.worker import tune_worker
from rmqstore.errors import BrokerUnreachableError, UnsupportedFeatureError
from rmqstore.format.schema import ASSIGNED
from rmqstore.live.location import LiveLocation
from rmqstore.live.writer import OF_BROKERS, LiveWriter, RepeatableKeys
from rmqstore.query.options import WRITE_OPTIONS, GivenOptions
from rmqstore.write.messages import WriteSpec

logger = logging.getLogger(__name__)

_PREFIX_BYTES = 8
# The options of writes that running brokers take too.
_TAKEN = ("topic", "queueSelector", "compression", "uniqKey", "storageOptions")


@dataclass(frozen=True, slots=True)
class SendOptions:
    """The options of one write to running brokers, validated."""

    location: LiveLocation
    spec: WriteSpec


@option_names()
def parse_send_options(options: Mapping[str, str]) -> SendOptions:
    """Parse the options of a write to running brokers.

    Raises:
        OptionError: the path is no address of name servers, or an option says in vain how to reach
            them.
        UnsupportedFeatureError: an option is of stores.
    """
    given = GivenOptions(options, WRITE_OPTIONS, SPARK_OWN)
    location = LiveLocation.parse(given["path"], given["storageOptions"])
    known = ("paths", *(option.name for option in WRITE_OPTIONS))
    of_stores = [name for name in known if name in given and name not in _TAKEN]
    if of_stores:
        raise UnsupportedFeatureError(
            f"{', '.join(of_stores)}: running brokers take none of it; see docs/live.md"
        )
    return SendOptions(
        location,
        WriteSpec(
            topic=given["topic"] or None,
            queue_selector=given["queueSelector"],
            compression=given["compression"],
            make_uniq_key=given["uniqKey"] == "make",
        ),
    )


@dataclass
class Sent(WriterCommitMessage):
    """The message of a task to the driver: how many messages are stored."""

    n_messages: int


class LiveSink:
    """Sends rows in tasks. It is made on the driver and pickled to tasks."""

    @option_names()
    def __init__(self, schema: StructType, options: SendOptions) -> None:
        require_columns(schema.names, options.spec)
        self._options = options
        self._ignored = [name for name in schema.names if name in (*ASSIGNED, *OF_BROKERS)]

    def warn_ignored(self) -> None:
        """Log which columns of the rows are not sent."""
        if self._ignored:
            logger.warning("columns that brokers assign are not sent: %s", ", ".join(self._ignored))

    @option_names()
    def send(self, batches: Iterator[pa.RecordBatch], job: str) -> Sent:
        """Send the rows of one task. Runs in a task.

        Args:
            batches: the rows.
            job: what these rows are of: the same in each attempt of the job.
        """
        tune_worker()
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        partition = context.partitionId()
        digest = hashlib.sha256(f"{job}:{partition}".encode()).digest()
        options = self._options
        with LiveWriter(
            options.location,
            options.spec,
            keys=RepeatableKeys(digest[:_PREFIX_BYTES]),
            turn=partition,
            waits=True,
        ) as writer:
            n_rows = 0
            for batch in batches:
                writer.append(batch, first_row=n_rows + 1)
                n_rows += len(batch)
            writer.flush()
            return Sent(writer.n_sent)


class RmqLiveWriter(DataSourceArrowWriter):
    """Sends rows to running brokers."""

    def __init__(self, schema: StructType, options: SendOptions) -> None:
        self._job = uuid.uuid4().hex
        self._sink = LiveSink(schema, options)
        if options.spec.topic is not None:
            # A topic that does not exist is refused before any task waits for it. A stream makes
            # a writer for each commit too, maybe while a broker is started again.
            with LiveWriter(options.location) as writer, suppress(BrokerUnreachableError):
                writer.queues_of([options.spec.topic])
        self._sink.warn_ignored()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task. Runs in a task; stateless."""
        return self._sink.send(iterator, self._job)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log how many messages are stored. Runs on the driver."""
        log_stored(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log how many messages are stored although the job failed. Runs on the driver."""
        log_stored(messages)


class RmqLiveStreamWriter(ArrowStreamWriter):
    """Sends the rows of micro-batches to running brokers; a repeated one is sent again."""

    def __init__(self, schema: StructType, options: SendOptions) -> None:
        self._sink = LiveSink(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task. Runs in a task; stateless."""
        return self._sink.send(iterator, ":".join(micro_batch()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log what is not sent, once. Runs on the driver."""
        if batchId == 0:
            self._sink.warn_ignored()
        log_stored(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's name
        """Log how many messages are stored. Runs on the driver."""
        log_stored(messages)


def log_stored(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Log how many messages the tasks of a job have stored."""
    total = sum(message.n_messages for message in messages if isinstance(message, Sent))
    logger.info("%d messages are stored", total)
