"""Chooses the stream classes for the installed PySpark, whose API for streams is still growing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark.sql import datasource

from pyspark_rmqstore.options import StreamOptions
from pyspark_rmqstore.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter
    from pyspark.sql.types import StructType


def stream_reader(schema: StructType, options: StreamOptions) -> DataSourceStreamReader:
    """Return a reader of micro-batches, with limits from PySpark 4.2 on.

    Raises:
        UnsupportedFeatureError: the options set limits, and the installed PySpark supports none.
    """
    if find_spec("pyspark.sql.streaming.datasource"):
        from pyspark_rmqstore.limited_stream_reader import LimitedStreamReader

        return LimitedStreamReader(schema, options)
    from pyspark_rmqstore.unlimited_stream_reader import UnlimitedStreamReader

    return UnlimitedStreamReader(schema, options)


def stream_writer(schema: StructType, options: WriteOptions) -> DataSourceStreamWriter:
    """Return a writer of micro-batches that takes Arrow batches."""
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        from pyspark_rmqstore.arrow_stream_writer import ArrowStreamWriter

        return ArrowStreamWriter(schema, options)
    from pyspark_rmqstore.older_stream_writer import OlderStreamWriter

    return OlderStreamWriter(schema, options)
