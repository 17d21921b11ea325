"""Follow a store and replay the messages of some tags into another store, each once.

Usage: python examples/07_replay_stream.py STORE TARGET CHECKPOINT TOPIC TAGS [--once]

TAGS are written as in a subscription: "TagA || TagB". This runs until it is stopped, or with --once
until all present messages are replayed.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery


def lag(query: StreamingQuery) -> int | None:
    """Return how many messages the query is behind as of its last trigger, None before that."""
    if query.lastProgress is None:
        return None
    (source,) = json.loads(query.lastProgress.json)["sources"]
    ends = {name: source[name]["queues"] for name in ("latestOffset", "endOffset")}
    return sum(
        end - ends["endOffset"].get(topic, {}).get(broker, {}).get(queue_id, 0)
        for topic, brokers in ends["latestOffset"].items()
        for broker, queues in brokers.items()
        for queue_id, end in queues.items()
    )


def main(store: str, target: str, checkpoint: str, topic: str, tags: str, once: str = "") -> None:
    spark = SparkSession.builder.appName("replay").getOrCreate()
    messages = (
        spark.readStream.format("rmqstore")
        .option("subscribe", topic)
        .option("tags", tags)
        .option("startingOffsets", "earliest")
        .load(store)
    )
    # Each micro-batch is appended once. It is identified by its number and the query id, which is
    # in the checkpoint: so keep the checkpoint.
    writer = (
        messages.writeStream.format("rmqstore")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
    )
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="1 second")
    query = writer.start(target)
    while not query.awaitTermination(10):
        print(f"{lag(query)} messages behind", flush=True)
    print(f"replayed into {target}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) not in (6, 7):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
