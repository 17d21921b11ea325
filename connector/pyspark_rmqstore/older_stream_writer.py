"""The streaming sink for PySpark 4.0, whose class for stream writers takes rows.

Rows would need a loop, and their times are local times, which are ambiguous for an hour of each
autumn. But PySpark 4.0 recognises its class of Arrow writers in streams too, and passes batches to
a writer that has both classes.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

from pyspark_rmqstore.stream_writer import RmqStoreStreamWriter


class OlderStreamWriter(RmqStoreStreamWriter, DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[misc]
    """A stream writer that takes Arrow batches."""
