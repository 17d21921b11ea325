"""Segments that are gone, of which only what the broker wrote beside them tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kafka_logs as build
import kafkalog
from kafkalog.verify import verify

REACHED = "the log ends at {}, and {} says that it reached {}: its last segments are gone or cut"
BEGAN = "the log begins at 10, and {} says that it began at {}: its first segments are gone"


@pytest.fixture
def folder(folder: Path) -> Path:
    for base in (0, 10, 20):
        build.write_segment(folder, base, *(build.batch(base + n, [b"v"]) for n in range(10)))
    return folder


def checkpoint(name: str, offset: int) -> Callable[[Path], object]:
    return lambda folder: build.write_checkpoint(folder, name, offset)


def epochs(*starts: int) -> Callable[[Path], object]:
    lines = [f"{number} {start}" for number, start in enumerate(starts)]
    text = "\n".join(["0", str(len(lines)), *lines, ""])
    return lambda folder: (folder / "leader-epoch-checkpoint").write_text(text)


def file(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).touch()


WITNESSES = {
    "recovery point": (checkpoint("recovery-point-offset", 30), "the recovery point", 30),
    "high watermark": (checkpoint("replication-offset", 30), "the high watermark", 30),
    "start": (checkpoint("log-start-offset", 25), "the log start offset", 25),
    "epochs": (epochs(0, 26), "leader-epoch-checkpoint", 26),
    "snapshot": (lambda folder: build.write_snapshot(folder, 30, {}), f"{30:020}.snapshot", 30),
    "index": (file(f"{20:020}.index"), f"{20:020}.index", 20),
}


def findings(folder: Path) -> list[str]:
    partitions = kafkalog.open(folder.parent).partitions.values()
    return [finding.text for finding in verify(partitions)]


def remove(folder: Path, *bases: int) -> None:
    for base in bases:
        (folder / f"{base:020}.log").unlink()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("gone", ["newest", "newest two", "all", "empty"])
@pytest.mark.parametrize("witness", WITNESSES)
def test_an_end_that_is_gone_is_found_and_told(
    folder: Path, witness: str, gone: str, *, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    write, source, reached = WITNESSES[witness]
    write(folder)
    if not is_clean:
        (folder.parent / ".kafka_cleanshutdown").unlink()
    assert not any("reached" in text for text in findings(folder))
    kafkalog.open(folder.parent).scan().count()
    assert "data loss" not in caplog.text
    end = {"newest": 20, "newest two": 10, "all": 0, "empty": 20}[gone]
    if gone == "empty":
        (folder / f"{20:020}.log").write_bytes(b"")
    else:
        remove(folder, *range(end, 30, 10))
    if end == reached:  # the newest segment may have had no record
        assert not any("reached" in text for text in findings(folder))
        return
    if not end and witness == "start":  # a broker begins there, and what lay before was deleted
        return
    text = REACHED.format(end, source, reached)
    assert any(found.startswith(text) for found in findings(folder))
    assert kafkalog.open(folder.parent).scan().count() == (0 if witness == "start" else end)
    assert f"data loss: {folder} ends at {end}, and {source} says" in caplog.text


def test_a_read_that_does_not_reach_a_lost_end_says_nothing_of_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint("recovery-point-offset", 30)(folder)
    remove(folder, 20)
    assert kafkalog.open(folder.parent).partition("t", 0).scan(0, 15).count() == 15
    assert "data loss" not in caplog.text


@pytest.mark.parametrize(
    ("write", "source", "began", "n_rows"),
    [
        (checkpoint("log-start-offset", 4), "log-start-offset-checkpoint", 4, 20),
        (epochs(0, 15), "leader-epoch-checkpoint", 0, 20),
        (checkpoint("log-start-offset", 12), None, 12, 18),
        (epochs(10, 15), None, 10, 20),  # as retention leaves it
        (epochs(), None, 10, 20),
    ],
)
def test_first_segments_are_gone_unless_retention_deleted_them(
    folder: Path,
    write: Callable[[Path], object],
    source: str | None,
    began: int,
    n_rows: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(folder)
    remove(folder, 0)
    expected = [] if source is None else [BEGAN.format(source, began)]
    assert findings(folder) == expected
    assert kafkalog.open(folder.parent).scan().count() == n_rows
    assert ("data loss" in caplog.text) == (source is not None)
    (folder.parent / ".kafka_cleanshutdown").unlink()  # retention may not have told yet
    assert findings(folder) == []


def test_offsets_in_tiered_storage_are_not_gone(folder: Path) -> None:
    epochs(0)(folder)
    (folder.parent / "remote-log-index-cache").mkdir()
    remove(folder, 0)
    assert findings(folder) == []


def test_a_middle_segment_that_is_gone_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remove(folder, 10)
    logs = kafkalog.open(folder.parent)
    text = "offsets 10 to 20 are missing before it: a segment is gone"
    assert logs.scan().count() == 20
    assert f"data loss: {folder}/{20:020}.log: {text}" in caplog.text
    caplog.clear()
    assert logs.partition("t", 0).scan(20).count() == 10
    assert "data loss" not in caplog.text
    assert findings(folder) == [text]
    checkpoint("cleaner-offset", 20)(folder)
    assert kafkalog.open(folder.parent).scan().count() == 20
    assert "data loss" not in caplog.text
    assert findings(folder) == []
    (folder.parent / "cleaner-offset-checkpoint").unlink()
    build.write_segment(folder, 0, *(build.batch(n, [b"v"]) for n in (0, 3, 5)))  # as compacted
    assert findings(folder) == []


@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex"])
def test_an_index_without_its_log_file_is_found(folder: Path, kind: str) -> None:
    checkpoint("cleaner-offset", 20)(folder)
    remove(folder, 10)
    file(f"{10:020}")(folder)  # a stray file, which has no kind
    assert findings(folder) == []
    file(f"{10:020}.{kind}")(folder)
    assert findings(folder) == ["its log file is gone; a broker that starts deletes it"]
    file(f"{10:020}.log.deleted")(folder)  # which a broker renames first
    assert findings(folder) == []


def test_a_partition_that_is_gone_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("recovery-point-offset", "replication-offset"):
        text = "0\n3\nt 0 30\nt 1 9\n__consumer_offsets 0 4\n"
        (folder.parent / f"{kind}-checkpoint").write_text(text)
    logs = kafkalog.open(folder.parent)
    assert logs.scan(partitions=[0]).count() == 30
    assert "data loss" not in caplog.text
    assert logs.scan().count() == logs.scan("t").count() == 30
    told = [record.getMessage() for record in caplog.records]
    text = f"data loss: partition t-1 is gone: the checkpoints of {folder.parent} name it"
    assert told == [text, text]


def test_the_high_watermark_of_a_topic_that_was_deleted_says_nothing(folder: Path) -> None:
    """A broker that runs writes it some seconds later, and the topic was made again meanwhile."""
    checkpoint("replication-offset", 70)(folder)
    (folder.parent / f"t-0.{'0' * 32}-delete").mkdir()
    assert any("reached 70" in text for text in findings(folder))
    (folder.parent / ".kafka_cleanshutdown").unlink()
    assert findings(folder) == []
