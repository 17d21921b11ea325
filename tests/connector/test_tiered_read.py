"""Batch reads of tiered storage, alone and before the local store that it continues."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import goldens
import rmqstore
from connector.sparkreads import GoldenStore, in_queue_order, load, messages, read
from reading import EVERY_COLUMN, by_queue
from reading import read as read_core

pytestmark = pytest.mark.spark

ALL = {"columns": ",".join(EVERY_COLUMN), "brokerName": "b"}


@pytest.mark.parametrize("name", goldens.IN_TIER)
def test_every_message_in_many_tasks(
    spark: SparkSession, golden_store: GoldenStore, name: str
) -> None:
    root = golden_store(name)
    tier = root / "tieredstore"
    assert in_queue_order(read(spark, tier, **ALL)) == messages(name)
    frame = load(spark, root, tiered=str(tier), maxBytesPerPartition="10k", **ALL)
    assert frame.rdd.getNumPartitions() > 10
    with rmqstore.open(root, tiered=tier, broker_name="b") as store:
        expected = by_queue(read_core(store))
    found = in_queue_order(
        read(spark, root, tiered=str(tier), maxBytesPerPartition="10k", minPartitions="30", **ALL)
    )
    assert by_queue(found) == expected
    some = frame.where("topic = 'TierA' AND queueOffset BETWEEN 60 AND 99 AND queueId < 2")
    offsets = [(row.queueId, row.queueOffset) for row in some.collect()]
    assert sorted(offsets) == [(queue, offset) for queue in (0, 1) for offset in range(60, 100)]
    time = expected["TierA", 0][70]["storeTimestamp"]
    late = read(spark, root, tiered=str(tier), startingTimestamp=str(time), **ALL)
    assert len(late) == sum(
        row["storeTimestamp"] >= time for rows in expected.values() for row in rows
    )
    key = next(row["keys"] for row in expected["TierB", 0] if row["keys"])
    rows = frame.where(frame["keys"] == key).collect()
    assert len(rows) == sum(row["keys"] == key for rows in expected.values() for row in rows)
    columns = {"columns": "queueId,queueOffset", "subscribe": "TierB"}
    word = key.split(" ")[0]
    looked_up = read(spark, root, tiered=str(tier), msgKey=word, **columns)
    assert {(row["queueId"], row["queueOffset"]) for row in looked_up} == {
        (row["queueId"], row["queueOffset"])
        for (topic, _), rows in expected.items()
        for row in rows
        if topic == "TierB" and word in (row["keys"] or "").split(" ")
    }


def test_what_needs_one_log_is_refused(spark: SparkSession, golden_store: GoldenStore) -> None:
    root = golden_store("tiered")
    tier = str(root / "tieredstore")
    for path, options in ((root, {"tiered": tier}), (root / "tieredstore", {})):
        for others in (
            {"scan": "commitlog"},
            {"msgKey": "k", "msgKeyLimit": "1"},
            {"view": "queues"},
        ):
            with pytest.raises(Exception, match="is not supported with tiered storage"):
                load(spark, path, **options, **others).collect()
    stream = spark.readStream.format("rmqstore").option("tiered", tier).load(str(root))
    with pytest.raises(Exception, match="a stream follows the local store"):
        stream.writeStream.format("noop").start().processAllAvailable()
