"""Spark's Kafka source beside kafkalog: the same records, from a running broker and its folders.

Usage: python benchmarks/bench_kafka_read.py [--rows N] [--passes N] [--partitions N]
       [--kafka-version VERSION] [--folder DIR]

Jobs read all columns of all records with one core (``local[1]``) and throw them away (format noop):

- kafka, kafka-headers: Spark's Kafka source, from a broker on this machine. Its CPU time counts
  apart.
- kafkalog, kafkalog-headers: this project, from the log directory of the same broker while it runs.

Records have a key of 10 bytes, a value of 200 bytes and three headers, in uncompressed batches as
Spark's Kafka sink sends them. A pass runs each job once, in turn, after one pass to warm up.
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
from pyspark.sql import DataFrame, SparkSession, functions as sf
from write_jobs import Bench, Cost, Job

_JARS = Path(__file__).parents[1] / ".kafka"
TOPIC = "Bench"
_SETTINGS = {"spark.master": "local[1]", "spark.driver.memory": "3g"}
# As a producer that is set up for throughput.
_PRODUCER = {"linger.ms": "20", "batch.size": "524288", "acks": "1"}


def main() -> None:
    """Produce the records and run the jobs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--kafka-version", default=pyspark_version, help="of Spark's Kafka source")
    parser.add_argument("--folder", type=Path, help="where the broker writes")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        jars = sink_jars(_JARS, arguments.kafka_version)
        broker = stack.enter_context(
            KafkaBroker(_JARS, jars, scratch / "kafka", arguments.partitions)
        )
        spark = spark_session(_SETTINGS | {"spark.jars": ",".join(map(str, jars))})
        stack.callback(spark.stop)
        produce(spark, broker, arguments.rows)
        bench = Bench(spark, scratch, stack.enter_context(JobCpu([broker.pid])), broker)
        costs = bench.passes(jobs(spark, broker), arguments.passes)
    for name, own in costs.items():
        other = costs[name.replace("kafkalog", "kafka")]
        report_job("kafka read", name, own, other, arguments.rows)


def produce(spark: SparkSession, broker: KafkaBroker, n_rows: int) -> None:
    """Send the records by Spark's Kafka sink."""
    records(spark, n_rows).write.format("kafka").options(
        **{
            f"kafka.{name}": text
            for name, text in (_PRODUCER | {"bootstrap.servers": broker.address}).items()
        }
    ).save()
    print(f"produced {n_rows} records", file=sys.stderr)


def records(spark: SparkSession, n_rows: int) -> DataFrame:
    """Return the records, as Spark's Kafka sink takes them."""
    value = sf.rpad(sf.concat(sf.lit("value "), sf.col("id").cast("string")), 200, "abcdefgh")
    headers = sf.array(
        *(
            sf.struct(sf.lit(name).alias("key"), sf.lit(text).cast("binary").alias("value"))
            for name, text in (("region", "EU"), ("trace", "0af7651916cd43dd"), ("kind", "paid"))
        )
    )
    return spark.range(n_rows).select(
        sf.lit(TOPIC).alias("topic"),
        sf.lpad(sf.col("id").cast("string"), 10, "0").cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        headers.alias("headers"),
    )


def jobs(spark: SparkSession, broker: KafkaBroker) -> dict[str, Job]:
    """Return the jobs by name."""

    def job(source: str, *, include_headers: bool) -> Job:
        options = {"subscribe": TOPIC, "includeHeaders": str(include_headers).lower()}
        reader = spark.read.format(source).options(**options)
        if source == "kafka":
            frame = reader.option("kafka.bootstrap.servers", broker.address).load()
        else:
            frame = reader.load(str(broker.log_dir))
        return Job(frame.write.format("noop").mode("overwrite").save)

    return {
        f"{source}{'-headers' if include_headers else ''}": job(
            source, include_headers=include_headers
        )
        for include_headers in (False, True)
        for source in ("kafka", "kafkalog")
    }


def report_job(
    benchmark: str, name: str, own: Sequence[Cost], other: Sequence[Cost], n_rows: int
) -> None:
    """Report a job beside the one of Spark's Kafka source."""
    report(
        benchmark,
        name,
        rows=n_rows,
        rows_per_second=int(n_rows / statistics.median(cost.wall for cost in own)),
        cpu_us_per_row=statistics.median(cost.cpu.total for cost in own) / n_rows * 1e6,
        jvm_us_per_row=statistics.median(cost.cpu.jvm for cost in own) / n_rows * 1e6,
        # None where no broker was watched.
        broker_us_per_row=statistics.median(cost.broker for cost in own) / n_rows * 1e6 or None,
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
