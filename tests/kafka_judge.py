"""A real broker of Kafka and its Java clients, which judge what kafkalog reads from its folders."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import kafkalog
import missing

_PROJECT = Path(__file__).parents[1]
sys.path.append(str(_PROJECT / "benchmarks"))

from kafka_broker import JarsUnavailableError, KafkaBroker, broker_jars, sink_jars  # noqa: E402

JARS = _PROJECT / ".kafka"
VERSION = "4.1.1"
SINK_VERSION = "4.1.1"  # of Spark
LEVELS: tuple[kafkalog.IsolationLevel, ...] = ("read_uncommitted", "read_committed")

_CLIENT = Path(__file__).with_name("kafkalog") / "KafkaJudge.java"
_PROPERTIES = """\
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


def broker(folder: Path) -> KafkaBroker:
    """Return a broker that is not started yet."""
    jars("broker")
    return KafkaBroker(JARS, [], folder, 2, version=VERSION, properties=_PROPERTIES)


def client(*words: str) -> list[Line]:
    classes = os.pathsep.join(map(str, jars("broker")))
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", classes, str(_CLIENT), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [tuple(line.split("\t")) for line in done.stdout.splitlines() if line[:5] == "read_"]


def read(log_dir: Path, topic: str) -> list[Line]:
    """Return what kafkalog reads of a topic, in the form of the clients' answers."""
    found: list[Line] = []
    with kafkalog.open(log_dir) as logs:
        for level in LEVELS:
            rows = logs.scan(subscribe=topic, isolation_level=level).to_arrow()
            times = rows.column("timestamp").cast(pa.int64()).to_pylist()
            for row, time in zip(rows.drop_columns(["timestamp"]).to_pylist(), times, strict=True):
                headers = [f"{each['key']}={_text(each['value'])}" for each in row["headers"]]
                place = (row["topic"], str(row["partition"]), str(row["offset"]))
                fields = (str(time), _text(row["key"]), _text(row["value"]), *headers)
                found.append((level, "record", *place, *fields))
            for key, partition in logs.partitions.items():
                if key.topic == topic:
                    is_committed = level == "read_committed"
                    end = partition.last_stable_offset if is_committed else partition.end_offset
                    found.append((level, "end", topic, str(key.partition), str(end)))
    return sorted(found)


def _text(content: bytes | None) -> str:
    return "null" if content is None else base64.b64encode(content).decode()


def bytes_of(text: str) -> bytes | None:
    return None if text == "null" else base64.b64decode(text)


def header(text: str) -> tuple[str, bytes | None]:
    name, _, value = text.partition("=")
    return name, bytes_of(value)
