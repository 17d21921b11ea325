"""Streams over log directories that grow."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

import kafka_logs as golden
from connector.engine import Engine, LocalFrame, Progress
from pyspark_kafkalog.offsets import StreamOffset
from pyspark_kafkalog.options import parse_stream_options
from pyspark_kafkalog.stream_reader import KafkaLogStreamReader
from pyspark_rmqstore.schema import kafka_schema
from rmqstore.errors import OffsetOutOfRangeError, UnsupportedFeatureError

N = 5  # records a batch


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return golden.make_log_dir(tmp_path / "logs", is_clean=False)


def append(log_dir: Path, partition: str, base_offset: int) -> None:
    folder = log_dir / partition
    folder.mkdir(exist_ok=True)
    values = [f"{partition} {base_offset + number}".encode() for number in range(N)]
    with (folder / f"{0:020}.log").open("ab") as file:
        file.write(golden.batch(base_offset, values))


Run = Callable[..., list[str]]


@pytest.fixture
def run(engine: Engine, log_dir: Path) -> Run:
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


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def values(partition: str, start: int, end: int) -> list[str]:
    return [f"{partition} {offset}" for offset in range(start, end)]


def test_a_stream_gives_each_record_once_and_takes_up_new_partitions(
    run: Run, log_dir: Path, checkpoint: Path
) -> None:
    append(log_dir, "a-0", 0)
    assert run(checkpoint, startingOffsets="earliest") == values("a-0", 0, N)
    append(log_dir, "a-0", N)
    append(log_dir, "b-3", 0)
    assert run(checkpoint) == sorted(values("a-0", N, 2 * N) + values("b-3", 0, N))
    assert run(checkpoint) == []


def test_a_stream_begins_at_the_latest_offsets(run: Run, log_dir: Path, checkpoint: Path) -> None:
    append(log_dir, "a-0", 0)
    assert run(checkpoint) == []
    append(log_dir, "a-0", N)
    assert run(checkpoint) == values("a-0", N, 2 * N)


@pytest.mark.parametrize(
    "start",
    [{"startingTimestamp": golden.TIME + N}, {"startingOffsets": json.dumps({"a": {"0": N + 1}})}],
)
def test_a_start_that_is_not_stable_yet_leaves_no_checkpoint(
    run: Run, log_dir: Path, checkpoint: Path, start: dict[str, object]
) -> None:
    append(log_dir, "a-0", 0)
    path = log_dir / "a-0" / f"{0:020}.log"
    is_open = golden.sent(N, 1, b"open", time=golden.TIME + N)
    plain = golden.batch(N + 1, [b"plain"], time=golden.TIME + N + 1)
    path.write_bytes(path.read_bytes() + is_open + plain)
    options = {"kafka.isolation.level": "read_committed", **start}
    for _ in range(2):
        with pytest.raises(PySparkException, match="last stable offset"):
            run(checkpoint, **options)
    path.write_bytes(path.read_bytes() + golden.marker(N + 2, 1, golden.COMMIT))
    expected = ["plain"] if "startingOffsets" in start else ["open", "plain"]
    assert run(checkpoint, **options) == expected


def test_limits_of_triggers(run: Run, log_dir: Path, checkpoint: Path) -> None:
    for base in range(0, 4 * N, N):
        append(log_dir, "a-0", base)
        append(log_dir, "b-0", base)
    limits = {"maxOffsetsPerTrigger": 16, "minOffsetsPerTrigger": 16}
    found = run(checkpoint, startingOffsets="earliest", **limits)
    assert found == sorted(values("a-0", 0, 4 * N) + values("b-0", 0, 4 * N))
    counts = [step["numInputRows"] for step in run.progress]  # type: ignore[attr-defined]
    assert [count for count in counts if count] == [16, 16, 8], "no minimum under AvailableNow"


def test_offsets_have_the_form_of_sparks_kafka_source(
    run: Run, log_dir: Path, tmp_path: Path, checkpoint: Path
) -> None:
    append(log_dir, "a-0", 0)
    run(checkpoint, startingOffsets="earliest")
    (last, *_) = sorted((checkpoint / "offsets").glob("[0-9]*"), reverse=True)
    stored = json.loads(last.read_text().splitlines()[-1])
    identity = stored.pop("#identity")
    assert stored == {"a": {"0": N}}
    (header,) = struct.iter_unpack(
        ">I", golden.batch(0, [f"a-0 {n}".encode() for n in range(N)])[17:21]
    )
    batch = [0, golden.TIME + N - 1, *header]
    assert identity == {"version": 1, "topicIds": {}, "batches": {"a": {"0": batch}}}
    again = run(tmp_path / "other", startingOffsets=last.read_text().splitlines()[-1])
    assert again == []


def test_records_that_are_gone_stop_a_query_or_are_passed_over(
    run: Run, log_dir: Path, checkpoint: Path
) -> None:
    append(log_dir, "a-0", 0)
    run(checkpoint, startingOffsets="earliest")
    (log_dir / "a-0" / f"{0:020}.log").unlink()
    folder = log_dir / "a-0"
    golden.write_segment(folder, 40, golden.batch(40, [b"a-0 40"]))
    with pytest.raises(PySparkException, match="a-0 now begins at 40, and offset 5 was next"):
        run(checkpoint)
    assert run(checkpoint, failOnDataLoss="false") == ["a-0 40"]


def test_a_partition_that_is_gone(run: Run, log_dir: Path, checkpoint: Path) -> None:
    append(log_dir, "a-0", 0)
    append(log_dir, "b-0", 0)
    run(checkpoint, startingOffsets="earliest")
    (log_dir / "b-0").rename(log_dir / f"b-0.{'0' * 32}-delete")
    append(log_dir, "a-0", N)
    with pytest.raises(PySparkException, match="partitions are gone: b-0"):
        run(checkpoint)
    assert run(checkpoint, failOnDataLoss="false") == values("a-0", N, 2 * N)


IDS = ("A" * 22, "B" * 22)


def make(log_dir: Path, partition: str, n: int, topic_id: str | None, *, time: int) -> None:
    """Make a partition with a number of records, one a batch, in place of the one that was."""
    folder = log_dir / partition
    if folder.exists():
        folder.rename(log_dir / f"{partition}.{time:032}-delete")
    batches = [
        golden.batch(number, [f"{partition} {number} {time}".encode()], time=golden.TIME + time)
        for number in range(n)
    ]
    golden.write_segment(folder, 0, *batches)
    if topic_id is not None:
        text = f"version: 0\ntopic_id: {topic_id}"
        (folder / "partition.metadata").write_text(text)


def made(partition: str, n: int, *, time: int, start: int = 0) -> list[str]:
    return sorted(f"{partition} {number} {time}" for number in range(start, n))


@pytest.mark.parametrize("ids", [IDS, (None, None), (IDS[0], None), (None, IDS[1])])
@pytest.mark.parametrize("n", [5, 20, 30])
@pytest.mark.parametrize("limits", [{}, {"maxOffsetsPerTrigger": 7}])
def test_a_topic_that_was_made_again_is_data_loss_and_a_new_start(
    run: Run,
    log_dir: Path,
    checkpoint: Path,
    ids: tuple[str | None, str | None],
    n: int,
    limits: dict[str, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    make(log_dir, "a-0", 20, ids[0], time=1)
    make(log_dir, "b-0", 4, IDS[0], time=1)
    assert len(run(checkpoint, startingOffsets="earliest", **limits)) == 24
    make(log_dir, "a-0", n, ids[1], time=2)
    with pytest.raises(PySparkException, match="a-0 began again after it was read up to 20"):
        run(checkpoint, **limits)
    assert run(checkpoint, failOnDataLoss="false", **limits) == made("a-0", n, time=2)
    told = [each.getMessage() for each in caplog.records if "began again" in each.getMessage()]
    assert len(told) == 1
    assert run(checkpoint) == []
    make(log_dir, "b-0", 5, IDS[0], time=1)
    assert run(checkpoint) == made("b-0", 5, time=1, start=4)


def test_a_topic_that_was_made_again_with_other_partitions(
    run: Run, log_dir: Path, checkpoint: Path
) -> None:
    for number in range(2):
        make(log_dir, f"a-{number}", 10, IDS[0], time=1)
    run(checkpoint, startingOffsets="earliest")
    for number in range(3):
        make(log_dir, f"a-{number}", 10, IDS[1], time=2)
    expected = sorted(value for number in range(3) for value in made(f"a-{number}", 10, time=2))
    assert run(checkpoint, failOnDataLoss="false") == expected
    for number in (1, 2):
        (log_dir / f"a-{number}").rename(log_dir / f"a-{number}.{'3' * 32}-delete")
    make(log_dir, "a-0", 4, "C" * 22, time=3)
    with pytest.raises(PySparkException, match=r"gone: a-1, a-2|a-0 began again"):
        run(checkpoint)
    assert run(checkpoint, failOnDataLoss="false") == made("a-0", 4, time=3)


def test_a_checkpoint_without_identities_goes_on_and_one_of_a_later_release_is_refused(
    run: Run, log_dir: Path, checkpoint: Path
) -> None:
    later = {"a": {"0": 1}, "#identity": {"version": 2}}
    with pytest.raises(UnsupportedFeatureError, match="offsets of version 2"):
        StreamOffset.of_json(later)
    make(log_dir, "a-0", 20, IDS[0], time=1)
    make(log_dir, "b-0", 20, None, time=1)
    run(checkpoint, startingOffsets="earliest")
    for file in (checkpoint / "offsets").glob("[0-9]*"):
        lines = file.read_text().splitlines()
        stored = {key: table for key, table in json.loads(lines[-1]).items() if key in "ab"}
        file.write_text("\n".join([*lines[:-1], json.dumps(stored)]))
    assert run(checkpoint) == []
    make(log_dir, "b-0", 23, None, time=1)
    assert run(checkpoint) == made("b-0", 23, time=1, start=20)
    make(log_dir, "a-0", 20, IDS[1], time=2)
    with pytest.raises(PySparkException, match="a-0 began again"):
        run(checkpoint)


def test_a_compaction_and_a_cut_are_no_new_topic(run: Run, log_dir: Path, checkpoint: Path) -> None:
    folder = log_dir / "a-0"
    first = golden.batch(0, [b"0", b"1", b"2"], time=golden.TIME)
    golden.write_segment(folder, 0, first, golden.batch(3, [b"3", b"4"], time=golden.TIME + 9))
    run(checkpoint, startingOffsets="earliest")
    thinned = golden.batch(3, [b"3"], time=golden.TIME + 9, last_offset_delta=1)
    late = golden.batch(5, [b"5"], time=golden.TIME)
    golden.write_segment(folder, 0, first, thinned, late)
    assert run(checkpoint) == ["5"]
    # the batch that was noted is gone, and the one before has a later time, as a producer gave it
    golden.write_segment(folder, 0, thinned, golden.batch(6, [b"6"], time=golden.TIME + 9))
    assert run(checkpoint) == ["6"]
    golden.write_segment(folder, 0, first)
    with pytest.raises(PySparkException, match="a-0 ended at 7 and now ends at 3"):
        run(checkpoint)
    assert run(checkpoint, failOnDataLoss="false") == []
    golden.write_segment(folder, 0, first, golden.batch(3, [b"again"], time=golden.TIME + 20))
    assert run(checkpoint) == ["again"]


@pytest.fixture
def reader(log_dir: Path) -> Callable[..., KafkaLogStreamReader]:
    def make_reader(**options: str) -> KafkaLogStreamReader:
        given = {"path": str(log_dir), "subscribe": "a", "startingOffsets": "earliest", **options}
        schema = kafka_schema(include_headers=False)
        return KafkaLogStreamReader(schema, parse_stream_options(given))

    return make_reader


@pytest.mark.parametrize("ids", [IDS, (None, None)])
@pytest.mark.parametrize("n", [5, 20, 30])
def test_a_topic_that_is_made_again_after_a_plan(
    log_dir: Path,
    reader: Callable[..., KafkaLogStreamReader],
    ids: tuple[str | None, str | None],
    n: int,
) -> None:
    """Between the plan and the tasks, or between the end of a micro-batch and its plan."""
    make(log_dir, "a-0", 20, ids[0], time=1)
    strict, lax = reader(), reader(failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    (task,) = strict.partitions(start, end)
    make(log_dir, "a-0", n, ids[1], time=2)
    text = "is another log than the one that was planned"
    with pytest.raises(OffsetOutOfRangeError, match=text):
        list(strict.read(task))
    assert list(lax.read(task)) == []
    with pytest.raises(OffsetOutOfRangeError, match="was to be read up to 20, but its topic was"):
        reader().partitions(start, end)
    assert lax.partitions(start, end) == []
    following = lax.latestOffset(end, ReadAllAvailable())
    (task,) = lax.partitions(end, following)
    rows = [
        value.decode() for batch in lax.read(task) for value in batch.column("value").to_pylist()
    ]
    assert sorted(rows) == made("a-0", n, time=2)


def test_writing_is_refused(engine: Engine, log_dir: Path, checkpoint: Path) -> None:
    append(log_dir, "a-0", 0)
    reader = engine.readStream.format("kafkalog").option("subscribe", "a")
    writer = reader.option("startingOffsets", "earliest").load(str(log_dir)).writeStream
    writer.format("kafkalog").option("checkpointLocation", str(checkpoint))
    with pytest.raises(PySparkException, match="kafkalog only reads"):
        writer.start(str(checkpoint.with_name("sink"))).awaitTermination()
