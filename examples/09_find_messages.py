"""Find messages: by key through the index, by a WHERE that is pushed down, by a filter, and those on their way.

Usage: python examples/09_find_messages.py STORE KEY [KEY ...]
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import DataFrameReader, SparkSession


def main(store: str, *keys: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.python.filterPushdown.enabled", "true")  # Spark's default is false
        .getOrCreate()
    )

    def reader() -> DataFrameReader:
        return spark.read.format("rmqstore").option(
            "columns", "topic,queueId,queueOffset,storeTimestamp,tags,keys,msgId"
        )

    # All keys in one pass: the index says where to look, and what it does not cover is read.
    found = reader().option("msgKey", json.dumps(keys)).load(store)
    found.orderBy("storeTimestamp").show(truncate=False)
    print(f"{found.count()} messages by {len(keys)} keys")

    # The same id as a condition: explain("formatted") lists what was pushed down.
    first = found.first()
    if first is not None:
        same = reader().load(store).where(f"topic = '{first.topic}' AND msgId = '{first.msgId}'")
        same.explain("formatted")
        print(f"{same.count()} messages with id {first.msgId}")

    # What a consumer with this SQL92 filter would be given.
    filtered = reader().option("filter", "TAGS IS NOT NULL AND KEYS IS NOT NULL").load(store)
    print(f"{filtered.count()} messages with tags and keys")

    # What is on its way: undecided transactions, delayed and timed messages.
    waiting = spark.read.format("rmqstore").option("includePending", "true").load(store).where("pending IS NOT NULL")
    waiting.groupBy("topic", "pending").count().orderBy("topic", "pending").show()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
