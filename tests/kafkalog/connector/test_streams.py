"""Streams over log directories that grow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import kafka_logs as golden
from connector.engine import Engine, LocalFrame, Progress

N = 5  # records a batch


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return golden.make_log_dir(tmp_path / "logs", is_clean=False)


def append(log_dir: Path, partition: str, base_offset: int) -> None:
    """Append a batch to the first segment of a partition."""
    folder = log_dir / partition
    folder.mkdir(exist_ok=True)
    values = [f"{partition} {base_offset + number}".encode() for number in range(N)]
    with (folder / f"{0:020}.log").open("ab") as file:
        file.write(golden.batch(base_offset, values))


Run = Callable[..., list[str]]


@pytest.fixture
def run(engine: Engine, log_dir: Path) -> Run:
    """Return a function that runs a query to its end and returns the values that it gave."""

    def start(checkpoint: Path, **options: Any) -> list[str]:
        reader = engine.readStream.format("kafkalog")
        for name, value in {"subscribePattern": ".*", **options}.items():
            reader = reader.option(name, value)
        found: list[str] = []

        def take(batch: LocalFrame, _: int) -> None:
            found.extend(row.value.decode() for row in batch.collect())

        query = (
            reader.load(str(log_dir))
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress.extend(query.recentProgress)
        return sorted(found)

    progress: list[Progress] = []
    start.progress = progress  # type: ignore[attr-defined]
    return start


def values(partition: str, start: int, end: int) -> list[str]:
    return [f"{partition} {offset}" for offset in range(start, end)]


def test_a_stream_gives_each_record_once_and_takes_up_new_partitions(
    run: Run, log_dir: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    append(log_dir, "a-0", 0)
    assert run(checkpoint, startingOffsets="earliest") == values("a-0", 0, N)
    append(log_dir, "a-0", N)
    append(log_dir, "b-3", 0)
    assert run(checkpoint) == sorted(values("a-0", N, 2 * N) + values("b-3", 0, N))
    assert run(checkpoint) == []


def test_a_stream_begins_at_the_latest_offsets(run: Run, log_dir: Path, tmp_path: Path) -> None:
    append(log_dir, "a-0", 0)
    assert run(tmp_path / "checkpoint") == []
    append(log_dir, "a-0", N)
    assert run(tmp_path / "checkpoint") == values("a-0", N, 2 * N)


@pytest.mark.parametrize(
    "start",
    [{"startingTimestamp": golden.TIME + N}, {"startingOffsets": json.dumps({"a": {"0": N + 1}})}],
)
def test_a_start_that_is_not_stable_yet_leaves_no_checkpoint(
    run: Run, log_dir: Path, tmp_path: Path, start: dict[str, object]
) -> None:
    producer = golden.Producer(1, 0, 0)
    is_open = golden.batch(
        N, [b"open"], producer=producer, attributes=golden.TRANSACTIONAL, time=golden.TIME + N
    )
    append(log_dir, "a-0", 0)
    with (log_dir / "a-0" / f"{0:020}.log").open("ab") as file:
        file.write(is_open + golden.batch(N + 1, [b"plain"], time=golden.TIME + N + 1))
    options = {"kafka.isolation.level": "read_committed", **start}
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        with pytest.raises(PySparkException, match="last stable offset"):
            run(checkpoint, **options)
    with (log_dir / "a-0" / f"{0:020}.log").open("ab") as file:
        file.write(golden.marker(N + 2, 1, golden.COMMIT))
    assert run(checkpoint, **options) == (
        ["plain"] if "startingOffsets" in start else ["open", "plain"]
    )


def test_limits_of_triggers(run: Run, log_dir: Path, tmp_path: Path) -> None:
    for base in range(0, 4 * N, N):
        append(log_dir, "a-0", base)
        append(log_dir, "b-0", base)
    found = run(tmp_path / "checkpoint", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    assert found == sorted(values("a-0", 0, 4 * N) + values("b-0", 0, 4 * N))
    counts = [step["numInputRows"] for step in run.progress]  # type: ignore[attr-defined]
    assert [count for count in counts if count] == [10] * 4


def test_offsets_have_the_form_of_sparks_kafka_source(
    run: Run, log_dir: Path, tmp_path: Path
) -> None:
    append(log_dir, "a-0", 0)
    run(tmp_path / "checkpoint", startingOffsets="earliest")
    (last, *_) = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), reverse=True)
    assert json.loads(last.read_text().splitlines()[-1]) == {"a": {"0": N}}


def test_records_that_are_gone_stop_a_query_or_are_passed_over(
    run: Run, log_dir: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    append(log_dir, "a-0", 0)
    run(checkpoint, startingOffsets="earliest")
    (log_dir / "a-0" / f"{0:020}.log").unlink()
    folder = log_dir / "a-0"
    golden.write_segment(folder, 40, golden.batch(40, [b"a-0 40"]))
    with pytest.raises(PySparkException, match="a-0 now begins at 40, and offset 5 was next"):
        run(checkpoint)
    assert run(checkpoint, failOnDataLoss="false") == ["a-0 40"]


def test_a_partition_that_is_gone(run: Run, log_dir: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    append(log_dir, "a-0", 0)
    append(log_dir, "b-0", 0)
    run(checkpoint, startingOffsets="earliest")
    (log_dir / "b-0").rename(log_dir / f"b-0.{'0' * 32}-delete")
    append(log_dir, "a-0", N)
    with pytest.raises(PySparkException, match="partitions are gone: b-0"):
        run(checkpoint)
    assert run(checkpoint, failOnDataLoss="false") == values("a-0", N, 2 * N)


def test_writing_is_refused(engine: Engine, log_dir: Path, tmp_path: Path) -> None:
    append(log_dir, "a-0", 0)
    reader = engine.readStream.format("kafkalog").option("subscribe", "a")
    writer = reader.option("startingOffsets", "earliest").load(str(log_dir)).writeStream
    writer.format("kafkalog").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match="kafkalog only reads"):
        writer.start(str(tmp_path / "sink")).awaitTermination()
