"""Writes that need Spark itself: its types, expressions, tasks and jobs, a case for each.

What the sink does under all options and with all rows is asked in this process: see `engine.py`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import pytest
from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - as Spark's own documentation has it
)

from connector.streams import SIZES, SMALL
from connector.test_batch_write import (
    OF_EVERY_COLUMN,
    require_what_overrides_what,
    write,
)
from reading import column, read
from rmqstore.store.opening import create
from written import require_valid

pytestmark = pytest.mark.spark


def numbered(spark: SparkSession, n: int, partitions: int = 2) -> DataFrame:
    numbers = spark.range(n, numPartitions=partitions)
    return numbers.select(
        F.lit("Orders").alias("topic"),
        F.concat(F.lit("body "), F.col("id")).alias("body"),
        F.concat(F.lit("k"), F.col("id")).alias("keys"),
    )


def test_every_column_and_what_overrides_what(spark: SparkSession, tmp_path: Path) -> None:
    schema = (
        "topic string, queueId int, body binary, tags string, keys string, msgId string, "
        "properties map<string,string>, flag int, bornTimestamp timestamp, bornHost string, "
        "reconsumeTimes int"
    )
    frame = spark.createDataFrame(OF_EVERY_COLUMN, schema)
    write(frame, tmp_path / "s", bornHost="10.9.8.7:6", **SMALL)
    require_what_overrides_what(read(tmp_path / "s"))


def test_jobs_that_append_at_once_do_so_one_after_the_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    create(root, config=SIZES).close()

    def job(number: int) -> None:
        # makes the session the thread's: Spark looks for writers there
        spark.createDataFrame([], "x int")
        write(numbered(spark, 300, partitions=3).withColumn("tags", F.lit(f"job{number}")), root)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(job, range(3)))
    tags = column(root, "tags", scan="commitlog")
    assert [len(list(run)) for _, run in groupby(tags)] == [300, 300, 300]
    require_valid(root)
    assert not (root / ".rmqstore" / "staging").exists()
