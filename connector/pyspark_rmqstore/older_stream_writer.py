"""The streaming sink for PySpark 4.0, whose class for streams takes rows.

Rows would bring local times, which an hour of each autumn has twice, and cost a loop. PySpark 4.0 looks for its class
of Arrow writers in streams too, and hands batches to a writer that is both.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

from pyspark_rmqstore.stream_writer import RmqStoreStreamWriter


class OlderStreamWriter(RmqStoreStreamWriter, DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[misc]
    """Takes Arrow batches as they come; it commits and aborts as streams do."""
