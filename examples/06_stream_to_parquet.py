"""Archive a live store to Parquet by topic and day.

Run it as often as you like: each run archives the new messages.

Usage: python examples/06_stream_to_parquet.py STORE ARCHIVE CHECKPOINT [HOURS]

With HOURS it ends with exit code 1 if the archive of the last run was less than that ahead of what
retention had deleted when this run began: then it has to run more often, or retention is too short.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812 - as Spark's own documentation has it
)

import rmqstore


def alerts(spark: SparkSession, store: str, archive: str, hours: float) -> list[str]:
    """Return the queues whose messages were archived shortly before retention deleted them.

    The oldest message that a queue still has shows how far retention has come.
    """
    if not list(Path(archive).glob("topic=*")):
        return []  # the first run
    latest = spark.read.parquet(archive).groupBy("topic", "queueId")
    rows = latest.agg(F.max("queueOffset").alias("offset"), F.max("storeTimestamp").alias("time"))
    archived = {
        (row.topic, row.queueId): (row.offset, row.time.timestamp()) for row in rows.collect()
    }
    found = []
    with rmqstore.open(store) as opened:
        queues = opened.view("queues", where="minOffset > 0").read_all().to_pylist()
    for queue in queues:
        offset, time = archived.get((queue["topic"], queue["queueId"]), (-1, 0.0))
        where = f"ALERT {queue['topic']}-{queue['queueId']}"
        oldest = queue["firstStoreTimestamp"]
        if offset + 1 < queue["minOffset"]:
            found.append(f"{where}: {queue['minOffset'] - offset - 1} messages are lost")
        elif oldest is not None and time - oldest.timestamp() < hours * 3600:
            ahead = (time - oldest.timestamp()) / 3600
            found.append(f"{where}: the archive is {ahead:.2f} hours ahead of retention")
    return found


def main(store: str, archive: str, checkpoint: str, hours: str = "0") -> None:
    spark = SparkSession.builder.appName("archive").getOrCreate()
    found = alerts(spark, store, archive, float(hours))
    # The checkpoint knows how far the last run got, even if it was killed. The first run starts at
    # the oldest message. A later run fails if retention has deleted messages in between, and names
    # the offsets that are gone.
    messages = (
        spark.readStream.format("rmqstore")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
        .load(store)
    )
    query = (
        messages.withColumn("day", F.to_date("storeTimestamp"))
        .writeStream.format("parquet")
        .option("path", archive)
        .option("checkpointLocation", checkpoint)
        .partitionBy("topic", "day")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    new = sum(progress.numInputRows for progress in query.recentProgress)
    print(f"{new} new messages, {spark.read.parquet(archive).count()} in {archive}")
    spark.stop()
    if found:
        raise SystemExit("\n".join(found))  # exit code 1, for whatever runs this to send on


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
