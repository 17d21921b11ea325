"""A real broker serves a store that Spark wrote: every message arrives, delayed ones when due."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import rmqstore
from interop.broker import RealBroker
from interop.rocketmq import RocketMQ, store_sizes
from written import require_valid

SIZES = store_sizes(1 << 20, 2000, 100, 400)
N = 500


@pytest.mark.interop
@pytest.mark.spark
def test_consumers_get_what_spark_wrote(
    spark: SparkSession, rocketmq: RocketMQ, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    frame = spark.range(N).selectExpr(
        "'Orders' AS topic", "concat('body ', id) AS body", "concat('T', id % 3) AS tags",
        "concat('k', id) AS keys", "map('n', string(id)) AS properties",
        "IF(id % 50 = 7, 1, NULL) AS delayTimeLevel",
    )  # fmt: skip
    writer = frame.write.format("rmqstore").options(**SIZES)
    writer.mode("append").save(str(root))
    with rmqstore.open(root) as store:
        waiting = store.scan(subscribe="SCHEDULE_TOPIC_XXXX").read_all()
    assert len(waiting) == N // 50

    with RealBroker(rocketmq, root, SIZES) as broker:
        found = broker.consume("Orders", "readers", N)
        assert sorted(message["body"] for message in found) == sorted(
            f"body {number}".encode() for number in range(N)
        )
        for message in found:
            number = int(message["properties"]["n"])
            assert message["body"] == f"body {number}".encode()
            assert (message["tags"], message["keys"]) == (f"T{number % 3}", f"k{number}")
        delayed = [message for message in found if int(message["properties"]["n"]) % 50 == 7]
        assert len(delayed) == N // 50
        assert all(message["properties"]["DELAY"] == "1" for message in delayed)

        sent = broker.send(
            "Orders", [f"sent {number}".encode() for number in range(20)], tags="S", keys="late"
        )
        more = broker.consume("Orders", "others", N + 20)
        assert {message["msgId"] for message in more} >= set(sent)

    with rmqstore.open(root) as store:
        read = store.scan(subscribe="Orders").read_all()
    assert sorted(read.column("body").to_pylist()) == sorted(message["body"] for message in more)
    require_valid(root)
