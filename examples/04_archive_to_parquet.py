"""Archive a store to Parquet by topic, and bring messages back from the archive into a store.

Usage: python examples/04_archive_to_parquet.py STORE ARCHIVE RESTORED
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(store: str, archive: str, restored: str) -> None:
    spark = SparkSession.builder.appName("archive").getOrCreate()
    messages = spark.read.format("rmqstore").load(store)
    # Sorted within each file, so that the messages of a queue come back in their order.
    (
        messages.repartition("topic", "queueId")
        .sortWithinPartitions("topic", "queueId", "queueOffset")
        .write.partitionBy("topic")
        .mode("overwrite")
        .parquet(archive)
    )
    print(f"{spark.read.parquet(archive).count()} messages in {archive}")

    # The store assigns new offsets and store times; a warning says that the archived ones are
    # ignored. Rows of a partition keep their order, so each queue is sorted and in one partition.
    archived = spark.read.schema(messages.schema).parquet(archive)
    (
        archived.repartition("topic", "queueId")
        .sortWithinPartitions("topic", "queueId", "queueOffset")
        .write.format("rmqstore")
        .mode("append")
        .option("uniqKey", "keep")
        .save(restored)
    )
    counts = spark.read.format("rmqstore").load(restored).groupBy("topic").count()
    counts.orderBy("topic").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
