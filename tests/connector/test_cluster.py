"""A read on executors that are processes of their own gives what it gives in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.clusters import environment
from connector.sparkreads import GoldenStore, load, messages

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.thorough]

COLUMNS = "topic,queueId,queueOffset,commitLogOffset,storeSize,bodyCRC,msgId,tags,keys"

# Runs as `python -c SCRIPT path columns`; the last line of its output is the answer.
SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "1g")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s")
    .getOrCreate()
)
frame = (
    spark.read.format("rmqstore")
    .options(columns=sys.argv[2], includeSystemTopics="true", minPartitions="6")
    .load(sys.argv[1])
    .withColumn("part", F.spark_partition_id())
)
rows = [row.asDict() for row in frame.collect()]
statuses = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
print(json.dumps({"rows": rows, "processes": len(statuses), "master": spark.sparkContext.master}))
spark.stop()
"""


def test_a_cluster_reads_what_one_process_reads(
    spark: SparkSession, golden_store: GoldenStore, tmp_path: Path
) -> None:
    root = golden_store("basic")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root), COLUMNS],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["master"].startswith("local-cluster")
    assert answer["processes"] == 3  # the driver and two executors
    found = answer["rows"]
    assert {row.pop("part") for row in found} >= set(range(6))
    local = [
        row.asDict()
        for row in load(spark, root, columns=COLUMNS, includeSystemTopics="true").collect()
    ]
    assert sorted(found, key=_place) == sorted(local, key=_place)
    expected = [{name: row[name] for name in COLUMNS.split(",")} for row in messages("basic")]
    assert sorted(found, key=_place) == sorted(expected, key=_place)


def _place(row: dict[str, int]) -> int:
    return row["commitLogOffset"]
