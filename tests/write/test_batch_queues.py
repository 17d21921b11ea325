"""Stores with BatchConsumeQueues: written to, repaired and rebuilt."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import goldens
import rmqstore
from goldens import Golden
from rmqstore.errors import IllegalMessageError
from rmqstore.format.layout import BATCH_UNIT
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.write.queue_files import restore_queues
from written import files_of, require_valid, rows_of, stage

CONFIG = StoreConfig().updated(goldens.summary("batch-cq")["conf"])


@pytest.fixture
def root(copied: Golden) -> Path:
    return copied("batch-cq")


def messages(n: int, *topics: str, **more: Any) -> pa.RecordBatch:
    columns = {
        "topic": [topics[number % len(topics)] for number in range(n)],
        "body": [b"new %d" % number for number in range(n)],
        "queueId": pa.array([number // len(topics) % 2 for number in range(n)], pa.int32()),
        "tags": ["TagA"] * n,
    }
    return pa.RecordBatch.from_pydict(columns | more)


def units(root: Path, topic: str, queue_id: int) -> np.ndarray[Any, Any]:
    folder = root / "batchconsumequeue" / topic / str(queue_id)
    data = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    stored = np.frombuffer(data, BATCH_UNIT)
    return stored[stored["size"] > 0]


@pytest.mark.parametrize("is_ordinary", [False, True], ids=["gone", "of the other kind"])
def test_a_rebuild_makes_batch_queues_of_topics_whose_records_show_it(
    root: Path, is_ordinary: bool
) -> None:
    before, queues = rows_of(root), files_of(root, "batchconsumequeue")
    shutil.rmtree(root / "batchconsumequeue" / "BatchA")
    if is_ordinary:  # as a rebuild once made it, of which each unit leads to several messages
        shutil.copytree(root / "consumequeue" / "Plain", root / "consumequeue" / "BatchA")
    with rmqstore.open(root) as store:
        assert any("BatchA" in finding.place for finding in verify(store))
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        assert not writer.rebuild()
    assert files_of(root, "batchconsumequeue") == queues
    assert not (root / "consumequeue" / "BatchA").exists()
    assert rows_of(root) == before
    require_valid(root)


def test_a_batch_queue_that_is_put_back_is_not_taken_for_a_plain_one(root: Path) -> None:
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        writer.append(messages(10, "New"))
    paths = find_store(root)
    (paths.own.replaced_queues / "batchconsumequeue" / "New" / "0").mkdir(parents=True)
    with closing(Disk()) as disk, closing(CommitLog(paths.commitlogs)) as log:
        assert not restore_queues(disk, paths, log)
    assert (root / "batchconsumequeue" / "New" / "0").is_dir()


def test_a_topic_that_has_batch_queues_is_entered_in_topics_json_as_such(root: Path) -> None:
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        writer.append(messages(4, "BatchA", "Plain"))
    entries = json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"]
    assert entries["BatchA"]["attributes"] == {"queue.type": "BatchCQ"}
    assert entries["Plain"]["attributes"] == {}


@pytest.mark.parametrize("state", ["closed", "crashed"])
def test_a_repair_builds_the_units_that_batch_queues_lack(root: Path, state: str) -> None:
    before, queues = rows_of(root), files_of(root, "batchconsumequeue")
    for path in sorted((root / "batchconsumequeue" / "BatchA" / "0").iterdir())[-2:]:
        path.unlink()
    torn = root / "batchconsumequeue" / "BatchB" / "1" / f"{736:020}"
    data = torn.read_bytes()
    cut = len(data.rstrip(b"\0")) // 46 * 46 - 20
    torn.write_bytes(data[:cut].ljust(len(data), b"\0"))
    if state == "crashed":
        (root / "abort").touch()
    with rmqstore.open(root, "a", config=CONFIG, check_log=True):
        pass
    if state == "closed":  # what is missing before the last record is not looked for
        with rmqstore.open(root, "a", config=CONFIG) as writer:
            writer.rebuild()
    assert files_of(root, "batchconsumequeue") == queues
    assert rows_of(root) == before
    require_valid(root)


def test_units_of_records_after_the_log_end_are_cut(root: Path) -> None:
    with rmqstore.open(root) as store:
        rows = store.scan(subscribe="BatchA", columns="queueId,commitLogOffset").read_all()
    offsets = sorted({row["commitLogOffset"] for row in rows.to_pylist() if not row["queueId"]})
    end = offsets[len(offsets) // 2]
    segment = root / "commitlog" / f"{end // 65536 * 65536:020}"
    data = segment.read_bytes()
    segment.write_bytes(data[: end % 65536] + bytes(65536 - end % 65536))
    for path in (root / "commitlog").iterdir():
        if int(path.name) > end:
            path.unlink()
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        writer.append(messages(4, "BatchA"))
    assert units(root, "BatchA", 0)["physical_offset"].max() >= end
    require_valid(root)


def test_each_message_to_a_batch_topic_has_a_unit_of_its_own(root: Path) -> None:
    before = rows_of(root)
    ends = {
        key: 1 + max(row["queueOffset"] for row in before if (row["topic"], row["queueId"]) == key)
        for key in [("BatchA", 0), ("BatchA", 1), ("BatchB", 0), ("BatchB", 1)]
    }
    for _ in range(2):
        with rmqstore.open(root, "a", config=CONFIG) as writer:
            writer.append(messages(80, "BatchA", "BatchB", "Plain"))
    after = rows_of(root)
    assert len(after) == len(before) + 160
    for (topic, queue_id), end in ends.items():
        queue = [row for row in after if (row["topic"], row["queueId"]) == (topic, queue_id)]
        new = [row for row in queue if row["queueOffset"] >= end]
        assert [row["queueOffset"] for row in new] == list(range(end, end + len(new)))
        assert all(row["body"].startswith(b"new") for row in new)
        last = units(root, topic, queue_id)[-len(new) :]
        assert last["base_offset"].tolist() == [row["queueOffset"] for row in new]
        assert last["physical_offset"].tolist() == [row["commitLogOffset"] for row in new]
        assert (last["batch_size"] == 1).all()
        assert (last["compacted"] == -1).all()
        assert len(new) in {26, 27, 28}
    require_valid(root)


@pytest.mark.parametrize("has_folder", [False, True], ids=["no folder", "an empty folder"])
def test_a_topic_that_only_topics_json_makes_a_batch_topic(
    tmp_path: Path, has_folder: bool
) -> None:
    root = tmp_path / "s"
    rmqstore.create(root, config=CONFIG).close()
    (root / "config").mkdir(exist_ok=True)
    if has_folder:  # of plain queues, as a deleted topic may leave one
        (root / "consumequeue" / "B").mkdir(parents=True)
    (root / "config" / "topics.json").write_text(
        '{"topicConfigTable": {"B": {"topicName": "B", "readQueueNums": 2, "writeQueueNums": 2,'
        ' "perm": 6, "attributes": {"queue.type": "BatchCQ"}}}}'
    )
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        writer.append(messages(10, "B"))
    assert not [*(root / "consumequeue").glob("B/*")]
    assert units(root, "B", 0)["base_offset"].tolist() == [0, 1, 2, 3, 4]
    assert len(rows_of(root)) == 10
    queues = files_of(root, "batchconsumequeue")
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        writer.rebuild()
    assert files_of(root, "batchconsumequeue") == queues
    require_valid(root)


def test_inner_batches_are_copied_verbatim(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    rmqstore.create(copy, config=CONFIG).close()
    (copy / "batchconsumequeue" / "BatchA").mkdir(parents=True)
    (copy / "batchconsumequeue" / "BatchB").mkdir(parents=True)
    with rmqstore.open(root) as store:
        table = store.scan(scan="commitlog", verbatim=True).read_all()
    with rmqstore.open(copy, "a", config=CONFIG) as writer:
        writer.append(table, verbatim=True)
    names = ("topic", "queueId", "queueOffset", "body")
    assert [[row[name] for name in names] for row in rows_of(copy)] == [
        [row[name] for name in names] for row in rows_of(root)
    ]
    assert files_of(copy, "batchconsumequeue") == files_of(root, "batchconsumequeue")
    require_valid(copy)


def test_a_staged_job_writes_to_batch_topics(root: Path) -> None:
    before = rows_of(root)
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        writer.append_staged(stage(root, messages(20, "BatchA", "Plain")))
    assert len(rows_of(root)) == len(before) + 20
    require_valid(root)


def test_a_row_that_says_it_is_an_inner_batch_is_refused(root: Path) -> None:
    kind = pa.map_(pa.string(), pa.string())
    rows = messages(2, "BatchA", properties=pa.array([[], [("INNER_NUM", "2")]], kind))
    with (
        rmqstore.open(root, "a", config=CONFIG) as writer,
        pytest.raises(IllegalMessageError, match=r"row 2, .*: MESSAGE_ILLEGAL: property INNER_NUM"),
    ):
        writer.append(rows)
