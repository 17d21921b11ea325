"""The data source ``rmqstore`` for Apache Spark.

Spark finds ``DefaultSource`` here without registration. Only pyspark is imported before a read
begins, because an import that fails here would hide every Python data source.
"""

from pyspark_rmqstore.source import RmqStoreDataSource as DefaultSource, register

__all__ = ["DefaultSource", "register"]
