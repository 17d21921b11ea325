"""Count words of messages a minute, as a job that read Kafka did: only its source has changed.

Usage: python examples/15_move_kafka_job.py STORE TOPIC RESULT CHECKPOINT
"""

from __future__ import annotations

import sys

from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - as Spark's own documentation has it
)


def source(spark: SparkSession, store: str, topic: str) -> DataFrame:
    # Before: format("kafka"), no option columns, and load() without a path. The options of a Kafka
    # client may stay: they are ignored.
    return (
        spark.readStream.format("rmqstore")
        .option("columns", "kafka")
        .option("kafka.bootstrap.servers", "host1:9092,host2:9092")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load(store)
    )


def words_a_minute(messages: DataFrame) -> DataFrame:
    """Return what the job computes, which knows the columns of Spark's Kafka source."""
    text = messages.select(
        "timestamp",
        F.explode(F.split(F.col("value").cast("string"), "[^a-zA-Z]+")).alias("word"),
    )
    minutes = F.window("timestamp", "1 minute")
    return text.where("word != ''").groupBy(minutes, "word").count()


def main(store: str, topic: str, result: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.appName("words")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    messages = source(spark, store, topic)
    print(", ".join(f"{name} {kind}" for name, kind in messages.dtypes))

    def save(counts: DataFrame, _batch: int) -> None:
        counts.write.mode("overwrite").parquet(result)

    query = (
        words_a_minute(messages)
        .writeStream.outputMode("complete")
        .foreachBatch(save)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    counts = spark.read.parquet(result)
    total = counts.agg(F.sum("count")).first()
    print(f"{total and total[0]} words in {counts.count()} rows")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
