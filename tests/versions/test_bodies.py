"""Bodies as tables with Avro and Iceberg, whose jars Spark does not bring, as the manual says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import manual
import rmqstore
from versions.environments import ROOT, fresh_environment, run_command

pytestmark = pytest.mark.versions

PAGE = ROOT / "docs" / "bodies.md"
# Runs as `job.py STORE PACKAGES`, before lines of the manual.
SESSION = """
import json, shutil, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

builder = SparkSession.builder.master("local[2]").config("spark.jars.packages", sys.argv[2])
builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
builder.config("spark.sql.session.timeZone", "UTC")
catalog = "spark.sql.catalog.lake"
if "iceberg" in sys.argv[2]:
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    builder.config("spark.sql.extensions", extensions)
    builder.config(catalog, "org.apache.iceberg.spark.SparkCatalog")
    builder.config(f"{catalog}.type", "hadoop").config(f"{catalog}.warehouse", "lake")
    builder.config(f"{catalog}.cache-enabled", "false")
spark = builder.getOrCreate()
messages = spark.read.format("rmqstore").option("subscribe", "Orders").load(sys.argv[1])
"""
AVRO = """
rows = good.orderBy("orderId").select("orderId", "customer").collect()
print(json.dumps([[list(row) for row in rows], bad.count()]))
"""
ICEBERG = """
columns = "queueId INT, queueOffset BIGINT, day DATE"
for table, more in (
    ("orders", "orderId BIGINT, customer STRING, amount DECIMAL(12,2)"),
    ("bad_orders", "body BINARY"),
):
    name = f"lake.db.{table}"
    spark.sql(f"CREATE TABLE {name} ({columns}, {more}) USING iceberg PARTITIONED BY (day)")
stream = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
for _ in range(2):
    query = stream.load(sys.argv[1]).writeStream.foreachBatch(write)
    query = query.option("checkpointLocation", "checkpoint").trigger(availableNow=True)
    query.start().awaitTermination()
    # As if Spark had crashed after the batch was written, and before it was noted.
    shutil.rmtree("checkpoint/commits")
print(json.dumps([spark.table(f"lake.db.{name}").count() for name in ("orders", "bad_orders")]))
"""


def lines_with(words: str) -> str:
    (code,) = [each.code for each in manual.snippets(PAGE) if words in each.code]
    return code


def package(pattern: str) -> str:
    (found,) = re.findall(f"--packages ({pattern}[^`]+)`", PAGE.read_text(encoding="utf-8"))
    return str(found)


def answer_of(python: Path, folder: Path, store: Path, jar: str, *lines: str) -> Any:
    script = folder / "job.py"
    script.write_text("\n".join([SESSION, *lines]), encoding="utf-8")
    variables = {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    printed = run_command(python, script, store, jar, folder=folder, **variables)
    return json.loads(printed.splitlines()[-1])


def store_of(folder: Path, bodies: list[bytes]) -> Path:
    with rmqstore.create(folder) as writer:
        writer.append(pa.table({"topic": ["Orders"] * len(bodies), "body": bodies}))
    return folder


def test_avro_bodies_become_rows_and_bad_ones_are_told_apart(tmp_path: Path) -> None:
    jar = package("org.apache.spark:spark-avro")
    python = fresh_environment("avro", f"pyspark=={jar.rpartition(':')[2]}", str(ROOT))
    # A long is zigzag, and a string has its length before it.
    good = [bytes([2 * number, 4]) + b"c%d" % number for number in range(1, 10)]
    store = store_of(tmp_path / "store", [*good, b"bad", b"", b"\xff\xff"])
    rows, n_bad = answer_of(python, tmp_path, store, jar, lines_with("from_avro("), AVRO)
    assert rows == [[number, f"c{number}"] for number in range(1, 10)]
    assert n_bad == 3


def test_a_batch_of_bodies_that_is_repeated_is_in_an_iceberg_table_once(tmp_path: Path) -> None:
    jar = package("org.apache.iceberg:iceberg-spark-runtime")
    (minor,) = re.findall(r"runtime-(\d\.\d)_", jar)
    python = fresh_environment("iceberg", f"pyspark=={minor}.*", str(ROOT))
    bodies = [b'{"orderId": %d, "customer": "c", "amount": 1.5}' % number for number in range(20)]
    store = store_of(tmp_path / "store", [*bodies, b"bad"])
    parse = lines_with("ORDER = ")
    parse = parse[: parse.index("messages = ")]  # its imports and constants
    counts = answer_of(python, tmp_path, store, jar, parse, lines_with("MERGE INTO"), ICEBERG)
    assert counts == [20, 1]
