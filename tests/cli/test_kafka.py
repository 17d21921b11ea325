"""The verbs about log directories of Kafka."""

from __future__ import annotations

import json
import shlex
import shutil
from functools import partial
from pathlib import Path

import click
import pyarrow.parquet as pq
import pytest

import command_line
import kafka_logs
import kafkalog
from rmqstore.cli.kafka import kafka
from s3_server import S3Server

assert isinstance(kafka, click.Group)
VERBS = sorted(kafka.commands)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kafka_logs.unpack("groups", tmp_path_factory.mktemp("kafka"))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kafka_logs.unpack("damaged", tmp_path_factory.mktemp("kafka"))


run = partial(command_line.run, "kafka")
success = partial(command_line.success, "kafka")
refusal = partial(command_line.refusal, "kafka")
rows = partial(command_line.rows, "kafka")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_two_examples_that_run(
    verb: str, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = command_line.examples_of(kafka.commands[verb])
    assert len(examples) == 2
    monkeypatch.setenv("COLUMNS", "120")
    text = run(verb, "--help").stdout
    for example in examples:
        assert f"  {example}" in text
        name, group, *words = shlex.split(example.replace("/data/kafka/logs", str(logs)))
        assert (name, group, words[0]) == ("rmqstore", "kafka", verb)
        assert run(*words).exit_code == 0, example


def test_stat(logs: Path) -> None:
    assert [(row["topic"], row["partition"], row["end_offset"]) for row in rows("stat", logs)] == [
        ("G", 0, 120), ("G", 1, 120), ("G", 2, 120), ("H", 0, 60),
    ]  # fmt: skip
    assert {row["topic"] for row in rows("stat", logs, "--all")} > {"__consumer_offsets"}
    assert len(rows("stat", logs, "-t", "G", "-p", "1", "-p", "2")) == 2
    assert [row["topic"] for row in rows("stat", logs / "G-1")] == ["G"]


def test_folders_of_kafka_and_of_rocketmq_are_told_apart(logs: Path, live: Path) -> None:
    for folder in (live, live / "commitlog"):
        assert "it is a store of RocketMQ, which the package rmqstore" in refusal("stat", folder)
    for folder in (logs, logs / "G-1"):
        assert "it is a folder of Kafka, which" in command_line.refusal("stat", folder)


def test_dump(logs: Path, tmp_path: Path) -> None:
    expected = kafka_logs.expected("groups", ("G", 1))
    got = rows("dump", logs, "-t", "G", "-p", 1, "--columns", "offset,headers")
    assert [row["offset"] for row in got] == [row["offset"] for row in expected]
    names = [[header["key"] for header in row["headers"]] for row in got]
    assert names == [[name for name, _ in row["headers"]] for row in expected]
    got = rows("dump", logs, "--start-offset", 5, "--end-offset", 7, "--columns", "offset")
    assert [row["offset"] for row in got] == [5, 6] * 4
    time = expected[60]["timestamp"]
    (got_first, *_) = rows("dump", logs, "-t", "G", "-p", 1, "-b", time)
    assert got_first["offset"] == [row["timestamp"] >= time for row in expected].index(True)
    late = run("dump", logs, "-b", "2100-01-01", "--fail-if-empty")
    assert (late.exit_code, late.stdout) == (3, "")
    assert run("dump", logs, "-e", "2100-01-01", "--columns", "offset").stdout.count("\n") == 420
    target = tmp_path / "g.parquet"
    success("dump", logs, "-t", "G", "--output", target)
    assert pq.read_table(target).num_rows == 360  # type: ignore[no-untyped-call]
    got = rows("dump", logs, "-t", "G", "-p", 0, "--batches", "--start-offset", 3, "-n", 2)
    assert (got[0]["base_offset"], got[0]["is_valid"]) == (3, True)


def test_get(logs: Path) -> None:
    (row,) = rows("get", logs, "G-0", 17)
    assert (row["topic"], row["partition"], row["offset"]) == ("G", 0, 17)
    for name in ("G", "G-7", "X-0"):
        refusal("get", logs, name, 17)


def test_dump_of_records_as_they_are_stored(logs: Path) -> None:
    deep = rows("dump", logs, "-t", "G", "-p", 1, "--deep", "--start-offset", 5, "--end-offset", 7)
    keys = ("offset", "key_size", "value_size", "sequence", "is_valid", "marker", "reason")
    expected = {row["offset"]: row for row in kafka_logs.expected("groups", ("G", 1))}
    assert [row["offset"] for row in deep] == [5, 6]
    for row in deep:
        names = [name for name, _ in expected[row["offset"]]["headers"]]
        assert (row["header_keys"], row["is_valid"], set(keys) <= set(row)) == (names, True, True)
    decoded = rows("dump", logs, "--offsets-decoder")
    assert {row["topic"] for row in decoded} == {"__consumer_offsets"}
    kinds = {json.loads(row["decoded_key"])["type"] for row in decoded if row["decoded_key"]}
    assert {"1", "2", "5"} <= kinds
    assert any(row["marker"] == "COMMIT" for row in decoded)
    (first, *_) = rows("dump", logs, "--transaction-log-decoder")
    assert first["decoded_key"] == '{"type":"0","data":{"transactionalId":"g-t2"}}'


def test_dump_of_single_files(logs: Path) -> None:
    segment = logs / "G-0" / f"{0:020}"
    batches = rows("dump", f"{segment}.log")
    assert batches == rows("dump", logs, "-t", "G", "-p", 0, "--batches")[: len(batches)]
    assert batches[0]["crc"] == 1590030813
    records = rows("dump", f"{segment}.log", "--deep")
    assert [row["key_size"] for row in records[:3]] == [None, None, 8]
    assert rows("dump", f"{segment}.index")[0] == {
        "offset": 34, "position": 3917, "path": f"{segment}.index",
    }  # fmt: skip
    assert len(rows("dump", f"{segment}.timeindex")) == 8
    folder = logs / "__consumer_offsets-0"
    (aborted,) = rows("dump", folder / f"{22:020}.txnindex")
    assert (aborted["first_offset"], aborted["last_offset"]) == (53, 54)
    (producer,) = rows("dump", folder / f"{55:020}.snapshot")
    assert (producer["producer_epoch"], producer["transaction_start"]) == (2, None)


def test_files_of_the_clusters_metadata(logs: Path) -> None:
    log, checkpoint = logs / "__cluster_metadata-0" / f"{0:020}.log", logs / "bootstrap.checkpoint"
    for file, first in ((log, "LEADER_CHANGE"), (checkpoint, "SNAPSHOT_HEADER")):
        assert rows("dump", file)[0]["marker"] == first
        done = run("dump", file, "--deep", "--json")
        records = [json.loads(line) for line in done.stdout.splitlines()]
        assert records[0]["marker"] == first
        assert {row["topic"] for row in records} == {"__cluster_metadata"}
        assert "shown as bytes; what they say shows kafka-dump-log.sh" in done.stderr
        success("verify", file)
    assert records[-1]["marker"] == "SNAPSHOT_FOOTER"
    assert "shown as bytes" not in run("dump", logs / "G-0" / f"{0:020}.log", "--deep").stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("{log}", "{index}"), "files of one kind at a time, and no folders; got index, log"),
        (("{log}", "{logs}"), "got folder, log"),
        (("{log}", "-t", "G"), "topics: files are shown as a whole"),
        (("{log}", "--start-offset", "5"), "start-offset: files are shown as a whole"),
        (("{logs}", "--batches", "--deep"), "one of them"),
        (("{logs}", "--deep", "--columns", "offset"), "--deep gives all columns"),
        (("{logs}", "--batches", "--columns", "size"), "--batches gives all columns"),
        (("{gone}",), "was deleted"),
    ],
)
def test_what_a_dump_of_files_refuses(logs: Path, words: tuple[str, ...], reason: str) -> None:
    stem = logs / "G-0" / f"{0:020}"
    names = {"log": f"{stem}.log", "index": f"{stem}.index", "logs": logs}
    names["gone"] = logs / "G-0" / f"{7:020}.log"
    done = run("dump", *(word.format(**names) for word in words))
    assert done.exit_code != 0
    assert reason in " ".join(done.output.split())


def test_groups_of_a_damaged_log(tmp_path: Path) -> None:
    folder = kafka_logs.make_log_dir(tmp_path) / "__consumer_offsets-0"
    path = kafka_logs.write_segment(folder, 0, kafka_logs.changed(kafka_logs.batch(0, [b"v"])))
    failed = run("groups", tmp_path)
    assert (failed.exit_code, "the CRC is wrong" in failed.stderr) == (1, True)
    assert rows("groups", tmp_path, "--mode", "DROPMALFORMED") == []
    (row,) = rows("groups", tmp_path, "--mode", "PERMISSIVE")
    assert row["_corrupt_record"] == f"{path}, 0: the CRC is wrong"


def test_groups(logs: Path) -> None:
    known = kafka_logs.summary("groups")["groups"]
    assert len(rows("groups", logs)) == sum(len(group["offsets"]) for group in known)


def test_damage(damaged: Path) -> None:
    found = run("verify", damaged)
    assert found.exit_code == 1
    assert len(found.stdout.splitlines()) == 5
    success("verify", damaged, "-t", "CrPre")
    failed = run("dump", damaged, "-t", "Cr", "-p", 0)
    assert failed.exit_code == 1
    assert "position 1437: the CRC is wrong" in failed.stderr
    kept = rows("dump", damaged, "-t", "Cr", "-p", 0, "--mode", "PERMISSIVE")
    assert sum(row["_corrupt_record"] is not None for row in kept) == 1
    assert len(rows("dump", damaged, "-t", "Cr", "-p", 0, "--mode", "DROPMALFORMED")) == 115


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a log directory with valid T-0, and damage in two of Kafka's own topics."""
    root = kafka_logs.make_log_dir(tmp_path / "logs")
    valid = kafka_logs.batch(0, [b"value"])
    kafka_logs.write_segment(root / "T-0", 0, valid)
    for name in ("__consumer_offsets-0", "__cluster_metadata-0"):
        kafka_logs.write_segment(root / name, 0, valid[:-1] + b"\xff")
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (root / name).write_text("0\n2\nT 0 1\n__consumer_offsets 0 1\n")
    return root


def test_verify_says_what_it_left_out(own: Path) -> None:
    done = success("verify", own)
    left_out, valid = done.stderr.splitlines()
    assert left_out == (
        f"{own}: not checked: __consumer_offsets (--all checks Kafka's own topics);"
        " __cluster_metadata, which is not read as a partition: name its files"
    )
    assert valid == f"{own}: 1 partitions are valid"
    done = run("verify", own, "--all")
    assert done.exit_code == 1
    assert "__consumer_offsets-0/00000000000000000000.log, 0: the CRC is wrong" in done.stdout
    assert "not checked" not in run("verify", own, "-t", "T").stderr


def test_a_partition_folder_that_is_named_is_read_whatever_its_topic_is(own: Path) -> None:
    folder = own / "__consumer_offsets-0"
    assert run("verify", folder).exit_code == 1
    assert [row["topic"] for row in rows("stat", folder)] == ["__consumer_offsets"]
    done = run("dump", folder, "--mode", "PERMISSIVE")
    assert json.loads(done.stdout)["_corrupt_record"] is not None
    for verb in ("verify", "dump", "stat"):
        said = refusal(verb, own / "__cluster_metadata-0")
        assert "is the log of the cluster's metadata, which is not read as" in said


def test_verify_of_single_files(own: Path) -> None:
    valid, damaged = (own / folder / f"{0:020}.log" for folder in ("T-0", "__cluster_metadata-0"))
    done = run("verify", valid)
    assert (done.exit_code, done.stderr) == (0, f"{valid}: 1 files are valid\n")
    done = run("verify", valid, damaged)
    assert (done.exit_code, done.stdout) == (1, f"log {damaged}, 0: the CRC is wrong\n")
    assert run("verify", valid.with_name(f"{9:020}.log")).exit_code != 0
    said = refusal("verify", valid.with_suffix(".index"))
    assert "compared with the log of their partition folder" in said
    assert "topics: files are shown as a whole" in refusal("verify", valid, "-t", "T")


def test_a_partition_folder_that_is_named_brings_no_other_of_its_topic(own: Path) -> None:
    folder = own / "__consumer_offsets-0"
    other = kafka_logs.make_log_dir(own.parent / "other")
    valid = kafka_logs.batch(0, [b"of another"])
    kafka_logs.write_segment(other / "__consumer_offsets-1", 0, valid)
    with kafkalog.open(folder, other) as logs:
        assert [*logs.default_partitions] == [("__consumer_offsets", 0)]
        rows = logs.scan(mode="DROPMALFORMED").to_arrow()
        assert len(rows) == 0


def test_verify_finds_partitions_that_are_gone(own: Path) -> None:
    shutil.rmtree(own / "T-0")
    done = run("verify", own)
    gone = f"log {own}: partition T-0 is gone: the checkpoints of the directory name it\n"
    assert (done.exit_code, done.stdout) == (1, gone)
    assert run("verify", own, "-p", "7").exit_code == 2
    for path in own.glob("*-checkpoint"):
        path.unlink()
    assert "nothing was checked; left out: __consumer_offsets (--all" in refusal("verify", own)
    shutil.rmtree(own / "__consumer_offsets-0")
    shutil.rmtree(own / "__cluster_metadata-0")
    (own / f"T-0.{'0' * 32}-delete").mkdir()
    assert "nothing was checked; there is no partition" in refusal("verify", own)


def test_verify_names_folders_that_are_not_read(own: Path) -> None:
    names = {state: f"T-1.{'0' * 32}-{state}" for state in ("delete", "future", "stray")}
    for state in ("delete", "future"):
        (own / names[state]).mkdir()
    done = success("verify", own)
    assert [line.split(": not checked: ")[1] for line in done.stderr.splitlines()[:2]] == [
        "is of a partition that was deleted or moved; a broker removes it",
        "is a copy for another log directory that a broker has not finished yet",
    ]
    (own / names["stray"]).mkdir()
    done = run("verify", own)
    assert done.exit_code == 1
    assert done.stdout.startswith(f"folder {own}/{names['stray']}: was put aside by a broker")
    assert "T-1" not in run("verify", own, "-p", "0").output


def test_a_partition_in_another_directory_is_not_gone(own: Path, tmp_path: Path) -> None:
    other = kafka_logs.make_log_dir(tmp_path / "other")
    (own / "T-0").rename(other / "T-0")
    assert run("verify", own).exit_code == 1
    success("verify", own, other)


def test_errors(logs: Path) -> None:
    for words, text in (
        (("stat", logs / "missing"), "is not a folder"),
        (("stat", logs, "-t", "X"), "there is no topic X"),
        (("dump", logs, "--columns", "x"), "there are topic, partition, key"),
        (("dump", logs, "-p", 99), "-p/--partition: no topic that is read has a partition 99"),
        (("verify", logs, "-t", "G", "-p", 0, "-p", 77), "has a partition 77"),
        (("get", logs, "G-0", 5000), "it has those from 0 up to, but not including, 120"),
        (("dump", logs, "-b", "soon"), "-b/--begin 'soon'"),
    ):
        assert text in refusal(*words)


def test_log_directories_in_object_storage(s3: S3Server, logs: Path) -> None:
    uri = s3.upload(logs, "kafka-cli")
    storage_options = [
        word for key, value in s3.options.items() for word in ("--storage-option", f"{key}={value}")
    ]
    for verb, *others in (("stat", "-p", 0), ("dump", "-t", "G", "-n", 3), ("groups",)):
        there, here = rows(verb, uri, *others, *storage_options), rows(verb, logs, *others)
        assert [row | {"path": ""} for row in there] == [row | {"path": ""} for row in here]
    assert rows("get", uri, "G-0", 17, *storage_options) == rows("get", logs, "G-0", 17)
    success("verify", uri, *storage_options)
    assert "hidden" not in run("stat", uri, "--storage-option", "secret_key=hidden").output


@pytest.mark.parametrize("words", [("dump",), ("dump", "--batches"), ("get", "t-0", 0)])
@pytest.mark.parametrize("form", ["jsonl", "csv", "table", "json", "pretty", "parquet"])
def test_times_that_microseconds_cannot_count(
    tmp_path: Path, words: tuple[object, ...], form: str
) -> None:
    root = kafka_logs.make_log_dir(tmp_path / "logs")
    time = 9_223_372_036_854_776
    kafka_logs.write_segment(root / "t-0", 0, kafka_logs.batch(0, [b"v"], time=time))
    target = tmp_path / "rows"
    success(words[0], root, *words[1:], "--format", form, "--output", target)
    assert form == "parquet" or "294247-01-10T04:00:54.776" in target.read_text()
