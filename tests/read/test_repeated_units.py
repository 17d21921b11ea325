"""Units that for the record of another unit are read as a broker serves them, and said."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import rmqstore
import store_builder as build
from rmqstore.inspect.verify import verify

A_FILE, N = 25, 50  # messages of each queue
WARNING = "T-0: 25 units, the first at queue offset 0, for the record of another unit: "


def made(*, with_lmq: bool = False) -> build.Store:
    """Return two queues of two files each, and an LMQ where asked."""
    store = build.Store(1 << 15, A_FILE)
    for number in range(N):
        for queue_id in (0, 1):
            store.append(build.Record(queue_id=queue_id, body=b"%d-%d" % (queue_id, number)))
    if with_lmq:
        pairs = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0"}
        record = build.Record(topic="U", body=b"lmq", properties=build.properties(pairs))
        placed = store.append(record)
        store.queues["%LMQ%a", 0] = [(placed.physical_offset, placed.size, 0)]
    return store


def copy_file(root: Path, source: tuple[int, int], target: tuple[int, int]) -> None:
    """Copy a file of a queue of T over another one, by queue id and number of the file."""
    paths = [
        root / "consumequeue/T" / str(queue_id) / f"{file * A_FILE * 20:020d}"
        for queue_id, file in (source, target)
    ]
    shutil.copy(*paths)


def bodies(root: Path, queue_id: int = 0, **choice: object) -> list[bytes]:
    with rmqstore.open(root) as opened:
        rows = opened.scan(
            columns=["queueOffset", "queueId", "topic", "body"],
            **choice,  # type: ignore[arg-type]
        ).read_all()
    found = [row for row in rows.to_pylist() if (row["topic"], row["queueId"]) == ("T", queue_id)]
    return [row["body"] for row in sorted(found, key=lambda row: row["queueOffset"])]


def queue_findings(root: Path) -> list[str]:
    with rmqstore.open(root) as opened:
        return [f"{one.place}: {one.text}" for one in verify(opened) if one.part == "queue"]


@pytest.mark.parametrize("with_lmq", [False, True])
def test_a_copied_file_is_read_as_it_is_served_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_lmq: bool
) -> None:
    root = made(with_lmq=with_lmq).write(tmp_path / "s")
    copy_file(root, (0, 1), (0, 0))
    served = [b"0-%d" % number for number in range(A_FILE, N)]
    caplog.set_level(logging.WARNING)
    assert bodies(root) == served * 2
    assert [text for text in caplog.messages if text.startswith(WARNING)] != []
    assert bodies(root, queue_id=1) == [b"1-%d" % number for number in range(N)]
    assert not any("T-1" in text for text in caplog.messages)
    caplog.clear()
    choice = {"assign": {"T": [0]}, "ending_offsets": {"T": {"0": A_FILE}}}
    assert bodies(root, **choice) == served
    assert [text for text in caplog.messages if text.startswith(WARNING)] != []
    copy_file(root, (0, 0), (0, 1))
    assert bodies(root) == served * 2


def test_verify_says_what_the_units_lead_to(tmp_path: Path) -> None:
    root = made().write(tmp_path / "file")
    copy_file(root, (0, 1), (0, 0))
    copied = root / "consumequeue/T/0" / f"{A_FILE * 20:020d}"
    (found,) = queue_findings(root)
    assert found == (
        "T-0: 25 units, the first at queue offset 0, for messages of another file of the "
        f"queue, {copied}, as where that file was copied or restored to another name: a "
        "broker serves these messages twice, and not those that belong here"
    )
    root = made().write(tmp_path / "queue")
    copy_file(root, (1, 1), (0, 1))
    (found,) = queue_findings(root)
    assert found == (
        "T-0: 25 units, the first at queue offset 25, for messages of T-1, as where a file of "
        "that queue was copied or restored to this one: a broker serves them here, and not "
        "the messages of this queue"
    )
    crashed = made()
    crashed.queues["T", 0][30] = crashed.queues["T", 0][31]
    (found,) = queue_findings(crashed.write(tmp_path / "unit"))
    assert found == (
        "T-0: 1 unit, the first at queue offset 30, for messages that have another unit, as a "
        "crash of a broker leaves them: a broker serves these messages twice"
    )


def test_a_rebuild_mends_them(tmp_path: Path) -> None:
    root = made().write(tmp_path / "s")
    copy_file(root, (0, 1), (0, 0))
    sizes = rmqstore.StoreConfig().updated(
        {"mappedFileSizeCommitLog": str(1 << 15), "mappedFileSizeConsumeQueue": str(A_FILE * 20)}
    )
    with rmqstore.open(root, mode="a", config=sizes) as writer:
        assert list(writer.rebuild()) == []
    assert bodies(root) == [b"0-%d" % number for number in range(N)]
    assert queue_findings(root) == []
