"""Read a topic into a DataFrame.

This chooses topics, columns and offsets, and shows damage instead of failing on it.

Usage: python examples/01_read_topic.py STORE TOPIC
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(store: str, topic: str) -> None:
    spark = SparkSession.builder.appName("read").getOrCreate()

    messages = spark.read.format("rmqstore").option("subscribe", topic).load(store)
    print(f"{messages.count()} messages in {topic}")

    # Only the requested columns are decoded.
    per_tag = (
        spark.read.format("rmqstore")
        .option("subscribe", topic)
        .option("columns", "tags,storeSize")
        .load(store)
    )
    per_tag.groupBy("tags").sum("storeSize").orderBy("tags").show()

    # Part of a queue. Offsets are written as in Spark's Kafka source; -2 is earliest, -1 latest.
    part = (
        spark.read.format("rmqstore")
        .option("assign", f'{{"{topic}":[0]}}')
        .option("startingOffsets", f'{{"{topic}":{{"0":2}}}}')
        .load(store)
    )
    print(f"{part.count()} messages in queue 0 from offset 2 on")

    # Damaged records become rows that say what is wrong, instead of an error.
    records = (
        spark.read.format("rmqstore")
        .option("mode", "PERMISSIVE")
        .option("scan", "commitlog")
        .load(store)
    )
    damaged = records.where("_corrupt_record IS NOT NULL")
    print(f"{damaged.count()} damaged records in the whole log")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
