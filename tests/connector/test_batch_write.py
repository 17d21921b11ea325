"""Appending DataFrames: columns, options, refusals, all rows or none."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

import goldens
import rmqstore
from connector.engine import Engine, Frame, LocalFrame
from connector.sparkreads import GoldenStore, load, read
from connector.streams import SMALL, Clock
from reading import by_queue
from rmqstore.format.schema import WRITE_TYPES
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.files.lock import StoreLock
from rmqstore.storage.log.writer_notes import read_commits
from written import files_of

# Sizes that let a small job roll over files of every kind.
SAME = (
    "topic", "queueId", "body", "properties", "flag", "bornTimestamp", "bornHost", "reconsumeTimes",
)  # fmt: skip


Change = Callable[[pa.Table], pa.Table]


def write(frame: DataFrame | Frame | LocalFrame, path: Path, **options: str) -> None:
    frame.write.format("rmqstore").mode("append").options(**options).save(str(path))


def rows(n: int) -> pa.Table:
    return pa.table(
        {
            "topic": ["Orders"] * n,
            "body": [f"body {number}" for number in range(n)],
            "keys": [f"k{number}" for number in range(n)],
        },
        pa.schema({"topic": pa.string(), "body": pa.string(), "keys": pa.string()}),
    )


def numbered(n: int, partitions: int = 2) -> LocalFrame:
    return Engine.frame(rows(n), partitions)


def with_column(
    table: pa.Table, name: str, values: Iterable[Any], kind: pa.DataType | None = None
) -> pa.Table:
    """Return a table with another column, or with other values in one that it has."""
    column = pa.array(values, kind or pa.string())
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def all_with(name: str, value: object, kind: pa.DataType | None = None) -> Change:
    return lambda table: with_column(table, name, [value] * table.num_rows, kind)


def refused(action: Callable[[], object], *texts: str) -> None:
    with pytest.raises(PySparkException) as caught:
        action()
    for text in texts:
        assert text in str(caught.value)


def data_state(root: Path) -> dict[str, bytes]:
    """What a broker would see: not the checkpoint, which only moves on, nor our own side files."""
    return files_of(root, "commitlog", "consumequeue", "index")


@pytest.mark.parametrize("name", ["basic", "live", "ipv6", "edges", "compressed"])
def test_what_was_read_is_written_as_the_same_messages(
    engine: Engine, golden_store: GoldenStore, tmp_path: Path, name: str
) -> None:
    options = {"includeSystemTopics": "true", "brokerName": "b"}
    frame = load(engine, golden_store(name), **options)
    write(
        frame, tmp_path / "copy", allowSystemTopics="true", uniqKey="keep",
        **SMALL | {"mappedFileSizeCommitLog": "131072"},
    )  # fmt: skip
    before, after = (
        by_queue({column: row[column] for column in SAME} for row in read(engine, root, **options))
        for root in (golden_store(name), tmp_path / "copy")
    )
    assert after == before


def test_rows_show_all_at_once_with_keys_ids_and_queues(engine: Engine, tmp_path: Path) -> None:
    write(numbered(900, 3), tmp_path / "s", queueNums="5", **SMALL)
    found = read(engine, tmp_path / "s", brokerName="b")
    assert {row["body"].decode() for row in found} == {f"body {number}" for number in range(900)}
    assert {row["queueId"] for row in found} == set(range(5))
    assert len({row["msgId"] for row in found}) == 900
    assert all(row["keys"] == f"k{row['body'].decode().split()[1]}" for row in found)
    assert not (tmp_path / "s" / ".rmqstore" / "staging").exists()
    assert not (tmp_path / "s" / "abort").exists()
    topics = json.loads((tmp_path / "s/config/topics.json").read_text())["topicConfigTable"]
    assert (topics["Orders"]["writeQueueNums"], topics["Orders"]["perm"]) == (5, 6)


BORN = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
# Two messages: topic, queueId, body, tags, keys, msgId, properties, flag, bornTimestamp, bornHost,
# reconsumeTimes. They are written with bornHost 10.9.8.7:6.
OF_EVERY_COLUMN = [
    ("T", 7, b"a", "tag", None, "ID1", {"TAGS": "old", "KEYS": "gone", "x": "1", "DELAY": "3"}, 9,
     BORN, "[2001:db8:0:0:0:0:0:20]:99", 2),
    ("T", None, b"", None, "k1 k2", None, None, None, None, None, None),
]  # fmt: skip


def require_what_overrides_what(rows: list[dict[str, Any]]) -> None:
    """Require that a store has the two messages as the columns say, whatever properties said."""
    first, second = sorted(rows, key=lambda row: -row["queueId"])
    assert first["properties"] == {"x": "1", "DELAY": "3", "TAGS": "tag", "UNIQ_KEY": "ID1"}
    assert (first["queueId"], first["flag"], first["reconsumeTimes"]) == (7, 9, 2)
    assert first["bornTimestamp"] == int(BORN.timestamp() * 1000)
    assert first["bornHost"] == "[2001:db8:0:0:0:0:0:20]:99"
    assert (second["keys"], second["tags"], second["body"]) == ("k1 k2", None, b"")
    assert second["bornHost"] == "10.9.8.7:6"
    assert len(second["msgId"]) == 32


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
def test_bodies_are_compressed_above_a_size(engine: Engine, tmp_path: Path, codec: str) -> None:
    table = rows(20)
    bodies = [body * 10 for body in table["body"].to_pylist()]
    frame = engine.frame(with_column(table, "body", bodies), 2)
    write(frame, tmp_path / "s", compression=codec, compressMsgBodyOverHowmuch="65", **SMALL)
    found = read(engine, tmp_path / "s", brokerName="b")
    assert {bool(row["sysFlag"] & 1) for row in found} == {True, False}
    assert all(bool(row["sysFlag"] & 1) == (len(row["body"]) >= 65) for row in found)
    assert {row["body"].decode()[:8].strip() for row in found} >= {"body 19b", "body 0bo"}


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (all_with("colour", "x"), ["IllegalMessageError", "colour"]),
        (lambda table: table.drop_columns("body"), ["IllegalMessageError", "body"]),
        (lambda table: table.drop_columns("topic"), ["IllegalMessageError", "topic"]),
        (all_with("topic", "SCHEDULE_TOPIC_XXXX"), ["MESSAGE_ILLEGAL", "allowSystemTopics"]),
        (all_with("topic", None), ["MESSAGE_ILLEGAL", "topic is null"]),
        (all_with("tags", "a\x02b"), ["MESSAGE_ILLEGAL", "0x02"]),
        (
            lambda table: with_column(
                table, "properties", [{"a": "1"}] * 199 + [{"a": ""}], WRITE_TYPES["properties"]
            ),
            ["row 100, ", "MESSAGE_ILLEGAL", "property 'a' is null or empty"],
        ),
        (all_with("bornHost", "nowhere"), ["IllegalMessageError", "nowhere"]),
        # only the last row of the last partition is too large
        (
            lambda table: with_column(table, "body", ["b"] * 199 + ["x" * 70_000]),
            ["MESSAGE_ILLEGAL", "70"],
        ),
    ],
    ids=[
        "column", "no body", "no topic", "system", "null topic", "control", "empty property",
        "host", "size",
    ],
)  # fmt: skip
def test_rows_that_rocketmq_would_refuse_leave_the_store_as_it_was(
    engine: Engine, tmp_path: Path, change: Change, texts: list[str]
) -> None:
    root = tmp_path / "s"
    write(numbered(50), root, **SMALL)
    before = data_state(root)
    refused(lambda: write(engine.frame(change(rows(200)), 2), root), *texts)
    assert data_state(root) == before
    assert not (root / ".rmqstore" / "staging").exists()
    assert len(read(engine, root, brokerName="b")) == 50


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"colour": "x"}, ["unknown option", "colour"]),
        ({"queueSelector": "first"}, ["queueSelector", "roundRobin", "hash", "random"]),
        ({"queueSelector": "machineRoom"}, ["queueSelector", "selects no queue", "queueId"]),
        ({"compression": "gzip"}, ["compression", "zstd"]),
        ({"queueNums": "0"}, ["queueNums"]),
        ({"txnAppId": "a"}, ["txnVersion"]),
        ({"txnAppId": "a", "txnVersion": "-1"}, ["txnVersion"]),
        ({"mappedFileSizeCommitLog": "many"}, ["mappedFileSizeCommitLog"]),
        ({"storeHost": "x"}, ["host", "ip:port"]),
    ],
    ids=str,
)
def test_options_are_refused_by_name(
    tmp_path: Path, options: dict[str, str], texts: list[str]
) -> None:
    refused(lambda: write(numbered(5), tmp_path / "s", **options), *texts)
    assert not (tmp_path / "s").exists() or not any((tmp_path / "s").iterdir())


def test_a_store_that_somebody_writes_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for name in ("monotonic", "sleep"):
        monkeypatch.setattr(f"pyspark_rmqstore.sink.{name}", getattr(clock, name))
    write(numbered(50), tmp_path / "s", **SMALL)
    before = data_state(tmp_path / "s")
    lock = StoreLock(tmp_path / "s" / "lock")
    try:
        refused(lambda: write(numbered(5), tmp_path / "s"), "StoreLockedError")
    finally:
        lock.release()
    assert 2 < clock.seconds < 3, "a broker that stops gets the time"
    assert data_state(tmp_path / "s") == before


def test_what_a_dead_job_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    root = tmp_path / "s"
    write(numbered(10), root, **SMALL)
    old, young = (root / ".rmqstore" / "staging" / name for name in ("old", "young"))
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "part-0-0").write_bytes(b"x")
    two_days_ago = time() - 2 * 24 * 60 * 60
    for path in (old / "part-0-0", old):
        os.utime(path, (two_days_ago, two_days_ago))
    write(numbered(10), root)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_version_of_an_application_is_written_once(engine: Engine, tmp_path: Path) -> None:
    for version, expected in (("3", 50), ("3", 50), ("2", 50), ("4", 100)):
        write(numbered(50), tmp_path / "s", txnAppId="job/1", txnVersion=version, **SMALL)
        assert len(read(engine, tmp_path / "s", brokerName="b")) == expected
    write(numbered(50), tmp_path / "s", txnAppId="job/2", txnVersion="1")
    assert len(read(engine, tmp_path / "s", brokerName="b")) == 150
    write(numbered(5), tmp_path / "s")
    history = read_commits(find_store(tmp_path / "s"))
    assert [(each.n_records, each.app_id, each.version) for each in history] == [
        (50, "job/1", 3), (50, "job/1", 4), (50, "job/2", 1), (5, None, None)
    ]  # fmt: skip


def test_an_existing_store_keeps_its_sizes(golden_store: GoldenStore, tmp_path: Path) -> None:
    root = Path(shutil.copytree(golden_store("basic"), tmp_path / "basic"))
    write(numbered(500), root)
    conf = goldens.summary("basic")["conf"]
    assert {path.stat().st_size for path in (root / "commitlog").iterdir()} == {
        int(conf["mappedFileSizeCommitLog"])
    }
    sizes = {path.stat().st_size for path in (root / "consumequeue").rglob("*") if path.is_file()}
    assert sizes == {int(conf["mappedFileSizeConsumeQueue"])}
    assert len({path.stat().st_size for path in (root / "index").iterdir()}) == 1


def test_empty_frames_write_nothing(tmp_path: Path) -> None:
    write(numbered(0), tmp_path / "s", **SMALL)
    with rmqstore.open(tmp_path / "s") as store:
        assert store.scan().read_all().num_rows == 0
