"""Make a store of test data for a broker.

Usage: python examples/05_test_data.py STORE [MESSAGES]

The messages are orders with tags, keys and a sharding key, and some of them are delayed. Start a
broker on the store, with `storePathRootDir=STORE` in its configuration and the default file sizes.
The broker has nothing to recover, serves topic Orders, and delivers the delayed messages when they
are due.
"""

from __future__ import annotations

import sys

from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812 - its usual name
)


def main(store: str, count: str = "10000") -> None:
    spark = SparkSession.builder.appName("data").getOrCreate()
    number = F.col("id")
    amount = number * 7 % 1000
    states = F.array(F.lit("new"), F.lit("paid"), F.lit("sent"))
    orders = spark.range(int(count)).select(
        F.lit("Orders").alias("topic"),
        F.to_json(F.struct(number.alias("order"), amount.alias("amount"))).alias("body"),
        F.element_at(states, (number % 3 + 1).cast("int")).alias("tags"),
        F.concat(F.lit("order-"), number).alias("keys"),
        F.concat(F.lit("customer-"), number % 100).alias("shardingKey"),
        F.create_map(F.lit("currency"), F.lit("EUR")).alias("properties"),
        F.when(number % 100 == 0, 5).alias("delayTimeLevel"),  # level 5: a minute
    )
    # The orders of a customer stay in one queue, in their order.
    writer = orders.write.format("rmqstore").options(queueNums=8, queueSelector="hash")
    writer.mode("append").save(store)
    written = spark.read.format("rmqstore").option("includeSystemTopics", "true").load(store)
    written.groupBy("topic", "tags").count().orderBy("topic", "tags").show()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
