"""What PySpark 4.0 and 4.1 lack: the source works without it, and says which release has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from connector.streams import add
from pyspark_rmqstore.options import parse_stream_options
from pyspark_rmqstore.spark_versions import UnlimitedStreamReader
from rmqstore.errors import OffsetOutOfRangeError, UnsupportedFeatureError

# Names of pyspark.sql.datasource that the connector uses, by the release that brought them.
OF_4_1 = ("Filter", "EqualTo", "In", "IsNotNull", "StringStartsWith", "DataSourceStreamArrowWriter")
STREAM_LIMITS = "pyspark.sql.streaming.datasource"  # since 4.2
# The reader, and whether the writer of a stream has the class by which 4.0 knows Arrow writers.
AS_OF = {"4.0": "UnlimitedStreamReader True", "4.1": "UnlimitedStreamReader False"}
SCRIPT = """
import sys
import pyspark.sql.datasource as api
for name in sys.argv[3].split(",") if sys.argv[3] else ():
    delattr(api, name)
sys.modules[sys.argv[2]] = None
import pyspark_rmqstore
options = {"path": sys.argv[1]}
source = pyspark_rmqstore.DefaultSource(options)
source.reader(source.schema())
reader = source.streamReader(source.schema())
source = pyspark_rmqstore.DefaultSource({**options, "topic": "T"})
from pyspark.sql.types import MapType, StringType, StructType
rows = StructType().add("body", "string")
writers = [make(rows, False) for make in (source.writer, source.streamWriter)]
print(type(reader).__name__, isinstance(writers[1], api.DataSourceArrowWriter))
"""


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    add(tmp_path / "store", ("T", 0, [str(number) for number in range(10)]))
    return tmp_path / "store"


@pytest.mark.parametrize("version", AS_OF)
def test_the_source_works_with_the_api_of_an_older_release(grown: Path, version: str) -> None:
    missing = ",".join(OF_4_1) if version == "4.0" else ""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(grown), STREAM_LIMITS, missing], capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == AS_OF[version]


def reader(root: Path, **options: str) -> UnlimitedStreamReader:
    given = {"path": str(root), "startingOffsets": "earliest", **options}
    return UnlimitedStreamReader(
        StructType().add("queueOffset", "long"), parse_stream_options(given)
    )


def rows_of(stream: UnlimitedStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    batches = (batch for split in stream.partitions(start, end) for batch in stream.read(split))
    return [row["queueOffset"] for batch in batches for row in batch.to_pylist()]


def test_triggers_take_all_that_is_there_once(grown: Path) -> None:
    stream = reader(grown)
    start = stream.initialOffset()
    end = stream.latestOffset()
    assert rows_of(stream, start, end) == list(range(10))
    assert stream.latestOffset() == end
    add(grown, ("T", 0, ["new"] * 3))
    later = stream.latestOffset()
    assert rows_of(stream, end, later) == [10, 11, 12]
    stream.stop()


def test_a_query_continues_after_a_restart_from_its_checkpoint_alone(grown: Path) -> None:
    stream = reader(grown)
    end = stream.latestOffset()  # as under Trigger.AvailableNow, before anything else is asked
    assert rows_of(stream, stream.initialOffset(), end) == list(range(10))
    stream.stop()
    again = reader(grown)
    assert again.latestOffset() == end  # so Spark sees that there is nothing new
    add(grown, ("T", 0, ["new"]))
    assert rows_of(again, end, again.latestOffset()) == [10]
    again.stop()


def test_what_was_lost_before_a_restart_is_reported_when_its_micro_batch_is_planned(
    grown: Path,
) -> None:
    stream = reader(grown)
    end = stream.latestOffset()
    stream.stop()
    ahead = {
        **end,
        "queues": {"T": {broker: {"0": 15} for broker in end["queues"]["T"]}},
        "log": {},
    }
    again = reader(grown)
    with pytest.raises(OffsetOutOfRangeError, match="data loss: T-0"):
        again.partitions(ahead, again.latestOffset())
    again.stop()


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"]
)
def test_limits_are_refused_with_the_release_that_has_them(grown: Path, name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=rf"{name}: .*PySpark 4\.2 or later"):
        reader(grown, **{name: "5"})
