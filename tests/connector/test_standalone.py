"""A standalone cluster whose executors have environments of their own, as the manual makes them."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import manual
import rmqstore
from connector.sparkreads import GoldenStore
from connector.standalone import (
    HOSTS,
    build_wheel,
    make_environment,
    pack,
    standalone_cluster,
    submit,
)
from reading import Row, read, rows
from s3_server import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.thorough]

# Runs as `job.py STORE READS [register]`, where READS has the options of each read by its name.
JOB = """
import json, sys
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

def on_executor():
    import os, rmqstore
    return [sys.executable, rmqstore.__file__, os.getcwd()]

spark = SparkSession.builder.getOrCreate()
if sys.argv[3:] == ["register"]:
    import pyspark_rmqstore
    pyspark_rmqstore.register(spark)
columns = {"part": F.spark_partition_id(), "executor": F.udf(on_executor, "array<string>")()}
for name, options in json.loads(sys.argv[2]).items():
    frame = spark.read.format("rmqstore").options(**options).load(sys.argv[1])
    table = frame.withColumns(columns).toArrow()
    with pa.OSFile(f"{name}.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
"""
PYTHON = "./environment/bin/python"
READ = {"minPartitions": "6", "includeSystemTopics": "true", "brokerName": "b"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def cluster(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: ARG001
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def documented(option: str, cluster: str, store: object, reads: Any, *others: str) -> list[str]:
    """Return the command of the manual that has an option first, for a job of ours."""
    text = (manual.ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    start = f"$ spark-submit {option} "
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    words = [cluster if word.startswith("spark://") else word for word in shlex.split(line[2:])]
    assert cluster in words
    assert words[-1] == "job.py"
    return [*words, str(store), json.dumps(reads), *others]


def rows_of(path: Path) -> list[Row]:
    with pa.memory_map(str(path)) as file:
        return rows(pa.ipc.open_file(file).read_all().to_batches())


def place(row: Row) -> tuple[int, str]:
    return row["commitLogOffset"], row["topic"]


def test_packed_environments_on_two_workers_read_from_s3_what_the_disk_gives(
    cluster: str, folder: Path, wheel: Path, s3: S3Server, golden_store: GoldenStore
) -> None:
    pack(make_environment(folder / "environment", wheel), folder / "environment.tar.gz")
    root = golden_store("basic")
    options = READ | {"storageOptions": json.dumps(s3.options)}
    reads = {scan: {"scan": scan, **options} for scan in ("queue", "commitlog")}
    command = documented("--archives", cluster, s3.upload(root), reads)
    done = submit(command, folder, PYSPARK_PYTHON=PYTHON)
    assert done.returncode == 0, done.stderr[-4000:]
    for scan in reads:
        found = rows_of(folder / f"{scan}.arrow")
        executors = {tuple(row.pop("executor")) for row in found}
        assert {row.pop("part") for row in found} >= set(range(6))
        for python, package, work in executors:
            assert python == f"{work}/environment/bin/python"
            assert package.startswith(f"{work}/environment/lib/")
        assert {Path(work).parents[1].name for _, _, work in executors} == set(HOSTS)
        with rmqstore.open(root, broker_name="b") as store:
            expected = read(store, scan=scan, columns=list(found[0]))
        assert sorted(found, key=place) == sorted(expected, key=place) != []


def test_the_package_alone_travels_to_executors_that_have_what_it_needs(
    cluster: str, folder: Path, wheel: Path, golden_store: GoldenStore
) -> None:
    shutil.copy(wheel, folder / "pyspark_rmqstore.zip")
    python = make_environment(folder / "bare", None) / "bin" / "python"
    root, reads = golden_store("basic"), {"found": READ | {"columns": "commitLogOffset"}}
    command = documented("--py-files", cluster, root, reads, "register")
    done = submit(command, folder, PYSPARK_PYTHON=str(python))
    assert done.returncode == 0, done.stderr[-4000:]
    found = rows_of(folder / "found.arrow")
    assert all("pyspark_rmqstore.zip" in row["executor"][1] for row in found)
    with rmqstore.open(root) as store:
        assert len(found) == store.count(include_system_topics=True)


def test_executors_without_the_package_give_the_error_of_the_manual(
    cluster: str, folder: Path, wheel: Path, golden_store: GoldenStore
) -> None:
    make_environment(folder / "environment", wheel)
    pack(make_environment(folder / "bare", None), folder / "environment.tar.gz")
    reads = {"found": {"columns": "queueOffset"}}
    command = documented("--archives", cluster, golden_store("one"), reads)
    done = submit(command, folder, PYSPARK_PYTHON=PYTHON)
    assert done.returncode != 0
    error = "ModuleNotFoundError: No module named 'pyspark_rmqstore'"
    assert error in done.stderr
    assert error in (manual.ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
