"""Copy topics of Kafka from the log directories of a broker into a RocketMQ store.

Usage: python examples/16_kafka_logs_to_rocketmq.py LOG_DIR STORE TOPIC...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - as Spark's own documentation has it
)

from kafkalog.exchange import as_messages

MESSAGE = (
    "topic STRING, queueId INT, body BINARY, keys STRING, properties MAP<STRING, STRING>, "
    "bornTimestamp TIMESTAMP"
)


def messages_of(records: DataFrame) -> DataFrame:
    """Return records of Kafka as messages: partitions as queues, keys as KEYS, and so on."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(as_messages, batches)

    messages = records.mapInArrow(convert, MESSAGE)
    return messages.withColumn("topic", F.translate("topic", ".", "_"))  # RocketMQ allows no dots


def main(log_dir: str, store: str, topics: list[str]) -> None:
    spark = SparkSession.builder.appName("kafka-to-rocketmq").getOrCreate()
    for topic in topics:
        records = (
            spark.read.format("kafkalog")
            .option("subscribe", topic)
            .option("includeHeaders", "true")
            .option("kafka.isolation.level", "read_committed")
            .load(log_dir)
        )
        last = records.agg(F.max("partition")).first()
        if last is None or last[0] is None:
            print(f"{topic} is empty")
            continue
        # A version of an application is written only once, so this may be run again after a crash.
        (
            messages_of(records)
            .write.format("rmqstore")
            .mode("append")
            .option("queueNums", last[0] + 1)
            .option("txnAppId", f"kafka-{topic}")
            .option("txnVersion", "1")
            .save(store)
        )
    copied = spark.read.format("rmqstore").load(store)
    copied.groupBy("topic", "queueId").count().orderBy("topic", "queueId").show()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
