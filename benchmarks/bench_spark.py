"""Compares our source in Spark with the ceiling of Spark's Python API.

The ceiling is the same batches, prebuilt, in the same run. The figures are CPU time per row, of the
JVM and the Python workers together, because wall time says little on shared cores. The prebuilt
batches come from mapped Arrow IPC files, so they cost what any Python source has to pay.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from measure import report, spark_session
from processes import cpu_seconds
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

CASES = {"all columns": (None, 0.75), "queueOffset, tags, body": ("queueOffset,tags,body", 0.65)}


@dataclass(frozen=True)
class File(InputPartition):
    """One prebuilt file."""

    path: str


class PrebuiltReader(DataSourceReader):
    """Yields the batches of IPC files."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return [File(str(path)) for path in sorted(Path(self._folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, File)
        with pa.memory_map(partition.path) as mapped, pa.ipc.open_file(mapped) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


class Prebuilt(DataSource):
    """The ceiling: a source whose batches only have to be handed over."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return PrebuiltReader(self.options["path"])


def main() -> None:
    """Run the cases and print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--passes", type=int, default=5)
    arguments = parser.parse_args()
    spark = spark_session()
    import bench_spark  # by its module name, so that workers can import what is pickled

    spark.dataSource.register(bench_spark.Prebuilt)
    jvm = int(spark.sparkContext._jvm.ProcessHandle.current().pid())  # noqa: SLF001 - no public way to the pid
    with tempfile.TemporaryDirectory(dir=arguments.store.parent) as scratch:
        for name, (columns, goal) in CASES.items():
            compare(spark, jvm, arguments, name, columns, goal, Path(scratch))
    spark.stop()


def compare(
    spark: SparkSession,
    jvm: int,
    arguments: argparse.Namespace,
    name: str,
    columns: str | None,
    goal: float,
    scratch: Path,
) -> None:
    """Time our source and prebuilt batches of the same rows, in turn."""
    options = {"checkCRC": "false", **({"columns": columns} if columns else {})}
    ours = spark.read.format("rmqstore").options(**options).load(str(arguments.store))
    folder = scratch / name.replace(", ", "-").replace(" ", "-")
    rows = prebuild(arguments.store, options, folder)
    prebuilt = spark.read.format("prebuilt").schema(ours.schema).load(str(folder))
    cpu: dict[str, list[float]] = {"ours": [], "prebuilt": []}
    wall: dict[str, list[float]] = {"ours": [], "prebuilt": []}
    for number in range(arguments.passes + 1):
        for who, frame in (("ours", ours), ("prebuilt", prebuilt)):
            before = cpu_seconds(jvm)
            started = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if number:
                cpu[who].append((cpu_seconds(jvm) - before) / rows * 1e6)
                wall[who].append(time.perf_counter() - started)
    report(
        "spark",
        name,
        cpu_us_per_row=statistics.median(cpu["ours"]),
        prebuilt_cpu_us_per_row=statistics.median(cpu["prebuilt"]),
        share_of_prebuilt=statistics.median(
            b / a for a, b in zip(cpu["ours"], cpu["prebuilt"], strict=True)
        ),
        goal=goal,
        rows_per_second=rows / statistics.median(wall["ours"]),
        prebuilt_rows_per_second=rows / statistics.median(wall["prebuilt"]),
    )


def prebuild(store: Path, options: dict[str, str], folder: Path) -> int:
    """Write the batches of each task of our source to a file of its own; return the row count."""
    from pyspark_rmqstore.batch_reader import RmqStoreReader
    from pyspark_rmqstore.options import parse_read_options
    from pyspark_rmqstore.schema import default_schema

    parsed = parse_read_options({"path": str(store), **options})
    reader = RmqStoreReader(default_schema(parsed.columns), parsed)
    folder.mkdir()
    rows = 0
    for number, split in enumerate(reader.partitions()):
        batches = reader.read(split)
        first = next(batches)
        with pa.ipc.new_file(folder / f"{number:05d}.arrow", first.schema) as file:
            file.write_batch(first)
            rows += first.num_rows
            for batch in batches:
                file.write_batch(batch)
                rows += batch.num_rows
    return rows


if __name__ == "__main__":
    main()
