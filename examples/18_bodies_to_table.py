"""Keep the JSON bodies of a topic in a table with a partition for each day, bad ones in another.

Usage: python examples/18_bodies_to_table.py SOURCE TOPIC LAKE [FORMAT [SECONDS]]

SOURCE is a store or rocketmq://…. The tables are LAKE/orders and LAKE/bad_orders, in Delta Lake
unless FORMAT says parquet. Without SECONDS it takes what is new and ends, as a nightly job does;
with them it goes on, with a micro-batch every so many seconds.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession, functions as sf

ORDER = "orderId LONG, customer STRING, amount DECIMAL(12,2)"
TABLES = ("orders", "bad_orders")
IDENTITY = ("queueId", "queueOffset", "msgId", "storeTimestamp", "day")


def orders_of(messages: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the orders, and the messages whose body is none."""
    text = sf.col("body").cast("string")  # bytes that are no UTF-8 are no JSON either
    order = sf.from_json(
        text, f"{ORDER}, bad STRING", {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    )
    parsed = messages.select("*", sf.to_date("storeTimestamp").alias("day"), order.alias("order"))
    # Damaged records have no body. JSON of another kind, such as {}, has no order.
    is_good = sf.col("order.bad").isNull() & sf.col("order.orderId").isNotNull()
    good = parsed.where(is_good).select(*IDENTITY, "order.*").drop("bad")
    bad = parsed.where(~sf.coalesce(is_good, sf.lit(False)))  # noqa: FBT003 - Spark's signature
    return good, bad.select(*IDENTITY, "body", "_corrupt_record")


def main(
    source: str, topic: str, lake: str, table_format: str = "delta", seconds: str = ""
) -> None:
    builder = SparkSession.builder.appName("orders").config("spark.sql.session.timeZone", "UTC")
    if table_format == "delta":
        from delta import configure_spark_with_delta_pip

        extension = "io.delta.sql.DeltaSparkSessionExtension"
        catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        builder.config("spark.sql.extensions", extension)
        builder.config("spark.sql.catalog.spark_catalog", catalog)
        builder = configure_spark_with_delta_pip(builder)
    spark = builder.getOrCreate()

    def write(batch: DataFrame, batch_id: int) -> None:
        # Spark repeats a batch after a crash. Delta passes over a version that a table has of an
        # application: the id of the query, which its checkpoint keeps.
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        for name, rows in zip(TABLES, orders_of(batch), strict=True):
            writer = rows.write.format(table_format).mode("append").partitionBy("day")
            writer = writer.option("txnAppId", f"{query_id}-{name}").option("txnVersion", batch_id)
            writer.save(f"{lake}/{name}")

    messages = (
        spark.readStream.format("rmqstore")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("mode", "PERMISSIVE")  # damaged records come as rows, and go to the bad ones
        .option("columns", "queueId,queueOffset,msgId,storeTimestamp,body,_corrupt_record")
        .load(source)
    )
    writer = messages.writeStream.foreachBatch(write).option(
        "checkpointLocation", f"{lake}/_checkpoint"
    )
    if seconds:
        writer.trigger(processingTime=f"{seconds} seconds").start().awaitTermination()
    else:
        writer.trigger(availableNow=True).start().awaitTermination()

    # Offsets of a queue have no gaps, so the tables show that nothing is missing.
    reader = spark.read.format(table_format)
    orders, bad = (
        # Parquet knows no columns of a table without rows.
        (reader if table_format == "delta" else reader.schema(rows.schema)).load(f"{lake}/{name}")
        for name, rows in zip(TABLES, orders_of(messages), strict=True)
    )
    offsets = orders.select(*IDENTITY).unionByName(bad.select(*IDENTITY))
    queues = offsets.groupBy("queueId").agg(
        sf.count("*").alias("messages"),
        sf.count_distinct("queueOffset").alias("offsets"),
        (sf.max("queueOffset") - sf.min("queueOffset") + 1).alias("expected"),
    )
    queues.orderBy("queueId").show()
    wrong = queues.where("messages <> offsets OR offsets <> expected").count()
    print(f"{orders.count()} orders, {bad.count()} bad bodies, {wrong} queues with gaps or doubles")
    spark.stop()


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 6:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
