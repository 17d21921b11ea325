"""Send a topic of a RocketMQ store to Kafka, with Spark's Kafka sink.

Usage: python examples/17_rocketmq_to_kafka.py STORE TOPIC [BOOTSTRAP_SERVERS]

Without servers the rows are only shown. The sink is a package of Spark of the same version:
spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION. The topic in Kafka needs as
many partitions as the one of RocketMQ has queues.
"""

from __future__ import annotations

import os
import sys

import pyspark
from pyspark.sql import DataFrame, SparkSession

# The columns that Spark's Kafka sink takes. It gives offset and timestamp, which are new.
SINK_COLUMNS = ("topic", "partition", "key", "value", "headers")


def records_of(spark: SparkSession, store: str, topic: str) -> DataFrame:
    """Return the messages of a topic as the Kafka sink takes them, in the order of their queues."""
    messages = (
        spark.read.format("rmqstore")
        .option("columns", "kafka")
        .option("includeHeaders", "true")
        .option("subscribe", topic)
        .load(store)
    )
    # One task sends all of a queue, so the order within it is kept.
    ordered = messages.repartition("partition").sortWithinPartitions("partition", "offset")
    return ordered.select(*SINK_COLUMNS)


def main(store: str, topic: str, servers: str | None) -> None:
    builder = SparkSession.builder.appName("rocketmq-to-kafka")
    if servers is not None and "spark.jars" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
        builder = builder.config("spark.jars.packages", package)
    spark = builder.getOrCreate()
    records = records_of(spark, store, topic)
    if servers is None:
        records.selectExpr(
            "topic", "partition", "CAST(key AS STRING)", "length(value) AS bytes", "size(headers)"
        ).show(5)
    else:
        (
            records.write.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("kafka.enable.idempotence", "true")
            .save()
        )
    print(f"{records.count()} messages of {topic}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) == 4 else None)
