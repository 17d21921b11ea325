"""What `make demo` shows: a store that a real RocketMQ 5.3.3 broker wrote, read through Spark.

Usage: python examples/demo.py [STORE]
"""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path

from pyspark.sql import SparkSession, functions as sf

ROOT = Path(__file__).resolve().parents[1]


def unpack(name: str) -> Path:
    """Unpack a golden store next to the project, once."""
    folder = ROOT / ".demo"
    if not (folder / name).is_dir():
        with tarfile.open(ROOT / "tests" / "golden" / f"{name}.tar.xz") as packed:
            packed.extractall(folder, filter="data")
    return folder / name


def main() -> None:
    store = Path(sys.argv[1]) if len(sys.argv) > 1 else unpack("live")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("rmqstore demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    messages = spark.read.format("rmqstore").load(str(store))

    print(f"\nTopics of {store}:")
    messages.groupBy("topic").agg(
        sf.count("*").alias("messages"),
        sf.sum("storeSize").alias("bytes"),
        sf.min("storeTimestamp").alias("first stored"),
        sf.max("storeTimestamp").alias("last stored"),
    ).orderBy("topic").show(truncate=False)

    print("A few messages:")
    messages.select(
        "topic",
        "queueId",
        "queueOffset",
        "tags",
        "keys",
        sf.expr("substring(string(body), 1, 30) AS body"),
    ).orderBy("topic", "queueId", "queueOffset").show(8, truncate=False)

    print("Messages per topic and queue:")
    counts = messages.groupBy("topic", "queueId").count()
    counts.orderBy("topic", "queueId").show(50, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
