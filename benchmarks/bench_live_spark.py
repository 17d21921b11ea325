"""Spark's Kafka source beside running brokers of RocketMQ: the same records, over the network.

Usage: python benchmarks/bench_live_spark.py [--rows N] [--passes N] [--queues N] [--cores N]
       [--kafka-version VERSION] [--folder DIR]

Both brokers run on this machine all the time; only one of them is read at a time. Jobs read all
records and throw them away (format noop):

- kafka, kafka-headers: Spark's Kafka source, without and with headers.
- live, live-properties: this project, the columns that correspond to these, without and with
  properties.

Records have a key of 10 bytes, a value of 200 bytes and three headers or properties. A pass runs
each job once, in turn, after one pass to warm up. The CPU time of the brokers does not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench_kafka_read import TOPIC, produce, records, report_job
from kafka_broker import KafkaBroker, sink_jars
from measure import spark_session
from processes import JobCpu
from pyspark import __version__ as pyspark_version
from pyspark.sql import DataFrame, SparkSession, functions as sf
from write_jobs import Bench, Job

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from interop.broker import RealBroker  # noqa: E402 - found by the path above
from interop.rocketmq import RocketMQ, resolve_jars  # noqa: E402 - likewise

_JARS = ROOT / ".kafka"
_SIZES = {"mappedFileSizeCommitLog": 1 << 30, "diskMaxUsedSpaceRatio": 99}
_COLUMNS = ("keys", "body", "topic", "queueId", "queueOffset", "storeTimestamp")


def main() -> None:
    """Send the records to both brokers and run the jobs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--kafka-version", default=pyspark_version, help="of Spark's Kafka source")
    parser.add_argument("--folder", type=Path, help="where the brokers write")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        jars = sink_jars(_JARS, arguments.kafka_version)
        kafka = stack.enter_context(KafkaBroker(_JARS, jars, scratch / "kafka", arguments.queues))
        (scratch / "home").mkdir()
        real = RocketMQ("5.3.3", resolve_jars("5.3.3", ROOT / ".rocketmq"), scratch / "home")
        stack.callback(real.close)
        broker = stack.enter_context(RealBroker(real, scratch / "store", _SIZES))
        broker.set_queues(TOPIC, arguments.queues)
        spark = spark_session(
            {
                "spark.master": f"local[{arguments.cores}]",
                "spark.jars": ",".join(map(str, jars)),
            }
        )
        stack.callback(spark.stop)
        address = f"rocketmq://{broker.namesrv_address}"
        produce(spark, kafka, arguments.rows)
        send(spark, address, arguments.rows)
        cpu = stack.enter_context(JobCpu([kafka.pid, real.pid]))
        found = jobs(spark, kafka, address)
        costs = Bench(spark, scratch, cpu, None).passes(found, arguments.passes)
    for ours, theirs in (("live", "kafka"), ("live-properties", "kafka-headers")):
        for name in (theirs, ours):
            report_job("live by Spark", name, costs[name], costs[theirs], arguments.rows)


def send(spark: SparkSession, address: str, n_rows: int) -> None:
    """Send the records to the broker of RocketMQ; headers are properties there."""
    headers = sf.transform(
        "headers",
        lambda header: sf.struct(header["key"], header["value"].cast("string").alias("value")),
    )
    records(spark, n_rows).select(
        "topic",
        sf.col("key").cast("string").alias("keys"),
        sf.col("value").alias("body"),
        sf.map_from_entries(headers).alias("properties"),
    ).write.format("rmqstore").mode("append").save(address)


def jobs(spark: SparkSession, kafka: KafkaBroker, address: str) -> dict[str, Job]:
    """Return the jobs by name."""

    def job(frame: DataFrame) -> Job:
        return Job(frame.write.format("noop").mode("overwrite").save)

    of_kafka = spark.read.format("kafka").options(
        **{"subscribe": TOPIC, "kafka.bootstrap.servers": kafka.address}
    )
    live = spark.read.format("rmqstore").option("subscribe", TOPIC).load(address)
    return {
        "kafka": job(of_kafka.load()),
        "live": job(live.select(*_COLUMNS)),
        "kafka-headers": job(of_kafka.option("includeHeaders", "true").load()),
        "live-properties": job(live.select(*_COLUMNS, "properties")),
    }


if __name__ == "__main__":
    main()
