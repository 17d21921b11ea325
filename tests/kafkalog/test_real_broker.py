"""What a real broker of Kafka wrote, while it runs and after it was killed; it is the judge."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import kafkalog
import missing
import rmqstore
from pyspark_kafkalog.options import parse_stream_options
from pyspark_kafkalog.stream_reader import KafkaLogStreamReader
from pyspark_rmqstore.schema import kafka_schema
from rmqstore.errors import OffsetOutOfRangeError

PROJECT = Path(__file__).parents[2]
sys.path.append(str(PROJECT / "benchmarks"))

from kafka_broker import JarsUnavailableError, KafkaBroker, broker_jars, sink_jars  # noqa: E402

pytestmark = pytest.mark.interop

TOPICS = ("Mixed", "Compacted")
EXAMPLE = PROJECT / "examples" / "17_rocketmq_to_kafka.py"
JARS = PROJECT / ".kafka"
VERSION = "4.1.1"
SINK_VERSION = "4.1.1"  # of Spark
LEVELS: tuple[kafkalog.IsolationLevel, ...] = ("read_uncommitted", "read_committed")

CLIENT = Path(__file__).with_name("KafkaJudge.java")
PROPERTIES = """\
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
offsets.topic.num.partitions=1
log.cleaner.backoff.ms=200
log.initial.task.delay.ms=100
auto.create.topics.enable=false
log.retention.ms=-1
"""

# Level, record or end, topic, partition, offset, and more.
Line = tuple[str, ...]


def jars(kind: str) -> list[Path]:
    """Return the jars of the broker or the sink; skip the test without them, or fail if in CI."""
    missing.require_java()
    try:
        if kind == "broker":
            return broker_jars(JARS, VERSION)
        return sink_jars(JARS, SINK_VERSION)
    except JarsUnavailableError as err:
        missing.skip(
            f"the real Kafka {VERSION}",
            f"Spark's --packages fetches its jars once, into {JARS.name}; that failed: {err}",
        )


def client(*words: str) -> list[Line]:
    classes = os.pathsep.join(map(str, jars("broker")))
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", classes, str(CLIENT), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [tuple(line.split("\t")) for line in done.stdout.splitlines() if line[:5] == "read_"]


def read(log_dir: Path, topic: str) -> list[Line]:
    found: list[Line] = []
    with kafkalog.open(log_dir) as logs:
        for level in LEVELS:
            rows = logs.scan(subscribe=topic, isolation_level=level).to_arrow()
            times = rows.column("timestamp").cast(pa.int64()).to_pylist()
            for row, time in zip(rows.drop_columns(["timestamp"]).to_pylist(), times, strict=True):
                headers = [f"{each['key']}={text_of(each['value'])}" for each in row["headers"]]
                place = (row["topic"], str(row["partition"]), str(row["offset"]))
                fields = (str(time), text_of(row["key"]), text_of(row["value"]), *headers)
                found.append((level, "record", *place, *fields))
            for key, partition in logs.partitions.items():
                if key.topic == topic:
                    is_committed = level == "read_committed"
                    end = partition.last_stable_offset if is_committed else partition.end_offset
                    found.append((level, "end", topic, str(key.partition), str(end)))
    return sorted(found)


def text_of(content: bytes | None) -> str:
    return "null" if content is None else base64.b64encode(content).decode()


def bytes_of(text: str) -> bytes | None:
    return None if text == "null" else base64.b64decode(text)


def header(text: str) -> tuple[str, bytes | None]:
    name, _, value = text.partition("=")
    return name, bytes_of(value)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    jars("broker")
    folder = tmp_path_factory.mktemp("kafka") / "broker"
    with KafkaBroker(JARS, [], folder, 2, version=VERSION, properties=PROPERTIES) as running:
        client("write", running.address)
        yield running


def wait_for_a_compaction(log_dir: Path) -> None:
    for _ in range(200):
        with kafkalog.open(log_dir) as logs:
            if logs.partition("Compacted", 0).cleaner_offset:
                return
        time.sleep(0.1)
    pytest.fail("the cleaner of the broker did nothing")


def asked(broker: KafkaBroker, *topics: str) -> list[Line]:
    return sorted(client("read", broker.address, *topics))


def test_folders_of_a_broker_that_runs_and_that_was_killed(broker: KafkaBroker) -> None:
    wait_for_a_compaction(broker.log_dir)
    answer = asked(broker, *TOPICS)
    for topic in TOPICS:
        lines = [line for line in answer if line[2] == topic]
        assert read(broker.log_dir, topic) == lines
    # a part of the records are neither committed nor all of those that were sent
    n_records = {
        level: sum(line[:3] == (level, "record", "Mixed") for line in answer) for level in LEVELS
    }
    assert 200 < n_records["read_committed"] < n_records["read_uncommitted"] == 360
    assert sum(line[:3] == ("read_uncommitted", "record", "Compacted") for line in answer) < 200
    broker.kill()
    killed = {topic: read(broker.log_dir, topic) for topic in TOPICS}
    broker.start()
    served = asked(broker, *TOPICS)
    for topic in TOPICS:
        assert killed[topic] == [line for line in served if line[2] == topic]


def test_a_topic_that_was_deleted_and_made_again(broker: KafkaBroker) -> None:
    """Only a real broker shows what it leaves of the old folder and writes into the new one."""
    given = {"path": str(broker.log_dir), "subscribe": "Again", "startingOffsets": "earliest"}
    schema = kafka_schema(include_headers=False)
    offset: dict[str, Any] | None = None
    for n in (20, 30, 30, 10):
        client("fill", broker.address, "Again", str(n))
        if offset is not None:
            strict = KafkaLogStreamReader(schema, parse_stream_options(given))
            with pytest.raises(OffsetOutOfRangeError, match="Again-0 began again"):
                strict.latestOffset(offset, ReadAllAvailable())
        options = parse_stream_options({**given, "failOnDataLoss": "false"})
        reader = KafkaLogStreamReader(schema, options)
        start = reader.initialOffset() if offset is None else offset
        offset = reader.latestOffset(start, ReadAllAvailable())
        tasks = reader.partitions(start, offset)
        found = [batch.column("value").to_pylist() for each in tasks for batch in reader.read(each)]
        assert [value for values in found for value in values] == [b"one of %d" % n] * n
        assert [line[6:8] for line in asked(broker, "Again")].count(
            ("null", base64.b64encode(b"one of %d" % n).decode())
        ) == 2 * n


def test_messages_that_spark_sends_to_a_broker(broker: KafkaBroker, tmp_path: Path) -> None:
    store = tmp_path / "store"
    numbers = range(40)
    table = pa.table(
        {
            "topic": ["Sent"] * len(numbers),
            "queueId": pa.array([number % 2 for number in numbers], pa.int32()),
            "keys": [f"order-{number}" for number in numbers],
            "body": [b"body %d" % number for number in numbers],
            "properties": pa.array(
                [[("region", f"r{number}")] for number in numbers],
                pa.map_(pa.string(), pa.string()),
            ),
        }
    )
    with rmqstore.create(store) as created:
        created.append(table)
    client("topic", broker.address, "Sent", "2")
    joined = ",".join(map(str, jars("sink")))
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.jars={joined} pyspark-shell",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(store), "Sent", broker.address],
        env=environment, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"^40 messages of Sent$", done.stdout, re.MULTILINE)
    answer = asked(broker, "Sent")
    assert read(broker.log_dir, "Sent") == answer
    records = [line for line in answer if line[:2] == ("read_committed", "record")]
    found = {
        (int(line[3]), *map(bytes_of, line[6:8]), dict(map(header, line[8:]))["region"])
        for line in records
    }
    assert len(records) == len(numbers)
    assert found == {
        (number % 2, b"order-%d" % number, b"body %d" % number, b"r%d" % number)
        for number in numbers
    }
