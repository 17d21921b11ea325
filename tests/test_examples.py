"""Every example runs as its first lines say, on a store that a real broker wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.inspect.verify import verify

ROOT = Path(__file__).parents[1]
SAME = [
    "topic",
    "queueId",
    "body",
    "properties",
    "flag",
    "bornTimestamp",
    "bornHost",
    "reconsumeTimes",
]


def run(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_example_without_spark_shows_queues_and_a_message(
    golden_store: Callable[[str], Path],
) -> None:
    shown = run("02_without_spark.py", golden_store("live"), "LivePlain")
    assert "LivePlain-0: 0 to 53" in shown
    assert "{'tags': 'TagA', 'queueOffset_count': 67}" in shown


@pytest.mark.spark
def test_example_migrates_a_topic_once(golden_store: Callable[[str], Path], tmp_path: Path) -> None:
    for _ in range(2):
        shown = run("03_migrate_topic.py", golden_store("live"), tmp_path / "target", "LivePlain")
        assert f"210 messages of LivePlain in {tmp_path / 'target'}, 210 in" in shown


@pytest.mark.spark
def test_example_reads_a_topic(golden_store: Callable[[str], Path]) -> None:
    shown = run("01_read_topic.py", golden_store("live"), "LivePlain")
    assert "210 messages in LivePlain" in shown
    assert "51 messages in queue 0 from offset 2 on" in shown
    assert "0 damaged records" in shown


@pytest.mark.spark
def test_example_finds_messages(golden_store: Callable[[str], Path]) -> None:
    shown = run("09_find_messages.py", golden_store("live"), "key-1", "tx-3", "nowhere")
    assert "6 messages by 3 keys" in shown
    assert "PushedFilters: [IsNotNull(topic), IsNotNull(msgId)," in shown
    assert "|   LiveTx|transaction|    6|" in shown


@pytest.mark.spark
def test_demo_shows_topics_messages_and_counts(golden_store: Callable[[str], Path]) -> None:
    shown = run("demo.py", golden_store("live"))
    assert "|LivePlain      |210     |106965|" in shown
    assert "|LiveTx         |1      |3    |" in shown


@pytest.mark.spark
def test_example_archives_a_store_and_brings_it_back(
    golden_store: Callable[[str], Path], tmp_path: Path
) -> None:
    archive, restored = tmp_path / "archive", tmp_path / "restored"
    shown = run("04_archive_to_parquet.py", golden_store("live"), archive, restored)
    with rmqstore.open(golden_store("live")) as store:
        before = store.scan(columns=SAME).read_all()
    with rmqstore.open(restored) as store:
        after = store.scan(columns=SAME).read_all()
    assert f"{len(before)} messages in {archive}" in shown
    assert by_queue(after) == by_queue(before)
    assert {path.name for path in archive.iterdir() if path.is_dir()} >= {
        "topic=LivePlain",
        "topic=LiveTx",
    }


def by_queue(table: pa.Table) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        row["properties"] = dict(row["properties"])
        found.setdefault((row["topic"], row["queueId"]), []).append(row)
    return found


@pytest.mark.spark
def test_example_makes_test_data(tmp_path: Path) -> None:
    shown = run("05_test_data.py", tmp_path / "s", 600)
    assert "|SCHEDULE_TOPIC_XXXX|" in shown
    with rmqstore.open(tmp_path / "s") as store:
        rows = (
            store.scan(subscribe="Orders", columns="queueId,properties,keys").read_all().to_pylist()
        )
        assert len(rows) == 594
        assert not list(verify(store))
    queues: dict[str, set[int]] = {}
    for row in rows:
        queues.setdefault(dict(row["properties"])["__SHARDINGKEY"], set()).add(row["queueId"])
    assert len(queues) == 99
    assert all(len(found) == 1 for found in queues.values())


@pytest.mark.spark
def test_example_archives_what_is_new(golden_store: Callable[[str], Path], tmp_path: Path) -> None:
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    with rmqstore.open(golden_store("live")) as store:
        n_messages = store.scan(columns="topic").read_all().num_rows
    for new in (n_messages, 0):
        shown = run("06_stream_to_parquet.py", golden_store("live"), archive, checkpoint)
        assert f"{new} new messages, {n_messages} in {archive}" in shown
    assert list(archive.glob("topic=LivePlain/day=*/*.parquet"))


@pytest.mark.spark
def test_example_replays_tags_once(golden_store: Callable[[str], Path], tmp_path: Path) -> None:
    tags = "TagA || TagC"
    with rmqstore.open(golden_store("live")) as store:
        expected = (
            store.scan(subscribe="LivePlain", tags=tags, columns="queueId,body")
            .read_all()
            .to_pylist()
        )
    assert expected
    for _ in range(2):
        run(
            "07_replay_stream.py",
            golden_store("live"),
            tmp_path / "b",
            tmp_path / "checkpoint",
            "LivePlain",
            tags,
            "--once",
        )
    with rmqstore.open(tmp_path / "b") as store:
        found = store.scan(columns="queueId,body").read_all().to_pylist()

    def by_queue(rows: list[dict[str, Any]]) -> dict[int, list[bytes]]:
        return {
            queue_id: [row["body"] for row in rows if row["queueId"] == queue_id]
            for queue_id in {row["queueId"] for row in rows}
        }

    assert by_queue(found) == by_queue(expected)


@pytest.mark.spark
def test_example_counts_by_batch(golden_store: Callable[[str], Path], tmp_path: Path) -> None:
    for _ in range(2):
        shown = run(
            "08_foreach_batch.py", golden_store("live"), tmp_path / "table", tmp_path / "checkpoint"
        )
    assert "|LivePlain      |210     |106965|" in shown
