"""The streaming sink for PySpark 4.1 and later, which hands Arrow batches to it."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from pyspark_rmqstore.stream_writer import RmqStoreStreamWriter


class ArrowStreamWriter(RmqStoreStreamWriter, DataSourceStreamArrowWriter):
    """Takes Arrow batches as they come."""
