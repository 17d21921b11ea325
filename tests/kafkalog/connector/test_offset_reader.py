"""Where the partitions of a query start and end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kafka_logs as build
from kafkalog import CorruptBatchError, Partition
from pyspark_kafkalog.offset_reader import OffsetReader
from pyspark_kafkalog.options import parse_read_options, parse_stream_options
from pyspark_kafkalog.rows import KafkaLogReader, default_schema
from pyspark_rmqstore.schema import kafka_schema
from rmqstore.errors import OffsetOutOfRangeError, OptionError

N = 5


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    log_dir = build.make_log_dir(tmp_path / "logs")
    for number in range(2):
        batches = (build.batch(offset, [b"x"], time=offset) for offset in range(N))
        build.write_segment(log_dir / f"t-{number}", 0, *batches)
    return log_dir


def reader(log_dir: Path, **options: str) -> OffsetReader:
    return OffsetReader(parse_read_options({"path": str(log_dir), "subscribe": "t"} | options))


MUST = "must name every partition that is read, and no other: it"


# What KafkaOffsetReaderAdmin of Spark refuses as well.
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingOffsets": '{"t":{"0":1}}'},
         f"startingOffsets {MUST} does not name t-1; -2 is the earliest offset, -1 the latest"),
        ({"startingOffsets": "{}"}, f"startingOffsets {MUST} does not name t-0, t-1; -2 is"),
        ({"endingOffsets": '{"t":{"0":-1,"7":3}}'},
         f"endingOffsets {MUST} does not name t-1 and names t-7, which is not read; -2 is"),
        ({"endingOffsets": '{"t":{"0":-1,"1":-1},"u":{"0":3}}'},
         f"endingOffsets {MUST} names u-0, which is not read; -2 is"),
        ({"startingOffsetsByTimestamp": '{"t":{"1":1}}', "startingOffsets": "earliest"},
         f"startingOffsetsByTimestamp {MUST} does not name t-0"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":1}}'},
         f"endingOffsetsByTimestamp {MUST} does not name t-1"),
    ],
)  # fmt: skip
def test_offsets_by_partition_name_all_that_are_read(
    log_dir: Path, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(OptionError) as caught:
        reader(log_dir, **options).require_named()
    assert str(caught.value).startswith(reason)


def test_a_time_for_all_partitions_goes_before_offsets_that_are_incomplete(log_dir: Path) -> None:
    opened = reader(log_dir, startingTimestamp="2", startingOffsets='{"t":{"0":1}}')
    opened.require_named()
    assert opened.starts() == {("t", 0): 2, ("t", 1): 2}


def test_the_offsets_of_a_new_stream_name_all_that_are_read(log_dir: Path) -> None:
    options = parse_stream_options(
        {"path": str(log_dir), "subscribePattern": "t", "startingOffsets": '{"t":{"0":1}}'}
    )
    with pytest.raises(OptionError, match="does not name t-1"):
        OffsetReader(options.read).require_named()


@pytest.fixture
def unreadable(log_dir: Path) -> Path:
    """Return a log directory of which t-1 has a damaged batch, and no other."""
    wrong = build.changed(build.batch(0, [b"y"]))
    wrong = build.changed(wrong, 3, 9)  # its offset continues nothing either
    return build.write_segment(log_dir / "t-1", 0, wrong)


@pytest.mark.parametrize("options", [{}, {"kafka.isolation.level": "read_committed"}])
def test_a_partition_of_which_nothing_can_be_read_is_not_silent(
    log_dir: Path, unreadable: Path, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    def read(mode: str) -> int:
        given = {"path": str(log_dir), "subscribe": "t", "mode": mode, **options}
        parsed = parse_read_options(given)
        reader = KafkaLogReader(default_schema(parsed.columns), parsed)
        return sum(batch.num_rows for split in reader.partitions() for batch in reader.read(split))

    with pytest.raises(CorruptBatchError, match=re.escape(str(unreadable))):
        read("FAILFAST")
    assert read("PERMISSIVE") == N + 1
    assert read("DROPMALFORMED") == N
    assert f"{unreadable}: dropped damage at 0: the CRC is wrong" in caplog.text


def test_a_stream_says_that_nothing_of_a_partition_can_be_read(
    log_dir: Path, unreadable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CorruptBatchError, match=re.escape(str(unreadable))):
        reader(log_dir).require_readable()
    reader(log_dir, mode="DROPMALFORMED").require_readable()
    assert f"no record of t-1 can be read: {unreadable}" in caplog.text
    unreadable.write_bytes(b"")
    reader(log_dir).require_readable()


def test_offsets_by_partition(log_dir: Path) -> None:
    opened = reader(
        log_dir,
        startingOffsets='{"t":{"0":1,"1":-2}}',
        endingOffsetsByTimestamp='{"t":{"0":3,"1":99}}',
    )
    opened.require_named()
    assert opened.starts() == {("t", 0): 1, ("t", 1): 0}
    assert opened.ends() == {("t", 0): 3, ("t", 1): N}


@pytest.fixture
def unstable(log_dir: Path) -> dict[str, str]:
    """Let t-0 have an open transaction from offset 2 on; return options for what is committed."""
    plain = [build.batch(offset, [b"x"], time=offset) for offset in (0, 1, 3, 4)]
    is_open = build.sent(2, 1, b"x", time=2)
    build.write_segment(log_dir / "t-0", 0, *plain[:2], is_open, *plain[2:])
    return {"path": str(log_dir), "subscribe": "t", "kafka.isolation.level": "read_committed"}


def test_committed_records_end_at_the_last_stable_offset(
    unstable: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task does not look for it again."""
    options = unstable | {"endingOffsets": '{"t":{"0":4,"1":4}}'}
    opened = OffsetReader(parse_read_options(options))
    assert opened.ends() == {("t", 0): 2, ("t", 1): 4}
    by_time = {"endingTimestamp": "3"}
    assert OffsetReader(parse_read_options(options | by_time)).ends() == {("t", 0): 2, ("t", 1): 3}
    batch_reader = KafkaLogReader(kafka_schema(include_headers=False), parse_read_options(options))
    splits = batch_reader.partitions()
    monkeypatch.setattr(Partition, "stable_offset", lambda *_, **__: pytest.fail("looked for"))
    assert sum(batch.num_rows for split in splits for batch in batch_reader.read(split)) == 6


def test_negative_times_are_those_of_a_broker(log_dir: Path) -> None:
    """-1 is the latest offset, and -2 the earliest, to Spark's Kafka source as well."""
    by_time = '{"t":{"0":-2,"1":-1}}'
    opened = reader(log_dir, startingTimestamp="-1", endingOffsetsByTimestamp=by_time)
    assert opened.starts() == {("t", 0): N, ("t", 1): N}
    assert opened.ends() == {("t", 0): 0, ("t", 1): N}
    opened = reader(log_dir, startingOffsetsByTimestamp=by_time, endingTimestamp=" -2")
    assert opened.starts() == {("t", 0): 0, ("t", 1): N}
    assert opened.ends() == {("t", 0): 0, ("t", 1): 0}


@pytest.mark.parametrize(
    "start",
    [
        {"startingTimestamp": "2"},
        {"startingTimestamp": "3"},
        {"startingOffsetsByTimestamp": '{"t":{"0":2,"1":5}}'},
    ],
)
def test_a_start_time_after_the_last_stable_offset_has_no_record(
    unstable: dict[str, str], start: dict[str, str]
) -> None:
    """A broker answers so, too, to who asks for committed records."""
    options = unstable | start
    reason = "no record of t-0 before the last stable offset 2 has a time of"
    with pytest.raises(OptionError, match=reason):
        OffsetReader(parse_read_options(options)).starts()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    given = options | strategy
    for parsed in (parse_read_options(given), parse_stream_options(given).read):
        opened = OffsetReader(parsed)
        assert opened.starts()[("t", 0)] == opened.stable_starts()[("t", 0)] == 2
    uncommitted = options | {"kafka.isolation.level": "read_uncommitted"} | strategy
    assert OffsetReader(parse_read_options(uncommitted)).starts()[("t", 0)] >= 2
    before = options | {"startingTimestamp": "1"}
    assert OffsetReader(parse_read_options(before)).starts() == {("t", 0): 1, ("t", 1): 1}


def test_a_query_does_not_begin_after_the_last_stable_offset(
    unstable: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    options = unstable | {"startingOffsets": '{"t":{"0":3,"1":4}}'}
    reason = "startingOffsets of t-0 is 3, but its committed records have the offsets 0 to 2"
    with pytest.raises(OffsetOutOfRangeError, match=reason):
        OffsetReader(parse_stream_options(options).read).stable_starts()
    loses = OffsetReader(parse_stream_options(options | {"failOnDataLoss": "false"}).read)
    assert loses.stable_starts() == {("t", 0): 2, ("t", 1): 4}
    assert reason in caplog.text
    # Spark's Kafka source says then that the start is greater than the end
    parsed = parse_read_options(options)
    with pytest.raises(OffsetOutOfRangeError, match=reason):
        KafkaLogReader(default_schema(parsed.columns), parsed).partitions()


def test_a_damaged_marker_that_keeps_committed_records_back_is_an_error(log_dir: Path) -> None:
    is_open, marker = build.sent(0, 1, b"x"), build.marker(1, 1, build.COMMIT)
    build.write_segment(log_dir / "t-0", 0, is_open, build.changed(marker))
    committed = {"kafka.isolation.level": "read_committed"}
    with pytest.raises(CorruptBatchError, match="may have decided transactions"):
        reader(log_dir, **committed).latest_offsets()
    kept = reader(log_dir, mode="DROPMALFORMED", **committed).latest_offsets()
    assert kept == {("t", 0): 0, ("t", 1): N}
    build.write_segment(log_dir / "t-0", 0, is_open, build.changed(marker, 17))  # the CRC
    for options in ({}, {"mode": "PERMISSIVE"}):
        unchecked = reader(log_dir, checkCRC="false", **options, **committed)
        assert unchecked.latest_offsets() == unchecked.ends() == {("t", 0): 2, ("t", 1): N}
