"""Log directories: names of folders, checkpoints, identity, and what is not a partition."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import kafka_logs as build
import kafkalog
from kafkalog.storage.log_dirs import (
    LeaderEpoch,
    read_leader_epochs,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.storage.names import FolderName, TopicPartition, parse_folder
from rmqstore.errors import NotAStoreError, OptionError, StoreStateError
from rmqstore.storage.files.local import LOCAL

UUID = "0b953211e2df4576b22bd9075560653c"


@pytest.mark.parametrize(
    ("name", "topic", "partition", "state"),
    [
        ("a-0", "a", 0, ""), ("a-1-0", "a-1", 0, ""), ("-dash-3", "-dash", 3, ""),
        ("..dots-0", "..dots", 0, ""), ("x-delete-0", "x-delete", 0, ""),
        ("v.1-future-0", "v.1-future", 0, ""),
        ("__consumer_offsets-49", "__consumer_offsets", 49, ""),
        (f"a-0.{UUID}-delete", "a", 0, "delete"), (f"a.b-12.{UUID}-future", "a.b", 12, "future"),
        (f"a-1-0.{UUID}-stray", "a-1", 0, "stray"),
    ],
)  # fmt: skip
def test_names_of_partition_folders(name: str, topic: str, partition: int, state: str) -> None:
    assert parse_folder(name) == FolderName(TopicPartition(topic, partition), state)


@pytest.mark.parametrize(
    "name",
    ["", "a", "a-", "-0", "a-x", "a--", "a-0x", ".-0", "..-0", "a b-0", "ä-0", "a-delete",
     "a-99999999999", "a-2147483648", f"{'t' * 250}-0", "remote-log-index-cache", "a/b-0"],
)  # fmt: skip
def test_names_of_other_folders(name: str) -> None:
    assert parse_folder(name) is None


def write(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def test_a_checkpoint_and_files_that_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "c", "0\n2\na.b 0 12\n-c 3 9223372036854775807\n")
    assert read_offset_checkpoint(LOCAL, path) == {("a.b", 0): 12, ("-c", 3): (1 << 63) - 1}
    missing = str(tmp_path / "missing")
    assert read_offset_checkpoint(LOCAL, missing) == {}
    assert read_leader_epochs(LOCAL, missing) == []
    for path in (missing, str(tmp_path)):  # a folder
        assert read_topic_id(LOCAL, path) is None


NO_NUMBERS = ("9" * 23, "9223372036854775808", "1_0", "\u0661", "-", "0x1")  # to Java


@pytest.mark.parametrize(
    "text",
    ["", "1\n1\na 0 1\n", "0\n2\na 0 1\n", "0\n0\na 0 1\n", "0\nx\n", "0", "0\n1\na 0\n",
     "0\n1\na 0 x\n", "\0\0\0\0", "0\n1\na 0 1 2\n", "0\n-1\n",
     *(f"0\n1\na 0 {number}\n" for number in NO_NUMBERS),
     *(f"0\n1\na {number} 3\n" for number in NO_NUMBERS),
     *(f"0\n{number}\na 0 3\n" for number in NO_NUMBERS)],
)  # fmt: skip
def test_an_invalid_checkpoint_is_empty(tmp_path: Path, text: str) -> None:
    assert read_offset_checkpoint(LOCAL, write(tmp_path / "c", text)) == {}
    assert read_leader_epochs(LOCAL, write(tmp_path / "c", text)) == []


def test_leader_epochs_and_topic_id(tmp_path: Path, folder: Path) -> None:
    build.write_segment(folder, 0, build.batch(0, [b"a"]))
    write(folder / "leader-epoch-checkpoint", "0\n2\n0 0\n4 7\n")
    write(folder / "partition.metadata", "version: 0\ntopic_id: R0x8G1UrQsuQ0oL5ADQVOg")
    partition = kafkalog.open(tmp_path / "logs").partition("t", 0)
    assert partition.leader_epochs == [LeaderEpoch(0, 0), LeaderEpoch(4, 7)]
    assert partition.topic_id == "R0x8G1UrQsuQ0oL5ADQVOg"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a log directory with partitions, and folders that are none."""
    folder = build.make_log_dir(tmp_path / "logs")
    for number in range(2):
        build.write_segment(folder / f"t-{number}", 0, build.batch(0, [b"a", b"b"]))
    build.write_segment(folder / "u-0", 0)
    build.write_segment(folder / f"gone-0.{UUID}-delete", 0, build.batch(0, [b"x"]))
    build.write_segment(folder / f"t-0.{UUID}-future", 0, build.batch(0, [b"x"]))
    build.write_segment(folder / "__cluster_metadata-0", 0, build.batch(0, [b"x"]))
    (folder / "lost+found").mkdir()
    (folder / "file-0").touch()
    return folder


def test_a_log_directory(logs: Path) -> None:
    with kafkalog.open(logs) as opened:
        assert opened.topics() == ["t", "u"]
        assert list(opened.partitions) == [("t", 0), ("t", 1), ("u", 0)]
        (log_dir,) = opened.log_dirs
    assert log_dir.is_clean
    assert log_dir.node_id == 7
    assert log_dir.properties["cluster.id"] == "c"
    assert sorted(log_dir.others) == [f"gone-0.{UUID}-delete", f"t-0.{UUID}-future"]
    assert repr(opened) == f"<LogDirs {logs}: 2 topics, 3 partitions>"


@pytest.mark.parametrize(("topic", "at"), [("u", 0), ("v", 12)])
def test_a_partition_without_a_record_or_without_a_segment(logs: Path, topic: str, at: int) -> None:
    (logs / "v-0").mkdir()
    write(logs / "log-start-offset-checkpoint", "0\n1\nv 0 12\n")
    partition = kafkalog.open(logs).partition(topic, 0)
    assert (partition.start_offset, partition.end_offset, partition.last_stable_offset) == (at,) * 3
    assert partition.scan(isolation_level="read_committed").count() == 0
    assert partition.offset_for_time(0) is None


def test_a_partition_folder_alone(
    logs: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(logs / "log-start-offset-checkpoint", "0\n1\nt 1 1\n")
    with caplog.at_level(logging.INFO):
        opened = kafkalog.open(logs / "t-1")
    assert "is a partition folder, which is read alone" in caplog.text
    assert list(opened.partitions) == [("t", 1)]
    partition = opened.partition("t", 1)
    assert partition.is_clean
    assert partition.start_offset == 1
    monkeypatch.chdir(logs / "t-1")
    assert kafkalog.open(".").partition("t", 1).start_offset == 1


def test_a_copied_partition_folder_is_recovered(logs: Path, tmp_path: Path) -> None:
    folder = (logs / "t-0").rename(tmp_path / "t-0")
    build.write_segment(folder, 2, build.batch(2, [b"c"]), b"torn")
    partition = kafkalog.open(folder).partition("t", 0)
    assert not partition.is_clean
    assert partition.end_offset == 3
    assert partition.recovery is not None


@pytest.mark.parametrize("have_numbers", [False, True])
def test_two_brokers_are_refused_and_at_once_if_they_have_numbers_of_their_own(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, have_numbers: bool
) -> None:
    other = build.make_log_dir(tmp_path / "other")
    if have_numbers:
        monkeypatch.setattr("kafkalog.storage.log_dirs.sleep", lambda _: pytest.fail("it waits"))
        write(other / "meta.properties", "node.id=8\n")
    build.write_segment(other / "t-0", 0)
    with pytest.raises(StoreStateError, match="open each broker by itself"):
        kafkalog.open(logs, other)


@pytest.fixture
def moved(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[float]]:
    """Return another directory to which t-0 is moved, which ends while a listing pauses."""
    other = build.make_log_dir(tmp_path / "other")
    pauses: list[float] = []

    def finish(seconds: float) -> None:
        pauses.append(seconds)
        if (logs / "t-0").exists():
            (logs / "t-0").rename(logs / f"t-0.{UUID}-delete")
        if (other / f"t-0.{UUID}-future").exists():
            (other / f"t-0.{UUID}-future").rename(other / "t-0")

    monkeypatch.setattr("kafkalog.storage.log_dirs.sleep", finish)
    return other, pauses


def test_a_partition_that_is_being_moved_is_seen_twice_for_a_moment(
    logs: Path, moved: tuple[Path, list[float]]
) -> None:
    other, pauses = moved
    build.write_segment(other / "t-0", 0, build.batch(0, [b"a", b"b"]))
    opened = kafkalog.open(logs, other)
    assert opened.partition("t", 0).path == str(other / "t-0")
    assert len(pauses) == 1


def test_a_partition_that_is_being_moved_is_not_missed(
    logs: Path, moved: tuple[Path, list[float]]
) -> None:
    """The other directory is listed before both renames, and this one after them."""
    other, pauses = moved
    build.write_segment(other / f"t-0.{UUID}-future", 0, build.batch(0, [b"a", b"b"]))
    (logs / "t-0").rename(logs / f"t-0.{UUID}-delete")
    assert kafkalog.open(other, logs).partition("t", 0).path == str(other / "t-0")
    assert pauses == [0]


def test_what_is_left_of_a_deleted_partition_is_not_waited_for(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("kafkalog.storage.log_dirs.sleep", pauses.append)
    other = build.make_log_dir(tmp_path / "other")
    (other / f"gone-0.{UUID}-future").mkdir()
    opened = kafkalog.open(logs, other)
    opened.refresh()
    assert opened.topics() == ["t", "u"]
    assert pauses == [0, 0]  # once for each listing


def test_what_is_not_a_log_directory(logs: Path) -> None:
    for path in (logs / "missing", logs / "meta.properties"):
        with pytest.raises(NotAStoreError, match="not a folder"):
            kafkalog.open(path)
    with pytest.raises(NotAStoreError, match=r"log directories are in it: logs$"):
        kafkalog.open(logs.parent)
    with pytest.raises(OptionError):
        kafkalog.open()
    assert kafkalog.open(build.make_log_dir(logs.parent / "empty")).topics() == []


def test_what_files_of_the_broker_say_is_seen_after_a_refresh(logs: Path) -> None:
    opened = kafkalog.open(logs)
    (logs / ".kafka_cleanshutdown").unlink()
    write(logs / "replication-offset-checkpoint", "0\n1\nt 0 1\n")
    for is_clean, high_watermark in ((True, None), (False, 1)):
        partition = opened.partition("t", 0)
        assert (partition.is_clean, partition.high_watermark) == (is_clean, high_watermark)
        opened.refresh()
    assert opened.partition("t", 1).high_watermark is None
