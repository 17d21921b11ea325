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
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kafka_broker import KafkaBroker, sink_jars
from measure import report, spark_session
from processes import JobCpu
from pyspark import __version__ as pyspark_version
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from write_jobs import Bench, Cost, Job

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from interop.broker import RealBroker  # noqa: E402 - found by the path above
from interop.rocketmq import RocketMQ, resolve_jars  # noqa: E402 - likewise

_JARS = ROOT / ".kafka"
_TOPIC = "Bench"
_SIZES = {"mappedFileSizeCommitLog": 1 << 30, "diskMaxUsedSpaceRatio": 99}
_HEADERS = {"region": "EU", "trace": "0af7651916cd43dd", "kind": "paid"}
# As producers that are set up for throughput.
_PRODUCER = {"linger.ms": "20", "batch.size": "524288", "acks": "1"}
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
        broker.set_queues(_TOPIC, arguments.queues)
        spark = spark_session(
            {
                "spark.master": f"local[{arguments.cores}]",
                "spark.jars": ",".join(map(str, jars)),
            }
        )
        stack.callback(spark.stop)
        address = f"rocketmq://{broker.namesrv_address}"
        send(spark, kafka, address, arguments.rows)
        cpu = stack.enter_context(JobCpu([kafka.pid, real.pid]))
        found = jobs(spark, kafka, address)
        costs = Bench(spark, scratch, cpu, None).passes(found, arguments.passes)
    for ours, theirs in (("live", "kafka"), ("live-properties", "kafka-headers")):
        show(theirs, costs[theirs], costs[theirs], arguments.rows)
        show(ours, costs[ours], costs[theirs], arguments.rows)


def send(spark: SparkSession, kafka: KafkaBroker, address: str, n_rows: int) -> None:
    """Send the records to both brokers."""
    value = sf.rpad(sf.concat(sf.lit("value "), sf.col("id").cast("string")), 200, "abcdefgh")
    rows = spark.range(n_rows).select(
        sf.lit(_TOPIC).alias("topic"),
        sf.lpad(sf.col("id").cast("string"), 10, "0").alias("key"),
        value.cast("binary").alias("value"),
    )
    headers = sf.array(
        *(
            sf.struct(sf.lit(name).alias("key"), sf.lit(text).cast("binary").alias("value"))
            for name, text in _HEADERS.items()
        )
    )
    settings = _PRODUCER | {"bootstrap.servers": kafka.address}
    rows.select(
        "topic", sf.col("key").cast("binary").alias("key"), "value", headers.alias("headers")
    ).write.format("kafka").options(
        **{f"kafka.{name}": text for name, text in settings.items()}
    ).save()
    properties = sf.create_map(*(sf.lit(text) for item in _HEADERS.items() for text in item))
    rows.select(
        "topic",
        sf.col("key").alias("keys"),
        sf.col("value").alias("body"),
        properties.alias("properties"),
    ).write.format("rmqstore").mode("append").save(address)
    print(f"sent {n_rows} records to each broker", file=sys.stderr)


def jobs(spark: SparkSession, kafka: KafkaBroker, address: str) -> dict[str, Job]:
    """Return the jobs by name."""

    def job(frame: DataFrame) -> Job:
        return Job(frame.write.format("noop").mode("overwrite").save)

    of_kafka = spark.read.format("kafka").options(
        **{"subscribe": _TOPIC, "kafka.bootstrap.servers": kafka.address}
    )
    live = spark.read.format("rmqstore").option("subscribe", _TOPIC).load(address)
    return {
        "kafka": job(of_kafka.load()),
        "live": job(live.select(*_COLUMNS)),
        "kafka-headers": job(of_kafka.option("includeHeaders", "true").load()),
        "live-properties": job(live.select(*_COLUMNS, "properties")),
    }


def show(name: str, own: Sequence[Cost], other: Sequence[Cost], n_rows: int) -> None:
    """Report a job beside the one of Spark's Kafka source."""
    report(
        "live by Spark",
        name,
        rows=n_rows,
        rows_per_second=int(n_rows / statistics.median(cost.wall for cost in own)),
        cpu_us_per_row=statistics.median(cost.cpu.total for cost in own) / n_rows * 1e6,
        speed_by_kafka=statistics.median(
            theirs.wall / ours.wall for ours, theirs in zip(own, other, strict=True)
        ),
        cpu_by_kafka=statistics.median(
            ours.cpu.total / theirs.cpu.total for ours, theirs in zip(own, other, strict=True)
        ),
        others_share_of_machine=statistics.median(cost.others for cost in own),
    )


if __name__ == "__main__":
    main()
