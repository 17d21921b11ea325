"""The data source that Spark sees. Its methods import the other modules; the package says why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ModuleNotFoundError as err:  # pragma: no cover - the message is the point
    from rmqstore.errors import install

    needed = f"PySpark is not installed: {install('spark')}"
    raise ModuleNotFoundError(needed, name=err.name) from err

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
    )
    from pyspark.sql.types import StructType


class RmqStoreDataSource(DataSource):
    """``spark.read.format("rmqstore").load(path)``: messages of an Apache RocketMQ store.

    The manual in ``docs/`` describes the options and columns.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rmqstore"

    def schema(self) -> StructType:
        """Return the columns that the options ask for. Runs on the driver."""
        from pyspark_rmqstore.options import parse_column_options
        from pyspark_rmqstore.schema import default_schema, spark_schema
        from pyspark_rmqstore.store_options import (
            asks_for_view,
            creates_table,
            keep_options,
            user_options,
        )

        options = user_options(self.options)
        if asks_for_view(options):
            from pyspark_rmqstore.view_reader import parse_view_options

            schema = spark_schema(parse_view_options(options).spec.schema)
        else:
            schema = default_schema(parse_column_options(options))
        return keep_options(schema, options) if creates_table(self.options) else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader of these columns. Runs on the driver."""
        from pyspark_rmqstore.batch_reader import FilteringReader, RmqStoreReader, pushes_filters
        from pyspark_rmqstore.options import parse_read_options
        from pyspark_rmqstore.store_options import asks_for_view, options_of_read

        options = options_of_read(self.options, schema)
        if asks_for_view(options):
            from pyspark_rmqstore.view_reader import RmqStoreViewReader, parse_view_options

            return RmqStoreViewReader(schema, parse_view_options(options))
        read = parse_read_options(options)
        return (FilteringReader if pushes_filters() else RmqStoreReader)(schema, read)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of micro-batches of these columns. Runs on the driver."""
        from pyspark_rmqstore.options import parse_stream_options
        from pyspark_rmqstore.spark_versions import stream_reader
        from pyspark_rmqstore.store_options import options_of_read

        return stream_reader(schema, parse_stream_options(options_of_read(self.options, schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a batch writer of these columns. Runs on the driver."""
        from pyspark_rmqstore.sink import RmqStoreWriter
        from pyspark_rmqstore.write_options import parse_write_options, writes_to_brokers

        _require_append("mode", overwrite=overwrite)
        if writes_to_brokers(self.options):
            live = import_module("pyspark_rmqstore.live.sink")
            return live.RmqLiveWriter(schema, live.parse_send_options(self.options))
        return RmqStoreWriter(schema, parse_write_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return a writer of one micro-batch of these columns. Runs on the driver."""
        from pyspark_rmqstore.sink import RmqStoreStreamWriter
        from pyspark_rmqstore.write_options import parse_stream_write_options, writes_to_brokers

        _require_append("outputMode", overwrite=overwrite)
        if writes_to_brokers(self.options):
            live = import_module("pyspark_rmqstore.live.sink")
            return live.RmqLiveStreamWriter(schema, live.parse_send_options(self.options))
        return RmqStoreStreamWriter(schema, parse_stream_write_options(self.options))


def _require_append(how: str, *, overwrite: bool) -> None:
    """Refuse to replace what a store holds."""
    if overwrite:
        from rmqstore.errors import UnsupportedFeatureError

        raise UnsupportedFeatureError(
            f'a store is a log, which can only be appended to: write with {how}("append")'
        )


def register(spark: SparkSession) -> None:
    """Register the source with a session.

    This is needed only if Spark's own look-up fails because of another package.
    """
    spark.dataSource.register(RmqStoreDataSource)
