"""What a real store does with broken ones, which `verify` foretells: the truth of its tests.

``golden/broken.json.xz`` holds what :func:`observe` gives for every case.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import broken_stores
import goldens
import rmqstore
import tiers
from broken_stores import Case, Row
from command_line import advised_commands, run
from interop.rocketmq import RealStore, RocketMQ
from reading import read

pytestmark = pytest.mark.interop

TRUTH = broken_stores.truth("live", "crash", "batch-cq", "cq-ext", "lmq")
MAGICS = {-626843481, -626843477}  # of records, as Java has them
LMQ = "%LMQ%"
_HEAD_BYTES = 36
SAMPLE = [
    Case("live", "closed", "commitlog", "newest", "missing"),
    Case("live", "closed", "commitlog", "middle", "page"),
    Case("live", "closed", "commitlog", "newest", "cut"),
    Case("live", "closed", "consumequeue", "first", "page"),
    Case("live", "closed", "consumequeue", "newest", "missing"),
    Case("live", "crashed", "commitlog", "newest", "page"),
    Case("live", "crashed", "consumequeue", "newest", "missing"),
    Case("live", "crashed", "consumequeue", "first", "page"),
    Case("crash", "crashed", "index", "first", "long"),
    Case("batch-cq", "closed", "batchconsumequeue", "newest", "missing"),
    Case("batch-cq", "closed", "consumequeue", "newest", "missing"),
    Case("batch-cq", "crashed", "commitlog", "first", "page"),
    Case("cq-ext", "closed", "consumequeue_ext", "first", "missing"),
    Case("lmq", "closed", "consumequeue", "newest", "missing"),
]
# The advice is to build the queues again, and in some of them to cut the log before that.
MENDED = [
    Case("live", "closed", "commitlog", "newest", "cut"),
    Case("live", "crashed", "commitlog", "newest", "long"),
    Case("live", "closed", "commitlog", "middle", "missing"),
    Case("live", "crashed", "commitlog", "middle", "page"),
    Case("live", "closed", "consumequeue", "middle", "page"),
    Case("batch-cq", "closed", "commitlog", "middle", "missing"),
    Case("batch-cq", "closed", "batchconsumequeue", "middle", "missing"),
    Case("cq-ext", "closed", "consumequeue_ext", "first", "missing"),
    Case("lmq", "closed", "consumequeue", "newest", "missing"),
    Case("crash", "crashed", "index", "first", "long"),
]
CASES = dict.fromkeys([*SAMPLE, *TRUTH])


def sizes_of(case: Case, root: Path) -> dict[str, Any]:
    conf = goldens.summary(case.store)["conf"]
    sizes: dict[str, Any] = {key: int(conf[key]) if conf[key].isdigit() else True for key in conf}
    folders = broken_stores.folders(case, root)
    return sizes | ({"storePathCommitLog": ",".join(folders)} if len(folders) > 1 else {})


def written(name: str) -> dict[tuple[str, int], dict[int, int]]:
    queues: dict[tuple[str, int], dict[int, int]] = {}
    rows = goldens.lines(name, "expected")
    if name in goldens.CRASHED:  # the real store lost some when it was read back
        rows = [row for row in goldens.records(name) if row["sysFlag"] & 0xC not in (4, 12)]
    for row in rows:
        queue = queues.setdefault((row["topic"], row["queueId"]), {})
        for number in range(row.get("batchNum") or 1):  # messages of an inner batch
            queue[row["queueOffset"] + number] = row["physicalOffset"]
    return queues


def served(real: RealStore, topic: str, queue_id: int) -> Iterator[tuple[int, int]]:
    """Yield queue offsets, and the physical offset of the record that a consumer gets there."""
    at, (_, end) = 0, real.queue_range(topic, queue_id)
    while at < end:
        found = real.store.getMessage("g", topic, queue_id, at, 32, None)
        if found.getStatus().toString() == "FOUND":
            buffers = found.getMessageBufferList()
            for number in range(buffers.size()):
                record = buffers.get(number)
                if record.limit() >= _HEAD_BYTES and record.getInt(4) in MAGICS:
                    yield int(found.getMessageQueueOffset().get(number)), int(record.getLong(28))
        following = found.getNextBeginOffset()
        found.release()
        if following <= at:
            return
        at = following


def spans(numbers: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number, number + 1])
    return runs


def next_offset(real: RealStore, topic: str, queue_id: int) -> int:
    if not topic.startswith(LMQ):
        return int(real.put(topic, queue_id, b"next", properties={"a": "b"}).getLogicsOffset())
    put = real.put("Parent", 0, b"next", properties={"INNER_MULTI_DISPATCH": topic})
    message = real.store.lookMessageByOffset(put.getWroteOffset())
    return int(message.getProperty("INNER_MULTI_QUEUE_OFFSET"))


def observe(rocketmq: RocketMQ, case: Case, root: Path) -> Row:
    """Return what the real store makes of a broken one.

    ``lost`` are the queue offsets that it does not serve, as spans; ``next`` the one that the next
    message gets, where it is not the one after the last.
    """
    batch_topics = ("BatchA", "BatchB") if case.store == "batch-cq" else ()
    try:
        opened = rocketmq.open(root, batch_topics, **sizes_of(case, root))
    except AssertionError:  # it does not load
        return {"starts": False}
    lost, following = {}, {}
    with opened as real:
        real.wait()
        queues = written(case.store)
        for topic, queue_id in sorted(queues, key=lambda key: key[0].startswith(LMQ)):
            places = queues[topic, queue_id]
            found = dict(served(real, topic, queue_id))
            # The messages of an inner batch are served with the first one.
            first = {place: offset for offset, place in reversed(places.items())}
            gone = [offset for offset, place in places.items() if found.get(first[place]) != place]
            if gone:
                lost[f"{topic}-{queue_id}"] = spans(gone)
            given = next_offset(real, topic, queue_id)
            if given != max(places) + 1:
                following[f"{topic}-{queue_id}"] = int(given)
    return {"starts": True, "lost": lost, "next": following}


@pytest.mark.parametrize("case", tiers.split(CASES, len(SAMPLE)), ids=str)
def test_the_real_store_does_what_is_recorded(
    rocketmq: RocketMQ, golden_store: goldens.Golden, tmp_path: Path, case: Case
) -> None:
    broken_stores.make(golden_store(case.store), case, tmp_path / "s")
    known = {name: value for name, value in TRUTH[case].items() if name != "keys"}
    assert observe(rocketmq, case, tmp_path / "s") == known


@pytest.mark.parametrize("case", MENDED, ids=str)
def test_the_real_store_serves_what_is_left_once_the_advice_was_followed(
    rocketmq: RocketMQ, golden_store: goldens.Golden, tmp_path: Path, case: Case
) -> None:
    root = tmp_path / "s"
    broken_stores.make(golden_store(case.store), case, root)
    commands = [line for line, verb in advised_commands(root).items() if verb == "rebuild"]
    run(*shlex.split(commands[0].removesuffix(" --dry-run"))[1:])
    left: dict[str, dict[int, int]] = {}
    queues = {
        f"{topic}-{number}": places for (topic, number), places in written(case.store).items()
    }
    with rmqstore.open(root) as store:
        for row in read(store, include_system_topics=True, fail_on_data_loss=False):
            queue = left.setdefault(f"{row['topic']}-{row['queueId']}", {})
            queue[row["queueOffset"]] = row["commitLogOffset"]
        ends = {f"{key[0]}-{key[1]}": store.queue_range(*key)[1] for key in written(case.store)}
    gone = {name: [at for at in queues[name] if at not in left.get(name, {})] for name in queues}
    assert observe(rocketmq, case, root) == {
        "starts": True,
        "lost": {name: spans(offsets) for name, offsets in gone.items() if offsets},
        "next": {name: end for name, end in ends.items() if end != max(queues[name]) + 1},
    }


def keys_of(properties: dict[str, str]) -> list[str]:
    return [key for name in ("UNIQ_KEY", "KEYS") for key in properties.get(name, "").split()]


def test_the_real_index_does_not_find_keys_of_a_crashed_store_again(
    rocketmq: RocketMQ, golden_store: goldens.Golden, tmp_path: Path
) -> None:
    """Of 96 items, which `verify` counts, 77 are of messages that the real store still serves."""
    case, root = Case("crash", "crashed", "index", "first", "long"), tmp_path / "s"
    shutil.copytree(golden_store("crash"), root)
    columns = ["topic", "commitLogOffset", "properties"]
    with rmqstore.open(root) as store:
        rows = store.scan(scan="commitlog", columns=columns).read_all().to_pylist()
    served_at = {row["physicalOffset"] for row in goldens.lines("crash", "expected")}
    with rocketmq.open(root, **sizes_of(case, root)) as real:
        real.wait()
        lost = [
            row["commitLogOffset"]
            for row in rows
            for key in keys_of(dict(row["properties"]))
            if row["commitLogOffset"] not in real.query(row["topic"], key)
        ]
    assert len(lost) == 96
    assert sum(place in served_at for place in lost) == 77
