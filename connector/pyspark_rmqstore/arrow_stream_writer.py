"""The streaming sink for PySpark 4.1 and later, which passes Arrow batches to it."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from pyspark_rmqstore.stream_writer import RmqStoreStreamWriter


class ArrowStreamWriter(RmqStoreStreamWriter, DataSourceStreamArrowWriter):
    """A stream writer that takes Arrow batches."""
