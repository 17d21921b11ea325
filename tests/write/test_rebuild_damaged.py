"""Rebuilding from a log with wrong records: what can be built is built, and the rest is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import goldens
import rmqstore
import store_builder as build
from command_line import run
from goldens import Golden
from rmqstore.errors import Finding
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.store_config import StoreConfig

# positions in a record with IPv4 hosts
QUEUE_ID, QUEUE_OFFSET = 12, 20


def segment_of(root: Path, physical_offset: int) -> Path:
    return max(path for path in (root / "commitlog").iterdir() if int(path.name) <= physical_offset)


def change(root: Path, physical_offset: int, position: int, data: bytes) -> None:
    path = segment_of(root, physical_offset)
    with path.open("r+b") as file:
        file.seek(physical_offset - int(path.name) + position)
        file.write(data)


def rebuild(root: Path) -> list[Finding]:
    with rmqstore.open(root, mode="a", truncate=True) as writer:
        return writer.rebuild()


def findings(root: Path) -> list[Finding]:
    with rmqstore.open(root) as store:
        return list(verify(store))


def middle_of(name: str, topic: str) -> goldens.Row:
    rows = next(
        rows for (of, _), rows in goldens.queues(name).items() if of == topic and len(rows) > 10
    )
    return rows[len(rows) // 2]


def test_a_record_with_a_wrong_queue_id_is_built_as_a_broker_does(copied: Golden) -> None:
    root = copied("basic")
    row = middle_of("basic", "TopicB")
    change(root, row["physicalOffset"], QUEUE_ID, (90).to_bytes(4))
    assert rebuild(root) == []
    assert findings(root) == []
    with rmqstore.open(root) as store:
        others = store.scan(assign={"TopicB": [row["queueId"]]}, columns="queueOffset").read_all()
        moved = store.scan(assign={"TopicB": [90]}, columns="queueOffset").read_all()
    n_rows = len(goldens.queues("basic")["TopicB", row["queueId"]])
    assert others["queueOffset"].to_pylist() == [*range(n_rows - 1)]
    assert moved["queueOffset"].to_pylist() == [row["queueOffset"]]


@pytest.mark.parametrize(
    ("wrong", "is_placed"),
    [(0, True), (5, False), (3_000, True), (1 << 40, True), ((1 << 63) - 1, False), (-1, False)],
)
def test_a_record_with_a_wrong_queue_offset_is_placed_or_named(
    copied: Golden, wrong: int, *, is_placed: bool
) -> None:
    root = copied("basic")
    row = middle_of("basic", "TopicB")
    change(root, row["physicalOffset"], QUEUE_OFFSET, wrong.to_bytes(8, signed=True))
    named = [f"the first at {row['physicalOffset']}: it says queue offset {wrong}"]
    for found in ([one.text for one in rebuild(root)], run("rebuild", root).stdout.splitlines()):
        texts = [text for text in found if "it says queue offset" in text]
        assert len(texts) == (not is_placed)
        assert all(named[0] in text for text in texts)
    with rmqstore.open(root) as store:
        end = store.queue_range("TopicB", row["queueId"])[1]
    assert end == len(goldens.queues("basic")["TopicB", row["queueId"]]) - (not is_placed)


def test_a_repair_names_what_has_no_unit(copied: Golden, caplog: pytest.LogCaptureFixture) -> None:
    root = copied("basic")
    row = middle_of("basic", "TopicB")
    change(root, row["physicalOffset"], QUEUE_OFFSET, (5).to_bytes(8))
    shutil.rmtree(root / "consumequeue")
    (root / "abort").touch()
    sizes = StoreConfig().updated(goldens.summary("basic")["conf"])
    with rmqstore.open(root, mode="a", config=sizes):
        pass
    assert f"the first at {row['physicalOffset']}: it says queue offset 5" in caplog.text
    (found,) = findings(root)
    assert found.text.startswith("1 record is in no queue, the first at physical offset")


@pytest.mark.parametrize("n_new", [1, 20, 30])
def test_of_a_topic_that_was_made_again_the_newest_one_is_built(tmp_path: Path, n_new: int) -> None:
    store = build.Store(segment_bytes=4096)
    for number in range(20):
        store.append(build.Record(topic="T", body=b"old%d" % number))
    store.append(build.Record(topic="B"))
    del store.queues["T", 0]  # as a broker deletes a topic: its records stay in the log
    new = [b"new%d" % number for number in range(n_new)]
    for number, body in enumerate(new):
        store.append(build.Record(topic="T", queue_offset=number, body=body))
    root = store.write(tmp_path / "s")
    with rmqstore.open(root) as opened:
        in_files = opened.scan(subscribe="T", columns="body").read_all()["body"].to_pylist()
    shutil.rmtree(root / "consumequeue/T")
    with rmqstore.open(root) as opened:
        in_log = opened.scan(subscribe="T", columns="body").read_all()["body"].to_pylist()
    assert in_files == in_log == new
    assert rebuild(root) == []
    with rmqstore.open(root) as opened:
        built = opened.scan(subscribe="T", columns="body").read_all()["body"].to_pylist()
    assert built == new
    assert [one for one in findings(root) if one.part == "queue"] == []
