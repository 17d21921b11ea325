"""Find messages by key, by a condition and by a filter, and find pending messages.

Keys are looked up in the index, and the condition leaves parts of the store unread.

Usage: python examples/09_find_messages.py STORE KEY [KEY ...]
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrameReader, SparkSession


def main(store: str, *keys: str) -> None:
    spark = SparkSession.builder.appName("find").getOrCreate()

    def reader() -> DataFrameReader:
        return spark.read.format("rmqstore").option(
            "columns", "topic,queueId,queueOffset,storeTimestamp,tags,keys,msgId"
        )

    # All keys are looked up in one pass. The index names candidates, and those parts of the log
    # that it does not cover are read.
    matches = reader().option("msgKey", json.dumps(keys)).load(store)
    matches.orderBy("storeTimestamp").show(truncate=False)
    print(f"{matches.count()} messages by {len(keys)} keys")

    # The same id as a condition. DataFrame.where would read the whole store.
    first = matches.first()
    if first is not None:
        condition = f"topic = '{first.topic}' AND msgId = '{first.msgId}'"
        same = reader().option("where", condition).load(store)
        print(f"{same.count()} messages with id {first.msgId}")

    # The messages that a consumer with this SQL92 filter would receive.
    filtered = reader().option("filter", "TAGS IS NOT NULL AND KEYS IS NOT NULL").load(store)
    print(f"{filtered.count()} messages with tags and keys")

    # Pending messages: undecided transactions, delayed and timed messages.
    pending = (
        spark.read.format("rmqstore")
        .option("includePending", "true")
        .load(store)
        .where("pending IS NOT NULL")
    )
    pending.groupBy("topic", "pending").count().orderBy("topic", "pending").show()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
