"""Reading a store through Spark in tests: options in, rows out that compare easily."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import goldens
from connector.engine import Engine, Frame
from reading import Row, rows

GoldenStore = Callable[[str], Path]
Stores = Path | list[Path] | str
Schema = str | StructType


@overload
def load(
    spark: SparkSession, path: Stores, *, schema: Schema | None = None, **options: object
) -> DataFrame: ...
@overload
def load(
    spark: Engine, path: Stores, *, schema: Schema | None = None, **options: object
) -> Frame: ...
def load(
    spark: SparkSession | Engine, path: Stores, *, schema: Schema | None = None, **options: object
) -> DataFrame | Frame:
    """Return a read of one store or several; options that are not text become JSON."""
    reader: Any = spark.read.format("rmqstore")
    if schema is not None:
        reader = reader.schema(schema)
    for name, value in options.items():
        reader = reader.option(name, value if isinstance(value, str) else json.dumps(value))
    return reader.load([str(one) for one in path] if isinstance(path, list) else str(path))


def collect(frame: DataFrame | Frame) -> list[Row]:
    """Return the rows, times as ms, properties as a dict."""
    return rows(frame.toArrow().to_batches())


def read(spark: SparkSession | Engine, path: Stores, **options: Any) -> list[Row]:
    return collect(load(spark, path, **options))


@dataclass(frozen=True)
class Golden:
    """What the engine reads: golden stores by their names, other stores by their paths."""

    engine: Engine
    path: GoldenStore

    def load(self, store: Stores, **options: Any) -> Frame:
        is_name = isinstance(store, str) and "/" not in store
        return load(self.engine, self.path(store) if is_name else store, **options)

    def read(self, store: Stores, **options: Any) -> list[Row]:
        return collect(self.load(store, **options))

    def copy(self, name: str, to: Path) -> Path:
        return Path(shutil.copytree(self.path(name), to))


def in_queue_order(found: Iterable[Row]) -> list[Row]:
    return sorted(found, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


def in_log_order(found: Iterable[Row]) -> list[Row]:
    return sorted(found, key=lambda row: row["commitLogOffset"])


def messages(name: str, broker_name: str = "b") -> list[Row]:
    return in_queue_order(
        goldens.message(row, broker_name) for row in goldens.lines(name, "expected")
    )


def offsets(found: Iterable[Row]) -> set[int]:
    """Return the physical offsets of rows, none of which may come twice."""
    listed = [row["commitLogOffset"] for row in found]
    assert len(set(listed)) == len(listed), "a message came twice"
    return set(listed)


def is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
