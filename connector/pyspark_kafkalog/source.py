"""The data source that Spark sees. Its methods import the other modules; the package says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

try:
    from pyspark.sql.datasource import DataSource
except ModuleNotFoundError as err:  # pragma: no cover - the message is the point
    from rmqstore.errors import install

    needed = f"PySpark is not installed: {install('spark')}"
    raise ModuleNotFoundError(needed, name=err.name) from err

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


class KafkaLogDataSource(DataSource):
    """``spark.read.format("kafkalog").load(log_dir)``: records of Kafka's partition folders.

    Columns and options are those of Spark's Kafka source, so that a job changes its format and
    names a path.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "kafkalog"

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source. Runs on the driver."""
        from pyspark_kafkalog.options import parse_column_options
        from pyspark_kafkalog.rows import default_schema

        return default_schema(parse_column_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader of these columns. Runs on the driver."""
        from pyspark_kafkalog.options import parse_read_options
        from pyspark_kafkalog.rows import KafkaLogReader

        return KafkaLogReader(schema, parse_read_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of micro-batches of these columns. Runs on the driver."""
        from importlib.util import find_spec

        from pyspark_kafkalog.options import parse_stream_options
        from rmqstore.errors import UnsupportedFeatureError

        if find_spec("pyspark.sql.streaming.datasource") is None:
            raise UnsupportedFeatureError(
                "kafkalog: streams need PySpark 4.2 or later, whose sources can limit a trigger; "
                "read the log directory in batches, or install a later PySpark"
            )
        from pyspark_kafkalog.stream_reader import KafkaLogStreamReader

        return KafkaLogStreamReader(schema, parse_stream_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002 - Spark's
        """Refuse to write.

        Raises:
            UnsupportedFeatureError: always.
        """
        from rmqstore.errors import UnsupportedFeatureError

        raise UnsupportedFeatureError(
            'kafkalog only reads; write to Kafka by format("kafka"), which asks the brokers'
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802 - Spark's name
        """Refuse to write, as :meth:`writer` does."""
        self.writer(schema, overwrite)


def register(spark: SparkSession) -> None:
    """Register the source with a session.

    This is needed only if Spark's own look-up fails because of another package.
    """
    spark.dataSource.register(KafkaLogDataSource)
