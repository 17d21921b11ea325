"""The real RocketMQ opens batch queues and light message queues that we wrote, and goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import goldens
import rmqstore
from interop.rocketmq import RealStore, RocketMQ
from reading import Row, by_queue
from rmqstore.storage.broker.store_config import StoreConfig
from written import files_of, require_valid, rows_of, stage

pytestmark = pytest.mark.interop

BATCH_TOPICS = ("BatchA", "BatchB", "BatchNew")
LMQS = {"enableLmq": True, "enableMultiDispatch": True}
NAMES = "INNER_MULTI_DISPATCH"
N = 90


def messages(n: int, *topics: str, names: tuple[str, ...] = (), first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + n)
    return pa.RecordBatch.from_pylist(
        [
            {
                "topic": topics[number % len(topics)],
                "queueId": number // len(topics) % 2,
                "body": f"ours {number} ".encode() * (number % 7 + 1),
                "tags": f"Tag{number % 3}",
                "keys": f"k{number}",
                "properties": [(NAMES, names[number % len(names)])] if names else [],
            }
            for number in numbers
        ],
        pa.schema(
            {
                "topic": pa.string(), "queueId": pa.int32(), "body": pa.binary(),
                "tags": pa.string(), "keys": pa.string(),
                "properties": pa.map_(pa.string(), pa.string()),
            }
        ),
    )  # fmt: skip


def ours(root: Path) -> dict[tuple[str, int], list[Row]]:
    require_valid(root)
    return by_queue(rows_of(root))


def records(root: Path) -> dict[int, bytes]:
    with rmqstore.open(root) as store:
        offsets = store.scan(scan="commitlog", columns="commitLogOffset").read_all()
    files = sorted((root / "commitlog").iterdir())
    log = {int(path.name): path.read_bytes() for path in files}
    found = {}
    for physical_offset in offsets.column("commitLogOffset").to_pylist():
        start = max(start for start in log if start <= physical_offset)
        data = log[start][physical_offset - start :]
        found[physical_offset] = data[: int.from_bytes(data[:4])]
    return found


def judge(real: RealStore, root: Path) -> None:
    """The real store serves each queue just as we read it; inner batches as one record."""
    stored = records(root)
    for (topic, queue_id), rows in ours(root).items():
        assert real.queue_range(topic, queue_id)[1] == rows[-1]["queueOffset"] + 1
        first: dict[int, int] = {}
        for row in rows:
            first.setdefault(row["commitLogOffset"], row["queueOffset"])
        expected = [(offset, stored[place]) for place, offset in first.items()]
        assert list(real.records(topic, queue_id)) == expected, (topic, queue_id)


def files(root: Path) -> dict[str, bytes]:
    return files_of(root, "commitlog", "consumequeue", "batchconsumequeue")


def configured(name: str) -> tuple[StoreConfig, dict[str, int]]:
    conf = goldens.summary(name)["conf"]
    return StoreConfig().updated(conf), {
        key: int(value) for key, value in conf.items() if str(value).isdigit()
    }


@pytest.mark.parametrize(
    ("version", "way"),
    [
        ("rocketmq", "append"), ("rocketmq", "repair"), ("rocketmq", "rebuild"),
        ("rocketmq_55", "append"),
    ],
)  # fmt: skip
def test_the_real_store_serves_batch_queues_and_goes_on(
    real_mq: RocketMQ, copied: goldens.Golden, way: str
) -> None:
    root = copied("batch-cq")
    config, sizes = configured("batch-cq")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(
        '{"topicConfigTable": {"BatchNew": {"topicName": "BatchNew", "readQueueNums": 2,'
        ' "writeQueueNums": 2, "perm": 6, "attributes": {"queue.type": "BatchCQ"}}}}'
    )
    with rmqstore.open(root, "a", config=config) as writer:
        writer.append(messages(N, *BATCH_TOPICS, "Plain"))
        if way == "rebuild":
            assert not writer.rebuild()
    if way == "repair":
        for topic in BATCH_TOPICS:
            max((root / "batchconsumequeue" / topic / "0").iterdir()).unlink()
        (root / "abort").touch()
        rmqstore.open(root, "a", config=config).close()
    before = files(root)
    with real_mq.open(root, BATCH_TOPICS, **sizes) as real:
        judge(real, root)
    after = files(root)
    assert {path: after[path] for path in before} == before, "there is nothing to recover"
    ends = {queue: rows[-1]["queueOffset"] + 1 for queue, rows in ours(root).items()}
    with real_mq.open(root, BATCH_TOPICS, **sizes) as real:
        for topic in (*BATCH_TOPICS, "Plain"):
            result = real.put(topic, 0, b"from java", tags="J")
            assert result.getLogicsOffset() == ends[topic, 0]
        real.wait()
    with rmqstore.open(root, "a", config=config) as writer:
        writer.append(messages(N, *BATCH_TOPICS, "Plain", first=N))
    for topic in BATCH_TOPICS:
        new = [row for row in ours(root)[topic, 0] if row["queueOffset"] >= ends[topic, 0]]
        assert next(row["body"] for row in new) == b"from java"
        assert len(new) > 5
    with real_mq.open(root, BATCH_TOPICS, **sizes) as real:
        judge(real, root)


@pytest.mark.parametrize(
    ("version", "way"),
    [
        ("rocketmq", "append"), ("rocketmq", "staged"), ("rocketmq", "repair"),
        ("rocketmq", "rebuild"), ("rocketmq_55", "staged"),
    ],
)  # fmt: skip
def test_the_real_store_serves_lmqs_and_goes_on(
    real_mq: RocketMQ, copied: goldens.Golden, way: str
) -> None:
    root = copied("lmq")
    config, sizes = configured("lmq")
    sizes |= LMQS
    names = ("%LMQ%new,%LMQ%sub_1", "%LMQ%sub_2", "%LMQ%new")
    batch = messages(N, "Parent", "Other", names=names)
    with rmqstore.open(root, "a", config=config) as writer:
        if way == "staged":
            writer.append_staged(stage(root, batch))
        else:
            writer.append(batch)
        if way == "rebuild":
            assert not writer.rebuild()
    if way == "repair":
        for topic in ("%LMQ%new", "%LMQ%sub_1"):
            max((root / "consumequeue" / topic / "0").iterdir()).unlink()
        (root / "abort").touch()
        rmqstore.open(root, "a", config=config).close()
    before = files(root)
    with real_mq.open(root, **sizes) as real:
        judge(real, root)
    after = files(root)
    assert {path: after[path] for path in before} == before, "there is nothing to recover"
    ends = {queue[0]: rows[-1]["queueOffset"] + 1 for queue, rows in ours(root).items()}
    with real_mq.open(root, **sizes) as real:
        real.put("Parent", 0, b"from java", properties={NAMES: "%LMQ%new,%LMQ%sub_2"})
        real.wait()
        judge(real, root)
    for name in ("%LMQ%new", "%LMQ%sub_2"):
        last = ours(root)[name, 0][-1]
        assert (last["queueOffset"], last["body"]) == (ends[name], b"from java")
    with rmqstore.open(root, "a", config=config) as writer:
        writer.append(messages(N, "Parent", "Other", names=names, first=N))
    new = [row for row in ours(root)["%LMQ%new", 0] if row["queueOffset"] > ends["%LMQ%new"]]
    assert len(new) == 2 * N // 3
    with real_mq.open(root, **sizes) as real:
        judge(real, root)


@pytest.mark.parametrize("version", ["rocketmq", "rocketmq_55"])
def test_records_are_in_the_lmqs_that_the_real_store_puts_them_in(
    real_mq: RocketMQ, tmp_path: Path
) -> None:
    _, sizes = configured("lmq")
    sizes |= LMQS
    root, copied = tmp_path / "s", tmp_path / "copied"
    named = {
        "Parent": [
            "%LMQ%a", "%LMQ%a,", "%LMQ%b,%LMQ%a,,", "%LMQ%c,other", "%LMQ%c, %LMQ%a", "%LMQ%a",
        ],
        "Batch": ["%LMQ%a,%LMQ%c"],
    }  # fmt: skip
    with real_mq.open(root, ("Batch",), **sizes) as real:
        for topic, values in named.items():
            for value in values:
                real.put(topic, 0, value.encode(), properties={NAMES: value}, keys="k")
        real.wait()
        shutil.copytree(root, copied)
        served = {topic: real.queue_range(topic, 0)[1] for topic in ("%LMQ%a", "%LMQ%b", "%LMQ%c")}
        judge(real, root)
    assert served == {"%LMQ%a": 4, "%LMQ%b": 1, "%LMQ%c": 0}
    expected = ours(root)
    assert ours(copied) == expected
    shutil.rmtree(copied / "consumequeue")
    assert by_queue(rows_of(copied)) == expected, "from the log alone"
    with rmqstore.open(root, "a") as writer:
        assert not writer.rebuild()
    assert ours(root) == expected
