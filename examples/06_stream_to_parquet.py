"""Archive a live store to Parquet by topic and day.

Run it as often as you like: each run archives the new messages.

Usage: python examples/06_stream_to_parquet.py STORE ARCHIVE CHECKPOINT
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it


def main(store: str, archive: str, checkpoint: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("archive")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
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


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
