"""Every example runs as its first lines say, on a store that a real broker wrote."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import goldens
import kafka_logs
import kafkalog
import rmqstore
from kafkalog.exchange import RECORDS, as_messages
from rmqstore.inspect.verify import verify
from written import require_valid

ROOT = Path(__file__).parents[1]
OWN = ("UNIQ_KEY", "KEYS")  # properties that a writer sets
SAME = [
    "topic", "queueId", "body", "properties", "flag", "bornTimestamp", "bornHost", "reconsumeTimes",
]  # fmt: skip


Run = Callable[..., str]


def run_program(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *map(str, arguments)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs an example in this process and returns what it prints."""

    def run_here(script: str, *arguments: object, code: int = 0) -> str:
        path = str(ROOT / "examples" / script)
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        ended: object = 0
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # as in a process of its own
            try:
                runpy.run_path(path, run_name="__main__")
            except SystemExit as err:
                ended = err.code
        printed = capsys.readouterr()
        if isinstance(ended, str):  # Python itself prints it and exits with 1
            return _with_code(printed.out + printed.err + ended, 1, code)
        return _with_code(printed.out + printed.err, ended or 0, code)

    return run_here


def _with_code(printed: str, found: object, expected: int) -> str:
    assert found == expected, printed[-4000:]
    return printed


@pytest.fixture
def run_spark(run: Run, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return the same for examples with Spark, which find a fresh session in the running JVM."""
    monkeypatch.setattr(SparkSession, "_instantiatedSession", spark.newSession())
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    return run


def read(root: Path, **options: Any) -> pa.Table:
    with rmqstore.open(root) as store:
        return store.scan(**options).read_all()


def by_queue(table: pa.Table) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        if "properties" in row:
            row["properties"] = dict(row["properties"])
        found.setdefault((row["topic"], row["queueId"]), []).append(row)
    return found


def test_example_without_spark_shows_queues_and_a_message(live: Path) -> None:
    shown = run_program("02_without_spark.py", live, "LivePlain")
    assert "LivePlain-0: 0 to 53" in shown
    assert "{'tags': 'TagA', 'queueOffset_count': 67}" in shown


@pytest.mark.spark
def test_example_migrates_a_topic_once(run_spark: Run, live: Path, tmp_path: Path) -> None:
    for _ in range(2):
        shown = run_spark("03_migrate_topic.py", live, tmp_path / "target", "LivePlain")
        assert f"210 messages of LivePlain in {tmp_path / 'target'}, 210 in" in shown


@pytest.mark.spark
@pytest.mark.parametrize(
    ("script", "words", "lines"),
    [
        (
            "01_read_topic.py", ["LivePlain"],
            ["210 messages in LivePlain", "51 messages in queue 0 from offset 2 on",
             "0 damaged records"],
        ),
        (
            "09_find_messages.py", ["key-1", "tx-3", "nowhere"],
            ["6 messages by 3 keys", " messages with id ",
             "|   LiveTx|transaction|    6|"],
        ),
        (
            "17_rocketmq_to_kafka.py", ["LivePlain"],
            ["210 messages of LivePlain", "|LivePlain|        0|"],
        ),
    ],
    ids=["read", "find", "to-kafka"],
)  # fmt: skip
def test_an_example_shows_what_it_read(
    run_spark: Run, live: Path, script: str, words: list[str], lines: list[str]
) -> None:
    shown = run_spark(script, live, *words)
    assert [line for line in lines if line not in shown] == []


@pytest.mark.spark
@pytest.mark.usefixtures("java")
def test_demo_shows_topics_messages_and_counts(live: Path) -> None:
    shown = run_program("demo.py", live)
    assert "|LivePlain      |210     |106965|" in shown
    assert "|LiveTx         |1      |3    |" in shown


@pytest.mark.spark
def test_example_archives_a_store_and_brings_it_back(
    run_spark: Run, live: Path, tmp_path: Path
) -> None:
    archive, restored = tmp_path / "archive", tmp_path / "restored"
    shown = run_spark("04_archive_to_parquet.py", live, archive, restored)
    before, after = read(live, columns=SAME), read(restored, columns=SAME)
    assert f"{len(before)} messages in {archive}" in shown
    assert by_queue(after) == by_queue(before)
    assert {path.name for path in archive.iterdir() if path.is_dir()} >= {
        "topic=LivePlain",
        "topic=LiveTx",
    }


@pytest.mark.spark
def test_example_makes_test_data(run_spark: Run, tmp_path: Path) -> None:
    shown = run_spark("05_test_data.py", tmp_path / "s", 600)
    assert "|SCHEDULE_TOPIC_XXXX|" in shown
    require_valid(tmp_path / "s")
    rows = read(tmp_path / "s", subscribe="Orders", columns="queueId,properties,keys").to_pylist()
    assert len(rows) == 594
    queues: dict[str, set[int]] = {}
    for row in rows:
        queues.setdefault(dict(row["properties"])["__SHARDINGKEY"], set()).add(row["queueId"])
    assert len(queues) == 99
    assert all(len(found) == 1 for found in queues.values())


@pytest.mark.spark
def test_example_archives_what_is_new(run_spark: Run, live: Path, tmp_path: Path) -> None:
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    n_messages = read(live, columns="topic").num_rows
    for new in (n_messages, 0):
        shown = run_spark("06_stream_to_parquet.py", live, archive, checkpoint)
        assert f"{new} new messages, {n_messages} in {archive}" in shown
    assert list(archive.glob("topic=LivePlain/day=*/*.parquet"))


@pytest.mark.spark
def test_example_replays_tags_once(run_spark: Run, live: Path, tmp_path: Path) -> None:
    tags = "TagA || TagC"
    columns = "topic,queueId,body"
    expected = read(live, subscribe="LivePlain", tags=tags, columns=columns)
    assert len(expected)
    for _ in range(2):
        run_spark(
            "07_replay_stream.py", live, tmp_path / "b", tmp_path / "checkpoint",
            "LivePlain", tags, "--once",
        )  # fmt: skip
    assert by_queue(read(tmp_path / "b", columns=columns)) == by_queue(expected)


@pytest.mark.spark
def test_example_counts_by_batch(run_spark: Run, live: Path, tmp_path: Path) -> None:
    for _ in range(2):
        shown = run_spark("08_foreach_batch.py", live, tmp_path / "table", tmp_path / "checkpoint")
    assert "|LivePlain      |210     |106965|" in shown


@pytest.mark.spark
def test_example_keeps_bodies_in_a_table_and_bad_ones_in_another(
    run_spark: Run, tmp_path: Path
) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    bodies = [json.dumps({"orderId": number, "amount": "1.50"}).encode() for number in range(30)]
    bodies[::10] = [b"no json", b"{}", b"\xff"]
    for known in (0, 30, 30):
        with rmqstore.open(root, mode="a") if known else rmqstore.create(root) as writer:
            if known < 30:
                rows = {"topic": ["Orders"] * 30, "body": bodies, "queueId": [0, 1, 2] * 10}
                types = pa.schema(
                    {"topic": pa.string(), "body": pa.binary(), "queueId": pa.int32()}
                )
                writer.append(pa.table(rows, types))
        shown = run_spark("18_bodies_to_table.py", root, "Orders", lake, "parquet")
        assert "27 orders, 3 bad bodies, 0 queues with gaps or doubles" in shown
    orders, bad = (pq.read_table(lake / name) for name in ("orders", "bad_orders"))
    assert set(orders["orderId"].to_pylist()) == {n for n in range(30) if n % 10}
    assert set(bad["body"].to_pylist()) == {b"no json", b"{}", b"\xff"}
    assert len(set(orders["day"].to_pylist())) == 1
    with rmqstore.open(root, mode="a") as writer:
        writer.append(pa.table({"topic": ["Texts"] * 4, "body": [b"no order"] * 4}))
    shown = run_spark("18_bodies_to_table.py", root, "Texts", tmp_path / "none", "parquet")
    assert "0 orders, 4 bad bodies, 0 queues with gaps or doubles" in shown


@pytest.mark.spark
def test_example_alerts_before_retention_wins(run_spark: Run, tmp_path: Path) -> None:
    root = goldens.unpack("live", tmp_path)
    arguments = ("06_stream_to_parquet.py", root, tmp_path / "archive", tmp_path / "checkpoint")
    assert "new messages" in run_spark(*arguments, 24)  # the first run has nothing to compare with
    (root / "commitlog" / f"{0:020d}").unlink()  # as retention does
    assert "ALERT LivePlain-0: the archive is 0.01 hours ahead" in run_spark(*arguments, 24, code=1)
    assert "0 new messages" in run_spark(*arguments)  # no margin is asked for


EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("[0-9]*.py"))


@pytest.mark.parametrize("script", EXAMPLES)
def test_an_example_without_arguments_says_how_to_run_it(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [script])
    with pytest.raises(SystemExit, match=f"Usage: python examples/{script} "):
        runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")


@pytest.mark.parametrize(
    ("script", "others"),
    [
        ("10_reprocess_dead_letters.py", ("again", "CG_retry")),
        ("11_lag_audit.py", ("history",)),
        ("14_replay_window.py", ("test", "LivePlain", "-1h", "now")),
    ],
)
def test_an_error_of_a_recipe_is_a_line_and_not_what_it_looks_for(
    script: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), "nowhere", *others],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere is not a RocketMQ store")
    assert "Traceback" not in done.stderr


def test_example_reprocesses_dead_letters_once(run: Run, tmp_path: Path) -> None:
    root, again = goldens.unpack("live", tmp_path), tmp_path / "again"
    script = ("10_reprocess_dead_letters.py", root, again, "CG_retry")
    shown = run(*script)
    assert "4 dead letters of CG_retry are in" in shown
    assert "LiveRetry: 4" in shown
    assert "nothing new: all 4" in run(*script)
    with rmqstore.open(root) as store:
        first = store.scan(subscribe="LiveRetry", columns="msgId,body,tags,keys").read_all()
        letter = store.scan(subscribe="%DLQ%CG_retry").read_all().slice(1, 1)
    with rmqstore.open(root, mode="a") as writer:  # one more dead letter
        writer.append(letter)
    assert "1 dead letters of CG_retry" in run(*script)
    require_valid(again)
    rows = read(again)
    assert rows["topic"].to_pylist() == ["LiveRetry"] * 5
    assert set(rows["reconsumeTimes"].to_pylist()) == {0}
    originals = {row["msgId"]: row for row in first.to_pylist()}
    for row in rows.to_pylist():
        properties = dict(row["properties"])
        assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "REAL_TOPIC", "DELAY"} & set(properties)
        assert properties["REPROCESSED_FROM"].startswith("%DLQ%CG_retry@")
        assert originals[row["msgId"]].items() <= row.items()


def test_example_audits_lag_over_days(tmp_path: Path) -> None:
    root, history = goldens.unpack("live", tmp_path), tmp_path / "history"
    offsets = root / "config" / "consumerOffset.json"

    def audit(plain: int, order: int) -> str:
        table = {"LivePlain@steady": {"0": plain}, "LiveOrder@behind": {"0": order}}
        offsets.write_text(json.dumps({"offsetTable": table}))
        offsets.with_suffix(".json.bak").unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "11_lag_audit.py"), root, history],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stderr
        assert (done.returncode == 1) == ("LiveOrder-0" in done.stdout)
        return done.stdout

    assert "no group stands or falls behind" in audit(10, 12)
    assert "no group stands or falls behind" in audit(20, 8)
    shown = audit(15, 5)
    assert "BEHIND  behind in LiveOrder-0 of broker-a: lag" in shown
    assert "steady in" not in shown  # it has a lag, but one that goes up and down
    assert len(list(history.glob("*.parquet"))) == 3
    (history / min(path.name for path in history.iterdir())).unlink()
    shown = audit(30, 8)
    assert "STANDS  behind in LiveOrder-0 of broker-a: at 8, lag" in shown


def test_example_migrates_a_cluster(run: Run, golden_store: goldens.Golden, tmp_path: Path) -> None:
    live = goldens.unpack("live", tmp_path)
    replica = shutil.copytree(live, tmp_path / "replica")
    file, target = tmp_path / "brokers.json", tmp_path / "moved"
    file.write_text(json.dumps({"a": [str(live), str(replica)], "b": str(golden_store("crash"))}))
    for _ in range(2):
        assert "the same queues and offsets" in run("12_migrate_cluster.py", file, target)
    with rmqstore.open_cluster(target / "brokers.json") as moved:
        with rmqstore.open_cluster(file) as before:
            columns = "brokerName,topic,queueId,queueOffset,body"
            assert moved.scan(columns=columns).read_all() == before.scan(columns=columns).read_all()
        assert not [finding for store in moved.stores.values() for finding in verify(store)]
    with rmqstore.open(live, mode="a") as writer:
        writer.append(pa.table({"topic": ["LivePlain"], "body": pa.array([b"late"], pa.binary())}))
    shown = run("12_migrate_cluster.py", file, target, code=1)
    assert "queues a/LivePlain/0: [0, 54] became [0, 53]" in shown


def test_example_extracts_and_removes_one_person(run: Run, live: Path, tmp_path: Path) -> None:
    extract, target = tmp_path / "p.parquet", tmp_path / "store"
    shown = run("13_one_person.py", live, extract, target, "retry-3")
    # the message, its retry in the schedule topic and in its own, and the dead letter
    assert "4 messages, with retries and dead letters" in shown
    assert "0 messages are found by the keys" in shown
    found = pq.read_table(extract)
    assert set(found["topic"].to_pylist()) == {
        "LiveRetry", "SCHEDULE_TOPIC_XXXX", "%RETRY%CG_retry", "%DLQ%CG_retry"
    }  # fmt: skip
    words = b"retry-3"
    everything = b"".join(path.read_bytes() for path in target.rglob("*") if path.is_file())
    assert words not in everything
    assert words in b"".join(path.read_bytes() for path in live.rglob("*") if path.is_file())
    key = ["topic", "queueId", "queueOffset"]
    with rmqstore.open(live) as old, rmqstore.open(target) as new:
        assert not list(verify(new))
        columns = [*key, "body", "keys", "bornTimestamp"]
        before = old.scan(columns=columns, include_system_topics=True).read_all().to_pylist()
        after = new.scan(columns=columns, include_system_topics=True).read_all().to_pylist()
        assert new.view("groups").read_all().drop_columns("brokerName") == (
            old.view("groups").read_all().drop_columns("brokerName")
        )
    gone = [row for row in before if row not in after]
    assert len(after) == len(before)
    assert {row["keys"] for row in gone} == {"retry-3"}
    assert [row for row in after if row not in before] == [
        {**row, "body": b"", "keys": None} for row in gone
    ]


def test_example_replays_a_window(run: Run, live: Path, tmp_path: Path) -> None:
    begin, end = "2026-11-21T02:17:02.400", "2026-11-21T02:17:02.600"
    arguments = (live, tmp_path / "test", "LivePlain", begin, end)
    assert "LivePlain-3: 6 messages" in run("14_replay_window.py", *arguments)
    assert "exists already" in run("14_replay_window.py", *arguments, code=1)
    times = {"starting_timestamp": begin, "ending_timestamp": end}
    expected = read(live, subscribe="LivePlain", columns=SAME, **times)
    found = read(tmp_path / "test", columns=SAME)
    require_valid(tmp_path / "test")
    assert len(found) == 25
    assert by_queue(found) == by_queue(expected)


@pytest.mark.spark
def test_example_of_a_job_that_read_kafka_counts_words(
    run_spark: Run, live: Path, tmp_path: Path
) -> None:
    shown = run_spark(
        "15_move_kafka_job.py", live, "LivePlain", tmp_path / "result",
        tmp_path / "checkpoint",
    )  # fmt: skip
    bodies = read(live, subscribe="LivePlain", columns="body")["body"].to_pylist()
    words = sum(len(re.findall("[a-zA-Z]+", body.decode(errors="replace"))) for body in bodies)
    assert "key binary, value binary, topic string, partition int, offset bigint" in shown
    assert f"{words} words in 3 rows" in shown


@pytest.mark.spark
def test_example_copies_kafka_logs_once(run_spark: Run, tmp_path: Path) -> None:
    logs, store = kafka_logs.unpack("txn", tmp_path), tmp_path / "store"
    with kafkalog.open(logs) as opened:
        topics = [topic for topic in opened.topics() if not topic.startswith("__")]
        scan = opened.scan(columns=RECORDS.names, isolation_level="read_committed")
        expected = [row for rows in scan for row in as_messages(rows).to_pylist()]
    for _ in range(2):
        run_spark("16_kafka_logs_to_rocketmq.py", logs, store, *topics)
    columns = "topic,queueId,body,keys,properties,bornTimestamp"
    require_valid(store)
    rows = read(store, columns=columns).to_pylist()
    assert len(rows) == len(expected) > 0
    for row in rows:  # a store adds its own
        row["properties"] = [pair for pair in row["properties"] if pair[0] not in OWN]
    assert by_queue(pa.Table.from_pylist(rows)) == by_queue(pa.Table.from_pylist(expected))


@pytest.mark.spark
def test_rows_for_the_kafka_sink_are_as_it_takes_them(spark: SparkSession, live: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "17_rocketmq_to_kafka.py"))
    frame = example["records_of"](spark, str(live), "LivePlain")
    assert dict(frame.dtypes) == {
        "topic": "string", "partition": "int", "key": "binary", "value": "binary",
        "headers": "array<struct<key:string,value:binary>>",
    }  # fmt: skip
    sent: dict[int, list[bytes]] = {}
    for row in frame.collect():
        sent.setdefault(row["partition"], []).append(bytes(row["value"]))
    stored: dict[int, list[bytes]] = {}
    for row in read(live, subscribe="LivePlain", columns="queueId,body").to_pylist():
        stored.setdefault(row["queueId"], []).append(row["body"])
    assert sent == stored
