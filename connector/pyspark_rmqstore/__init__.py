"""The ``rmqstore`` data source of Apache Spark. Spark finds ``DefaultSource`` here without registration.

Nothing but pyspark is imported before a read begins: an import that failed here would hide every Python data source.
"""

from pyspark_rmqstore.source import RmqStoreDataSource as DefaultSource
from pyspark_rmqstore.source import register

__all__ = ["DefaultSource", "register"]
