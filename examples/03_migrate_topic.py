"""Copy one topic from a store into another, new or existing, that a RocketMQ broker can open.

Usage: python examples/03_migrate_topic.py SOURCE TARGET TOPIC
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(source: str, target: str, topic: str) -> None:
    spark = SparkSession.builder.appName("migrate").getOrCreate()
    messages = spark.read.format("rmqstore").option("subscribe", topic).load(source)
    # The columns that a store assigns (offsets, store time) get new values; all others are kept. A
    # version of an application is written only once, so this may be run again after a crash.
    (
        messages.write.format("rmqstore")
        .mode("append")
        .option("txnAppId", f"migrate-{topic}")
        .option("txnVersion", "1")
        .save(target)
    )
    copied = spark.read.format("rmqstore").option("subscribe", topic).load(target)
    print(f"{copied.count()} messages of {topic} in {target}, {messages.count()} in {source}")
    copied.groupBy("queueId").count().orderBy("queueId").show()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
