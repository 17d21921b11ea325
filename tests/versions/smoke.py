"""A check of one combination of Python, PySpark, numpy and pyarrow that needs nothing else.

Usage: python smoke.py STORE N_MESSAGES SCRATCH, where STORE has N_MESSAGES messages. It prints a
line for each part.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

import rmqstore

VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
LIMITS_SINCE = (4, 2)
KEEPING_FILTERS = ((4, 1), (4, 2), (4, 3))  # as docs/finding.md says
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
BORN = [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]  # in Berlin both are 02:30


class Smoke:
    """The parts of the check; each method takes a session and uses a folder of its own."""

    def __init__(self, spark: SparkSession, store: Path, n_messages: int, scratch: Path) -> None:
        self.spark, self.store, self.n_messages, self.scratch = spark, store, n_messages, scratch

    def core_reads(self) -> None:
        with rmqstore.open(self.store) as store:
            assert store.scan(include_system_topics=True).read_all().num_rows == self.n_messages

    def batch_read(self) -> None:
        names = ["topic", "queueOffset", "body", "properties"]
        with rmqstore.open(self.store) as store:
            expected = store.scan(columns=",".join(names)).read_all().to_pylist()
        rows = self.load(self.store, columns=",".join(names)).collect()
        assert sorted(map(_comparable, rows)) == sorted(map(_comparable, expected))

    def filters(self) -> None:
        rows = self.load(self.store).select("topic", "queueOffset").collect()
        topic = rows[0].topic
        n_met = sum(row.topic == topic and row.queueOffset >= 1 for row in rows)
        condition = f"topic = '{topic}' AND queueOffset >= 1"
        assert self.load(self.store, where=condition).count() == n_met > 0
        self.spark.conf.set(PUSHDOWN, "true")
        frame = self.load(self.store)
        assert frame.where(condition).count() == n_met
        assert frame.count() == (n_met if VERSION in KEEPING_FILTERS else len(rows))
        self.spark.conf.unset(PUSHDOWN)
        assert self.load(self.store, filter="TAGS IS NOT NULL").where("tags IS NULL").count() == 0

    def append(self) -> None:
        root = self.scratch / "appended"
        self.rows(5).write.format("rmqstore").mode("append").save(str(root))
        self.rows(5).write.format("rmqstore").mode("append").save(str(root))
        self.check(root, 10)

    def stream_read(self) -> None:
        root, folder = self.scratch / "grown", self.scratch / "stream"
        for n_rows in (4, 7):
            self.rows(n_rows).write.format("rmqstore").mode("append").save(str(root))
            self.run_stream(root, "parquet", folder, folder / "rows")
        self.run_stream(root, "parquet", folder, folder / "rows")  # with nothing new
        bodies = [
            bytes(row.body) for row in self.spark.read.parquet(str(folder / "rows")).collect()
        ]
        assert sorted(bodies) == sorted(
            [b"body %d" % number for n_rows in (4, 7) for number in range(n_rows)]
        )

    def stream_read_limited(self) -> None:
        root, folder = self.scratch / "grown", self.scratch / "limited"
        if VERSION >= LIMITS_SINCE:
            query = self.run_stream(root, "noop", folder, None, maxOffsetsPerTrigger="2")
            assert [one.numInputRows for one in query.recentProgress if one.numInputRows] == [
                2, 2, 2, 2, 2, 1,
            ]  # fmt: skip
            return
        text = failure(
            lambda: self.run_stream(root, "noop", folder, None, maxOffsetsPerTrigger="2")
        )
        assert "UnsupportedFeatureError: maxOffsetsPerTrigger" in text, text
        assert "4.2" in text, text

    def stream_write(self) -> None:
        root, source, folder = (
            self.scratch / "copied", self.scratch / "source", self.scratch / "write",
        )  # fmt: skip
        for n_rows in (3, 6):
            self.rows(n_rows).write.format("rmqstore").mode("append").save(str(source))
            self.run_stream(source, "rmqstore", folder, root)
        self.check(root, 9)

    def views(self) -> None:
        queues = self.load(self.store, view="queues").collect()
        assert 0 < sum(row.messages for row in queues) <= self.n_messages
        assert self.load(self.store, view="files").where("kind = 'commitlog'").count() > 0

    def tables(self) -> None:
        root = self.scratch / "table"
        self.rows(3).write.format("rmqstore").mode("append").save(str(root))
        self.spark.sql(
            f"CREATE TABLE smoke USING rmqstore OPTIONS (subscribe 'T0') LOCATION '{root}'"
        )
        assert self.spark.table("smoke").count() == 2
        self.insert("smoke", f"WITH (path = '{root}')")
        assert (
            self.spark.sql("SELECT string(body) FROM smoke ORDER BY queueOffset").collect()[-1][0]
            == "inserted"
        )
        text = failure(lambda: self.insert("smoke"))
        assert "INSERT INTO t WITH (path" in text, text
        self.spark.sql("DROP TABLE smoke")
        assert self.load(root).count() == 4
        self.spark.sql(f"CREATE TEMPORARY VIEW kept USING rmqstore OPTIONS (path '{root}')")
        self.insert("kept")
        assert self.spark.table("kept").count() == 5

    # ---- what the parts share

    def insert(self, table: str, options: str = "") -> None:
        """Insert a message whose other columns are null: PySpark 4.0 takes no list of columns."""
        values = {"topic": "'T0'", "body": "binary('inserted')"}
        columns = ", ".join(
            f"{values.get(name, 'NULL')} AS {name}" for name in self.spark.table(table).columns
        )
        self.spark.sql(f"INSERT INTO {table} {options} SELECT {columns}")

    def load(self, path: Path, **options: str) -> DataFrame:
        return self.spark.read.format("rmqstore").options(**options).load(str(path))

    def rows(self, n_rows: int) -> DataFrame:
        rows = [
            (f"T{number % 2}", f"body {number}".encode(), "tag", {"k": "v"}, BORN[number % 2])
            for number in range(n_rows)
        ]
        schema = (
            "topic string, body binary, tags string, properties map<string,string>, "
            "bornTimestamp timestamp"
        )
        return self.spark.createDataFrame(rows, schema)

    def check(self, root: Path, n_rows: int) -> None:
        with rmqstore.open(root) as store:
            table = store.scan().read_all()
        assert table.num_rows == n_rows
        assert set(table["tags"].to_pylist()) == {"tag"}
        assert {dict(one)["k"] for one in table["properties"].to_pylist()} == {"v"}
        assert set(table["bornTimestamp"].to_pylist()) == set(BORN)

    def run_stream(
        self, root: Path, sink: str, folder: Path, target: Path | None, **options: str
    ) -> Any:
        frame = (
            self.spark.readStream.format("rmqstore")
            .option("startingOffsets", "earliest")
            .options(**options)
        )
        writer = (
            frame.load(str(root))
            .writeStream.format(sink)
            .option("checkpointLocation", str(folder / "state"))
        )
        writer = writer.trigger(availableNow=True)
        query = writer.start() if target is None else writer.start(str(target))
        query.awaitTermination()
        return query


def _comparable(row: Any) -> tuple[Any, ...]:
    return (
        row["topic"], row["queueOffset"], bytes(row["body"]),
        sorted(dict(row["properties"]).items()),
    )  # fmt: skip


def failure(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as err:  # noqa: BLE001 - which class Spark wraps it in differs
        return str(err)
    raise AssertionError("nothing failed")


def main() -> None:
    store, n_messages, scratch = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "Europe/Berlin",
    }  # fmt: skip
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .getOrCreate()
    )
    versions = {"pyspark": session.version, "numpy": np.__version__, "pyarrow": pa.__version__}
    print("python", platform.python_version(), versions)
    smoke = Smoke(session, store, n_messages, scratch)
    parts = (
        smoke.core_reads, smoke.batch_read, smoke.filters, smoke.append, smoke.stream_read,
        smoke.stream_read_limited, smoke.stream_write, smoke.views, smoke.tables,
    )  # fmt: skip
    for part in parts:
        part()
        print(part.__name__, "passed", flush=True)
    session.stop()


if __name__ == "__main__":
    main()
