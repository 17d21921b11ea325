"""Keep a table of the messages and bytes of a store by topic and hour; each message counts once.

Usage: python examples/08_foreach_batch.py STORE TABLE CHECKPOINT
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - as Spark's own documentation has it
)


def main(store: str, table: str, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("counts").getOrCreate()

    def count(batch: DataFrame, batch_id: int) -> None:
        # A batch may be repeated after a crash: it overwrites what its first attempt has left. With
        # a Delta table, append with txnAppId and txnVersion instead.
        by_hour = batch.groupBy("topic", F.date_trunc("hour", "storeTimestamp").alias("hour"))
        counts = by_hour.agg(F.count("*").alias("messages"), F.sum("storeSize").alias("bytes"))
        counts.coalesce(1).write.mode("overwrite").parquet(str(Path(table, f"batch={batch_id}")))

    query = (
        spark.readStream.format("rmqstore")
        .schema("topic string, storeTimestamp timestamp, storeSize int")  # nothing else is decoded
        .option("startingOffsets", "earliest")
        .load(store)
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    counts = (
        spark.read.parquet(table)
        .groupBy("topic")
        .agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    )
    counts.orderBy("topic").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
