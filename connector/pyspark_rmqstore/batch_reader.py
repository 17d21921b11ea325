"""The batch reader: plans on the driver and reads in tasks. It has no state besides options."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import ReadOptions
from pyspark_rmqstore.packing import plan_tasks, rows_of
from pyspark_rmqstore.pushdown import push_filters
from pyspark_rmqstore.schema import MADE_OF, as_asked, request_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

logger = logging.getLogger(__name__)


class RmqStoreReader(DataSourceReader):
    """Reads messages of one or several stores, or of running brokers."""

    @option_names()
    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._request = request_of(schema, options)
        self._kafka_names = schema.fieldNames() if options.columns.is_kafka else None

    @option_names()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver."""
        log_to_spark()
        options = self._options
        tasks = plan_tasks(options.source.plan(self._request, options.limits), options.limits)
        logger.info("planned %d tasks of %s", len(tasks), options.source)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task. Runs in a task; stateless."""
        batches = rows_of(partition, lambda task: task.read(self._request))
        return as_asked(self._request, batches, self._kafka_names)


class FilteringReader(RmqStoreReader):
    """A reader that takes filters from Spark.

    Spark refuses such a reader if filter push-down is switched off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Accept the filters that prune, and return the others.

        Runs in a worker, before :meth:`partitions`. Beside option ``where`` it accepts none.

        Spark up to 4.3 keeps the reader in the relation, and gives it to every later read of that
        which has no filters. Then it calls nothing here, and tasks get what the first read got, so
        that a warning is all that a source can give.
        """
        if self._request.where is not None:
            return filters
        logger.warning(
            "spark.sql.python.filterPushdown.enabled: a later query of the same DataFrame or view "
            "may get only the rows of this one. Unset it, or load again for each query"
        )
        names = MADE_OF if self._options.columns.is_kafka else None
        where, rest = push_filters(filters, self._request.schema, names)
        self._request = replace(self._request, where=where)
        return rest


def log_to_spark() -> None:
    """Let the INFO messages of planning into Spark's table of worker logs, if that is switched on.

    Spark plans in a process of its own, whose loggers nobody else can configure.
    """
    if "PYSPARK_SPARK_SESSION_UUID" not in os.environ:
        return
    for name in (__package__, "rmqstore.read.plan", "rmqstore.source"):
        own = logging.getLogger(name)
        if own.level == logging.NOTSET:
            own.setLevel(logging.INFO)


def pushes_filters() -> bool:
    """Return whether Spark is about to push filters down, for which its worker has a module."""
    return "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
