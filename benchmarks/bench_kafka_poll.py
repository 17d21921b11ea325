"""The consumer of Kafka's Java client beside kafkalog: CPU time for reading all records.

Usage: python benchmarks/bench_kafka_poll.py [--rows N] [--passes N] [--batch-bytes N]
       [--kafka-version VERSION] [--folder DIR]

Records have a key of 10 bytes and a value of 200 bytes, in uncompressed batches, in one topic
without headers and in one with three. The consumer polls them from a broker on this machine, whose
CPU time does not count; kafkalog reads the folders of that broker. Both compare checksums, and give
key, value, offset and timestamp of each record, and its headers if it has some. The consumer asks
the broker where to begin before its time counts. So does kafkalog for the end of the log, which it
reads the log from its recovery point on to find, as the broker was not stopped; that time is told
apart. Passes alternate, after some to warm up, which are three of the consumer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kafka_broker import KafkaBroker, broker_jars
from measure import report

import kafkalog

_JARS = Path(__file__).parents[1] / ".kafka"
_CONSUMER = Path(__file__).with_name("KafkaPoll.java")
_COLUMNS = "key,value,offset,timestamp,timestamp_type"
_TOPICS = {"Plain": _COLUMNS, "Headers": f"{_COLUMNS},headers"}


class Consumer:
    """The Java consumer in a process of its own, which has produced the records."""

    def __init__(self, jars: list[Path], *arguments: str) -> None:
        self._process = subprocess.Popen(
            ["java", "-cp", os.pathsep.join(map(str, jars)), _CONSUMER, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        if self._answer() != "ready":
            raise RuntimeError("the consumer did not start")

    def poll(self, topic: str) -> float:
        """Return the CPU seconds of polling a topic."""
        assert self._process.stdin is not None
        print(topic, file=self._process.stdin, flush=True)
        return int(self._answer()) / 1e9

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class Scan(NamedTuple):
    """The CPU seconds of this process for one topic, with all threads."""

    end: float  # to find where its log ends
    records: float


def scan(log_dir: Path, topic: str, rows: int) -> Scan:
    """Read a topic."""
    start = time.process_time()
    with kafkalog.open(log_dir) as logs:
        n_offsets = sum(
            partition.end_offset
            for partition in logs.partitions.values()
            if partition.topic == topic
        )
        found = time.process_time()
        n_rows = sum(batch.num_rows for batch in logs.scan(subscribe=topic, columns=_TOPICS[topic]))
    assert n_offsets == n_rows == rows
    return Scan(found - start, time.process_time() - found)


def main() -> None:
    """Produce the records and read them both ways."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--batch-bytes", type=int, default=16384, help="as batch.size of Kafka")
    parser.add_argument("--kafka-version", default="4.1.1", help="of broker and consumer")
    parser.add_argument("--folder", type=Path, help="where the broker writes")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        version = arguments.kafka_version
        jars = broker_jars(_JARS, version)
        broker = KafkaBroker(_JARS, [], scratch / "kafka", 1, version=version)
        stack.enter_context(broker)
        sizes = (str(arguments.rows), str(arguments.batch_bytes))
        consumer = Consumer(jars, broker.address, *sizes)
        stack.callback(consumer.close)
        for topic in _TOPICS:
            scan(broker.log_dir, topic, arguments.rows)
            for _ in range(3):
                consumer.poll(topic)
        costs = [
            (topic, consumer.poll(topic), scan(broker.log_dir, topic, arguments.rows))
            for _ in range(arguments.passes)
            for topic in _TOPICS
        ]
    for topic in _TOPICS:
        pairs = [(theirs, ours) for name, theirs, ours in costs if name == topic]
        report(
            "kafka poll",
            topic,
            rows=arguments.rows,
            batch_bytes=arguments.batch_bytes,
            consumer_ns_per_row=statistics.median(t for t, _ in pairs) / arguments.rows * 1e9,
            kafkalog_ns_per_row=statistics.median(o.records for _, o in pairs)
            / arguments.rows
            * 1e9,
            end_ns_per_row=statistics.median(o.end for _, o in pairs) / arguments.rows * 1e9,
            rows_by_consumer=statistics.median(theirs / ours.records for theirs, ours in pairs),
        )


if __name__ == "__main__":
    main()
