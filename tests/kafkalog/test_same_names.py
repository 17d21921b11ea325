"""What a log directory and a store have in common is called the same."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import kafka_logs as build
import kafkalog
import rmqstore
from rmqstore.errors import OffsetOutOfRangeError, OptionError

# What only records of RocketMQ have: conditions, properties, an index, and places in one log.
OF_STORES = {
    "ending_physical_offset", "filter", "include_pending", "index_only", "msg_id",
    "msg_key", "msg_tags", "scan", "starting_physical_offset", "tags", "verbatim", "where",
}  # fmt: skip
OF_KAFKA = {"isolation_level", "partitions"}


@pytest.fixture
def logs(tmp_path: Path) -> kafkalog.LogDirs:
    """Return log directories with t-0 and t-1, whose records are a second apart, and u-0."""
    root = build.make_log_dir(tmp_path / "logs")
    for number in range(2):
        batches = (build.batch(at, [b"%d" % at], time=1_000 * (at + 1)) for at in range(4))
        build.write_segment(root / f"t-{number}", 0, *batches)
    build.write_segment(root / "u-0", 0, build.batch(0, [b"u"]))
    build.write_segment(root / "__consumer_offsets-0", 0, build.commit(0, 2))
    return kafkalog.open(root)


def places(scan: kafkalog.Scan) -> list[tuple[str, int, int]]:
    rows = scan.to_arrow().select(["topic", "partition", "offset"]).to_pylist()
    return [tuple(row.values()) for row in rows]


def test_scans_take_the_same_arguments() -> None:
    of_logs = set(signature(kafkalog.LogDirs.scan).parameters)
    of_stores = set(signature(rmqstore.MessageStore.scan).parameters)
    assert of_stores - of_logs == OF_STORES
    assert of_logs - of_stores == OF_KAFKA
    of_partition = set(signature(kafkalog.Partition.scan).parameters)
    assert of_partition - of_logs == {"starting_offset", "ending_offset"}


def test_scans_have_the_same_members() -> None:
    of_logs, of_stores = (
        {name for name in dir(each) if not name.startswith("_") or name.endswith("__")}
        for each in (kafkalog.Scan, rmqstore.Scan)
    )
    assert of_logs == of_stores


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ["t-0", "t-1", "u-0"]),
        ({"subscribe": "u"}, ["u-0"]),
        ({"subscribe": ["__consumer_offsets"]}, ["__consumer_offsets-0"]),
        ({"subscribe_pattern": "[tv]"}, ["t-0", "t-1"]),
        ({"subscribe_pattern": ".*"}, ["t-0", "t-1", "u-0"]),
        ({"subscribe_pattern": "__.*", "include_system_topics": True}, ["__consumer_offsets-0"]),
        ({"include_system_topics": True}, ["__consumer_offsets-0", "t-0", "t-1", "u-0"]),
        ({"assign": {"t": [1], "u": [0]}}, ["t-1", "u-0"]),
        ({"assign": '{"t":[1]}'}, ["t-1"]),
        ({"assign": {}}, []),
        ({"subscribe": "t", "partitions": [1]}, ["t-1"]),
    ],
)
def test_what_is_chosen(
    logs: kafkalog.LogDirs, arguments: dict[str, Any], expected: list[str]
) -> None:
    keys = {f"{topic}-{partition}": 0 for topic, partition, _ in places(logs.scan(**arguments))}
    assert [*keys] == expected


@pytest.mark.parametrize(
    ("arguments", "of_0", "of_1"),
    [
        ({"starting_offsets": "earliest", "ending_offsets": "latest"}, [0, 1, 2, 3], [0, 1, 2, 3]),
        ({"starting_offsets": {"t": {"0": 3, 1: -2}}}, [3], [0, 1, 2, 3]),
        ({"starting_offsets": {("t", 0): 1}, "ending_offsets": {("t", 1): 1}}, [1, 2, 3], [0]),
        ({"starting_offsets": "group:g"}, [2, 3], [0, 1, 2, 3]),
        ({"ending_offsets": "group:g"}, [0, 1], [0, 1, 2, 3]),
        ({"starting_timestamp": "1970-01-01T00:00:03Z"}, [2, 3], [2, 3]),
        ({"ending_timestamp": "ms:2500"}, [0, 1], [0, 1]),
        ({"starting_timestamp": "ms:9000"}, [], []),
        ({"starting_offsets_by_timestamp": {"t": {1: "ms:4000"}}}, [0, 1, 2, 3], [3]),
        ({"ending_offsets_by_timestamp": {("t", 0): "ms:2000"}}, [0], [0, 1, 2, 3]),
        ({"limit": 5}, [0, 1, 2, 3], [0]),
        ({"last": 1}, [3], [3]),
        ({"last": 9}, [0, 1, 2, 3], [0, 1, 2, 3]),
        ({"last": 2, "ending_offsets": {"t": {0: 3, 1: 0}}}, [1, 2], []),
        ({"last": 3, "starting_offsets": {"t": {0: 2, 1: 0}}, "limit": 4}, [2, 3], [1, 2]),
    ],
)
def test_where_partitions_start_and_end(
    logs: kafkalog.LogDirs, arguments: dict[str, Any], of_0: list[int], of_1: list[int]
) -> None:
    expected = [("t", 0, offset) for offset in of_0] + [("t", 1, offset) for offset in of_1]
    assert places(logs.scan(subscribe="t", **arguments)) == expected


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"subscribe": "v"}, "subscribe: .* has no v; it has: __consumer_offsets, t, u"),
        ({"assign": {"t": [7]}}, "assign: .* does not hold t-7"),
        ({"subscribe": "t", "subscribe_pattern": "t"}, "at most one"),
        ({"assign": {"t": [0]}, "partitions": [0]}, "partitions: assign has"),
        ({"subscribe": "t", "starting_offsets": {"u": {0: 0}}}, "starting_offsets: u-0 is not"),
        ({"ending_offsets": {"t": {"broker": {0: 0}}}}, "ending_offsets: log directories are of"),
        ({"starting_offsets": "latest"}, "nothing to read"),
        ({"limit": 0}, "limit 0"),
        ({"last": 0}, "last 0"),
        ({"mode": "PERMISSIVE", "column_name_of_corrupt_record": "topic"}, "has this name"),
        ({"columns": "_corrupt_record"}, "unknown _corrupt_record"),
        ({"columns": "topic,topic"}, "a column is named twice"),
        ({"subscribe": "t", "partitions": [5]}, "there is no partition 5 of t"),
        ({"subscribe": "t", "ending_offsets": {("u", 0): 0}}, "ending_offsets: u-0 is not read"),
        ({"mode": "STRICT"}, "mode 'STRICT': one of"),
        ({"isolation_level": "committed"}, "read_uncommitted or read_committed"),
    ],
)
def test_what_is_refused(logs: kafkalog.LogDirs, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        logs.scan(**arguments)


def test_what_a_partition_refuses(logs: kafkalog.LogDirs) -> None:
    with pytest.raises(OptionError, match="does not hold t-9"):
        logs.partition("t", 9)
    with pytest.raises(OptionError, match="unknown topic"):
        logs.partition("t", 0).scan(columns="topic")
    with pytest.raises(OptionError, match="timestamp -1: must not be negative"):
        logs.partition("t", 0).offset_for_time(-1)


def test_what_is_refused_while_it_is_read(logs: kafkalog.LogDirs) -> None:
    with pytest.raises(OptionError, match=r"group 'h' has no committed offsets; .* have: g"):
        logs.scan(starting_offsets="group:h").count()
    late = logs.scan(
        subscribe="t", starting_timestamp="ms:9000", starting_offsets_by_timestamp_strategy="error"
    )
    with pytest.raises(OffsetOutOfRangeError, match="t-0 has no record of 9000 ms or later"):
        late.count()


def test_a_scan_of_a_partition_takes_times_a_limit_and_progress(logs: kafkalog.LogDirs) -> None:
    partition, seen = logs.partition("t", 0), list[tuple[int, int]]()
    scan = partition.scan(
        starting_timestamp="ms:2000", ending_timestamp="ms:4000", columns="offset",
        progress=lambda *now: seen.append(now),
    )  # fmt: skip
    assert scan.to_arrow()["offset"].to_pylist() == [1, 2]
    assert seen[0] == (0, 2)
    assert seen[-1] == (2, 2)
    newest = partition.scan(last=3, columns="offset", progress=lambda *now: seen.append(now))
    assert newest.to_arrow()["offset"].to_pylist() == [1, 2, 3]
    assert seen[-1] == (3, 3)
    assert partition.scan(1, columns="offset", limit=2).to_arrow()["offset"].to_pylist() == [1, 2]


def test_the_progress_of_a_scan(logs: kafkalog.LogDirs) -> None:
    seen: list[tuple[int, int]] = []
    scan = logs.scan("t", starting_offsets={"t": {0: 3}}, progress=lambda *now: seen.append(now))
    assert scan.count() == 5
    assert seen[0] == (0, 5)
    assert seen[-1] == (5, 5)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_scan_is_used_like_a_reader(logs: kafkalog.LogDirs) -> None:
    with logs.scan(columns="topic,offset", limit=6) as scan:
        assert scan.read_all().equals(scan.to_arrow())
        assert scan.read_pandas().equals(scan.to_pandas())
        assert scan.to_polars()["offset"].to_list() == scan.to_arrow()["offset"].to_pylist()
        assert repr(scan) == "Scan of topic, offset"
        assert next(scan).equals(scan.read_next_batch()) is False
        scan.close()
        assert scan.read_next_batch().column("offset")[0].as_py() == 0
        assert scan.count() == scan.head(9).num_rows == 6
        assert scan.head(0).num_rows == 0
        with pytest.raises(TypeError, match="count"):
            len(scan)
        assert "<td>t</td>" in scan._repr_html_()
    committed = logs.scan(isolation_level="read_committed")._repr_html_()
    assert "head() reads the first rows" in committed


def test_the_column_with_the_damage_may_be_named_in_its_place(logs: kafkalog.LogDirs) -> None:
    scan = logs.scan(columns="_corrupt_record,offset,topic", mode="PERMISSIVE")
    assert scan.read_all().column_names == ["_corrupt_record", "offset", "topic"]
    alone = logs.partition("t", 0).scan(columns=["_corrupt_record"], mode="PERMISSIVE")
    assert alone.read_all().to_pylist() == [{"_corrupt_record": None}] * 4
