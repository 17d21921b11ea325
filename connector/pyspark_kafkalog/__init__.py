"""The data source ``kafkalog`` for Apache Spark: Kafka's partition folders, without a broker.

Spark finds ``DefaultSource`` here without registration. Only pyspark is imported before a read
begins, because an import that fails here would hide every Python data source.
"""

from pyspark_kafkalog.source import KafkaLogDataSource as DefaultSource, register

__all__ = ["DefaultSource", "register"]
