"""BatchConsumeQueues, where a record holds several messages: of RocketMQ, by hand, and damaged."""

from __future__ import annotations

import base64
import json
import random
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import goldens
import rmqstore
import store_builder as build
import tiers
from goldens import Golden
from reading import by_queue, column, offsets, read, rows
from rmqstore.errors import (
    CorruptQueueError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    UnsupportedFeatureError,
)
from rmqstore.format.layout import BATCH_UNIT
from rmqstore.format.schema import select_columns
from rmqstore.inspect.verify import verify
from rmqstore.query.selection import parse_selection
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import read_queues
from rmqstore.read.store_parts import open_parts
from rmqstore.source.tail import StoreTail
from rmqstore.spans import QueueSlice
from rmqstore.storage.queue.batch_consumequeue import BatchConsumeQueue, agreeing, trusted
from rmqstore.storage.queue.queue import total_weight
from rmqstore.storage.recovery.store_ends import PlannedEnds, recovered_within
from rmqstore.store.opening import open_for
from store_builder import inner_message as inner

Row = dict[str, Any]
NAME = "batch-cq"
INNER_BATCH, NEED_UNWRAP = 0x80, 0x40
BATCHES = {queue for queue in goldens.queues(NAME) if queue[0] != "Plain"}


def messages(row: Row) -> list[Row]:
    """Return what the key says that a client makes of a record, as rows."""
    outer = goldens.message(row, "b")
    return [
        outer
        | {
            "queueOffset": inner["queueOffset"],
            "body": base64.b64decode(inner["bodyBase64"]),
            "flag": inner["flag"],
            "properties": inner["properties"],
            "tags": inner["properties"].get("TAGS"),
            "keys": inner["properties"].get("KEYS"),
            "msgId": inner["msgId"],
        }
        for inner in row.get("innerMessages", ())
    ] or [outer]


EVERYTHING = {
    key: [one for row in rows for one in messages(row)]
    for key, rows in goldens.queues(NAME).items()
}


def _spec(mode: str, *columns: str) -> ReadSpec:
    return ReadSpec(schema=select_columns(columns), mode=mode, fail_on_data_loss=False)


# ---- as RocketMQ reads them


def test_messages_are_those_a_client_unpacks(golden_store: Golden) -> None:
    assert any(row.get("innerMessages") for row in goldens.lines(NAME, "expected"))
    with rmqstore.open(golden_store(NAME), broker_name="b") as store:
        assert by_queue(read(store)) == EVERYTHING
        places = column(store, "commitLogOffset")
    assert places == sorted(places)


@pytest.mark.parametrize(
    "column", [name for name in EVERYTHING["BatchA", 0][0] if name != "tagsCode"]
)
def test_each_column_alone_equals_the_column_among_all(golden_store: Golden, column: str) -> None:
    with rmqstore.open(golden_store(NAME), broker_name="b") as store:
        columns = list(dict.fromkeys(["queueOffset", column]))
        found = read(store, columns=columns, assign={"BatchB": [1]})
    assert [row[column] for row in found] == [row[column] for row in EVERYTHING["BatchB", 1]]


def test_offset_at_is_the_first_message_at_a_time(golden_store: Golden) -> None:
    """RocketMQ's search stops at file bounds: eight of its answers are not the first message."""
    n_same = n_asked = 0
    with rmqstore.open(golden_store(NAME)) as store:
        for query in goldens.summary(NAME)["timeQueries"]:
            key, at = (query["topic"], query["queueId"]), query["timestamp"]
            rows = EVERYTHING[key]
            later = [row["queueOffset"] for row in rows if row["storeTimestamp"] >= at]
            earlier = [row["queueOffset"] for row in rows if row["storeTimestamp"] <= at]
            assert store.offset_at(*key, at) == min(later, default=len(rows))
            assert store.offset_at(*key, at, "upper") == max(earlier, default=0)
            if key in BATCHES and query["boundary"] == "LOWER":
                n_asked += 1
                n_same += store.offset_at(*key, at) == query["offset"]
    assert n_asked - n_same == 8


def test_any_range_of_queue_offsets_is_just_these_messages(golden_store: Golden) -> None:
    key, rng = ("BatchA", 1), random.Random(5)
    rows = EVERYTHING[key]
    n = len(rows)
    spans = [(start, start + 1) for start in range(n)] + [
        sorted(rng.sample(range(n + 1), 2)) for _ in range(40)
    ]
    with rmqstore.open(golden_store(NAME), broker_name="b") as store:
        for start, end in spans:
            bounds = {
                "starting_offsets": {"BatchA": {"1": start}},
                "ending_offsets": {"BatchA": {"1": end}},
            }
            assert read(store, assign={"BatchA": [1]}, **bounds) == rows[start:end]


@pytest.mark.parametrize("tags", ["in0", "in1 || z", "no such tag"])
def test_tags_are_those_of_the_inner_messages(golden_store: Golden, tags: str) -> None:
    chosen = [tag.strip() for tag in tags.split("||")]
    with rmqstore.open(golden_store(NAME)) as store:
        found = read(store, tags=tags, columns="topic,queueId,queueOffset,tags")
    expected = {
        (*key, row["queueOffset"])
        for key, rows in EVERYTHING.items()
        for row in rows
        if row["tags"] in chosen
    }
    assert {(row["topic"], row["queueId"], row["queueOffset"]) for row in found} == expected
    assert bool(expected) == (tags != "no such tag")


def test_the_log_is_read_record_by_record(golden_store: Golden) -> None:
    by_row = {
        row["physicalOffset"]: goldens.message(row, "b") for row in goldens.lines(NAME, "expected")
    }
    with rmqstore.open(golden_store(NAME), broker_name="b") as store:
        for row in read(store, scan="commitlog"):
            assert row == {name: by_row[row["commitLogOffset"]][name] for name in row}


def test_exact_copies_are_of_records(golden_store: Golden) -> None:
    with rmqstore.open(golden_store(NAME)) as store:
        with pytest.raises(UnsupportedFeatureError, match="scan=commitlog"):
            store.scan(subscribe="BatchA", verbatim=True)
        assert store.scan(subscribe="Plain", verbatim=True).read_all().num_rows == len(
            EVERYTHING["Plain", 0]
        )


@pytest.mark.parametrize("lost", ["newest files", "all of one queue", "every queue", "a hole"])
@pytest.mark.parametrize("abort", [True, False])
def test_units_that_a_crash_lost_are_taken_from_the_log(
    copied: Golden, lost: str, abort: bool
) -> None:
    root = copied(NAME)
    folders = [root / "batchconsumequeue" / queue[0] / str(queue[1]) for queue in sorted(BATCHES)]
    (root / "config").mkdir(exist_ok=True)
    of_batches = {"attributes": {"queue.type": "BatchCQ"}}
    topics = {"BatchA": of_batches, "BatchB": of_batches, "Plain": {}}
    (root / "config/topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    if lost == "newest files":
        for folder in folders:
            max(folder.iterdir()).unlink()
    elif lost == "all of one queue":
        shutil.rmtree(folders[1])
    elif lost == "every queue":
        shutil.rmtree(root / "batchconsumequeue")
    else:
        path = max(folders[0].iterdir())
        path.write_bytes(bytes(46) + path.read_bytes()[46:])
    if abort:
        (root / "abort").touch()
    elif lost == "a hole":
        # the newest record is in its queue: in a store that was closed, that is believed
        return
    with rmqstore.open(root, broker_name="b") as store:
        assert by_queue(read(store)) == EVERYTHING
        assert {key: store.queue_range(*key)[1] for key in BATCHES} == {
            key: len(EVERYTHING[key]) for key in BATCHES
        }
        info = store.queues("BatchB")[1]
        assert info.n_bytes == sum(row["storeSize"] for row in goldens.queues(NAME)["BatchB", 1])
        bounds = {
            "starting_offsets": {"BatchB": {"1": 149}},
            "ending_offsets": {"BatchB": {"1": 151}},
        }
        assert read(store, assign={"BatchB": [1]}, **bounds) == EVERYTHING["BatchB", 1][149:151]
        piece = QueueSlice("BatchB", 1, 149, 151)
        found = recovered_within(store.parts.ends.recovered, [piece])
    with open_parts(root, planned=PlannedEnds(found)) as parts:  # as a task has it
        assert offsets(rows(read_queues(parts, [piece], _spec("FAILFAST", "commitLogOffset")))) == [
            row["commitLogOffset"] for row in EVERYTHING["BatchB", 1][149:151]
        ]


# ---- made by hand


def unit(placed: build.Placed, base: int, count: int) -> bytes:
    place = placed.physical_offset, placed.size
    return struct.pack(">qiqqqhii", *place, 0, placed.record.store_timestamp, base, count, -1, 0)


def make(root: Path, batches: list[list[bytes]], *, packed: bool = False, **more: Any) -> Path:
    """Write a store with one queue, B-0, and one record for each list of messages.

    A list of one message becomes a plain record. A file of the queue has four units.
    """
    store, units, base = build.Store(**more), [], 0
    for number, batch in enumerate(batches):
        body = b"".join(batch) if len(batch) > 1 else batch[0]
        flag = INNER_BATCH | NEED_UNWRAP if len(batch) > 1 else 0
        properties = build.properties({"INNER_BASE": str(base), "INNER_NUM": str(len(batch))})
        if packed and number % 2:
            body, flag = zlib.compress(body), flag | build.COMPRESSED | build.ZLIB
        record = build.Record(
            "B", queue_offset=base, body=body, sys_flag=flag, properties=properties
        )
        placed = store.append(record, queued=False)
        units.append(unit(placed, base, len(batch)))
        base += len(batch)
    store.write(root)
    folder = root / "batchconsumequeue/B/0"
    folder.mkdir(parents=True)
    for at in range(0, len(units), 4):
        data = b"".join(units[at : at + 4])
        (folder / f"{at * 46:020d}").write_bytes(data.ljust(4 * 46, b"\0"))
    return root


def bodies(n_batches: int) -> list[list[bytes]]:
    counts = [number % 4 + 2 for number in range(n_batches)]
    return [
        [inner(f"{row}-{at}".encode(), f"t{at}", at) for at in range(count)]
        for row, count in enumerate(counts)
    ]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "columns", ["body,flag,tags,queueOffset", "tags,queueOffset", "queueOffset"]
)
def test_batches_of_any_packing_are_unpacked(tmp_path: Path, packed: bool, columns: str) -> None:
    batches = [*bodies(20), [b"alone"]]
    expected = [
        {"body": f"{number}-{at}".encode(), "flag": at, "tags": f"t{at}"}
        for number in range(20)
        for at in range(number % 4 + 2)
    ] + [{"body": b"alone", "flag": 0, "tags": None}]
    root = make(tmp_path / "s", batches, packed=packed)
    with rmqstore.open(root) as store:
        found = read(store, columns=columns)
        later = read(store, columns=columns, starting_offsets={"B": {"0": 7}})
        assert list(verify(store)) == []
    names = columns.split(",")
    rows = [{**row, "queueOffset": at} for at, row in enumerate(expected)]
    assert found == [{name: row[name] for name in names} for row in rows]
    assert later == found[7:]


def test_one_batch_of_very_many_messages_is_cut_into_batches_of_rows(tmp_path: Path) -> None:
    root = make(
        tmp_path / "s", [[inner(b"%d" % at) for at in range(20_000)], [b"x"]], segment_bytes=1 << 20
    )
    with rmqstore.open(root) as store:
        batches = list(store.scan(columns="body,queueOffset"))
    assert max(batch.num_rows for batch in batches) <= 8192
    table = pa.Table.from_batches(batches)
    assert table["queueOffset"].to_pylist() == list(range(20_001))
    assert table["body"].to_pylist() == [b"%d" % at for at in range(20_000)] + [b"x"]


def test_a_stream_follows_a_queue_that_grows(tmp_path: Path) -> None:
    root = make(tmp_path / "s", bodies(5))
    tail = StoreTail(open_parts(root), parse_selection())
    tail.poll()
    for n in (5, 6, 9, 30):
        for path in make(tmp_path / str(n), bodies(n)).rglob("0*"):
            if path.is_file():
                target = root / path.relative_to(tmp_path / str(n))
                target.touch()
                with target.open("r+b") as file:
                    file.write(path.read_bytes())
        tail.poll()
        assert tail.ends == {("B", 0): sum(len(batch) for batch in bodies(n))}
        assert tail.first(("B", 0)) == 0
        whole = QueueSlice("B", 0, 0, tail.ends["B", 0])
        assert tail.store.store_queues.slices(
            whole[:2], *whole[2:], _spec("FAILFAST", "queueOffset")
        ) == [whole]
        found = read_queues(tail.store, [whole], _spec("FAILFAST", "queueOffset"))
        assert [row["queueOffset"] for row in rows(found)] == list(range(tail.ends["B", 0]))


def test_weights_of_messages_are_the_bytes_of_their_records(tmp_path: Path) -> None:
    root = make(tmp_path / "s", bodies(9))
    queue = BatchConsumeQueue(root / "batchconsumequeue/B/0")
    end = queue.end()
    with rmqstore.open(root) as store:
        sizes = {row["commitLogOffset"]: row["storeSize"] for row in read(store, scan="commitlog")}
    assert queue.weights(0, end).sum() == sum(sizes.values()) == total_weight(queue, 0, end)
    assert sum(int(queue.weights(at, at + 1).sum()) for at in range(end)) == sum(sizes.values())


def test_messages_of_deleted_records_are_not_there(tmp_path: Path) -> None:
    root = make(tmp_path / "s", [[inner(b"x" * 700), inner(b"y" * 700)] for _ in range(8)])
    logs = sorted((root / "commitlog").iterdir())
    assert len(logs) > 2
    logs[0].unlink()
    (root / "batchconsumequeue/B/0" / f"{0:020d}").unlink()  # the first four units
    with rmqstore.open(root) as store:
        first, end = store.queue_range("B", 0)
        assert (first, end) == (8, 16)
        assert column(store, "queueOffset") == list(range(8, 16))
        with pytest.raises(OffsetOutOfRangeError, match="fail_on_data_loss=False"):
            read(store, starting_offsets={"B": {"0": 3}})


def test_a_missing_file_between_others_is_damage(tmp_path: Path) -> None:
    root = make(tmp_path / "s", [[inner(b"x"), inner(b"y")] for _ in range(12)])
    (root / "batchconsumequeue/B/0" / f"{4 * 46:020d}").unlink()
    with rmqstore.open(root) as store:
        with pytest.raises(CorruptQueueError):
            read(store)
        kept = column(store, "queueOffset", mode="DROPMALFORMED")
    assert kept == [*range(8), *range(16, 24)]


# ---- damaged


def _change(root: Path, number: int, field: int, code: str, value: int) -> Path:
    path = root / "batchconsumequeue/B/0" / f"{number // 4 * 184:020d}"
    data = bytearray(path.read_bytes())
    struct.pack_into(">" + code, data, number % 4 * 46 + field, value)
    path.write_bytes(data)
    return path


VALUES = [
    (28, "q", 1 << 62), (28, "q", -1), (28, "q", 0), (28, "q", 1 << 40), (28, "q", 100_000),
    (36, "h", 0), (36, "h", -5), (8, "i", 0), (8, "i", -1), (0, "q", -1), (0, "q", 1 << 50),
]  # fmt: skip
DAMAGES = [
    (number, *value)
    for number in (0, 5, 7, 8, 11)
    for value in VALUES
    if (number, *value) != (0, 28, "q", 0)
]


@pytest.mark.parametrize(("number", "field", "code", "value"), DAMAGES)
def test_a_damaged_unit_costs_its_own_messages_only(
    tmp_path: Path, number: int, field: int, code: str, value: int
) -> None:
    """Each of 12 records has two messages; one row stands for those of a damaged last unit."""
    root = make(tmp_path / "s", [[inner(b"%d" % at), inner(b"%d'" % at)] for at in range(12)])
    path = _change(root, number, field, code, value)
    good = [at for at in range(24) if at // 2 != number]
    with rmqstore.open(root) as store:
        # what the first unit of a queue told first is not to be known without it
        if number or field != 28:
            with pytest.raises((CorruptQueueError, OffsetOutOfRangeError)) as caught:
                read(store)
            if field == 28 and isinstance(caught.value, CorruptQueueError):
                assert caught.value.path == str(path)
        options = {"columns": "queueOffset", "fail_on_data_loss": False}
        dropped = [row["queueOffset"] for row in read(store, mode="DROPMALFORMED", **options)]
        rows = read(store, mode="PERMISSIVE", **options)
        assert list(verify(store))
    assert dropped == good
    assert [row["queueOffset"] for row in rows if not row["_corrupt_record"]] == good


@pytest.mark.parametrize("count", [1, 9])
def test_a_wrong_number_of_messages_costs_none(tmp_path: Path, count: int) -> None:
    root = make(tmp_path / "s", [[inner(b"%d" % at), inner(b"%d'" % at)] for at in range(12)])
    _change(root, 5, 36, "h", count)
    with rmqstore.open(root) as store:
        assert column(store, "queueOffset") == [*range(24)]
        assert bool(list(verify(store))) == (count == 1)


def test_a_queue_is_built_over_holes_in_the_log(tmp_path: Path) -> None:
    """A unit alone is between two holes, after one at the end of a file, and after the last."""
    root = make(tmp_path / "s", [[inner(b"x"), inner(b"y")] for _ in range(13)], segment_bytes=180)
    numbers = [2, 4, 7, 8, 11]
    for number in numbers:
        (root / "commitlog" / f"{number * 180:020d}").unlink()
    kept = [at for at in range(26) if at // 2 not in numbers]
    with rmqstore.open(root, mode="a") as writer:
        assert writer.rebuild()
    with rmqstore.open(root) as store:
        assert column(store, "queueOffset") == kept
        assert store.queue_range("B", 0) == (0, 26)
        assert {finding.part for finding in verify(store)} == {"log"}
        bounds = {"starting_offsets": {"B": {"0": 9}}, "ending_offsets": {"B": {"0": 13}}}
        assert column(store, "queueOffset", **bounds) == [10, 11, 12]
        assert store.queues("B")[0].n_bytes == sum(column(store, "storeSize")) // 2


BROKEN = {
    "too short": inner(b"a") + inner(b"b")[:-1],
    "zeros": inner(b"a") + b"\0" * 30,
    "negative size": struct.pack(">i", -1) + inner(b"a"),
    "negative body": inner(b"a")[:16] + struct.pack(">i", -1) + inner(b"a")[20:],
    "a long body": inner(b"a")[:16] + struct.pack(">i", 1 << 30) + inner(b"a")[20:],
    "negative properties": inner(b"a")[:-2] + b"\xff\xff",
    "empty": b"",
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("n_batches", [1, 40])  # chains are followed one by one, and side by side
def test_a_body_that_is_not_a_chain_of_messages_is_damage(
    tmp_path: Path, body: bytes, n_batches: int
) -> None:
    batches = [[inner(b"x"), inner(b"y")] for _ in range(n_batches)]
    root = make(tmp_path / "s", [*batches[1:], [body, b""], batches[0]])
    lost = 2 * (n_batches - 1)
    with rmqstore.open(root) as store:
        with pytest.raises(CorruptRecordError, match=r"no chain|none of the record's"):
            read(store)
        dropped = column(store, "queueOffset", mode="DROPMALFORMED")
        kept = read(store, columns="queueOffset,body", mode="PERMISSIVE")
        assert len(list(verify(store))) == 2
    n = 2 * n_batches + 2
    assert dropped == [at for at in range(n) if at not in (lost, lost + 1)]
    assert [row["queueOffset"] for row in kept] == list(range(n))
    assert [row["queueOffset"] for row in kept if row["body"] is None] == [lost, lost + 1]


def test_a_compressed_batch_that_does_not_inflate_is_damage(tmp_path: Path) -> None:
    root = make(tmp_path / "s", bodies(6), packed=True)
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x78\x9c", b"\x79\x9c", 1))
    with rmqstore.open(root) as store:
        with pytest.raises(CorruptRecordError, match="does not inflate"):
            read(store, check_crc=False)
        found = read(store, columns="queueOffset", mode="DROPMALFORMED", check_crc=False)
    assert [row["queueOffset"] for row in found] == [0, 1, *range(5, 19)]


@pytest.mark.parametrize("seed", tiers.seeds(20))
def test_units_of_random_bytes_end_in_reasonable_time(tmp_path: Path, seed: int) -> None:
    root = make(tmp_path / "s", [[inner(b"%d" % at), inner(b"%d'" % at)] for at in range(12)])
    rng = random.Random(seed)
    for path in (root / "batchconsumequeue/B/0").iterdir():
        data = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
    queue = BatchConsumeQueue(root / "batchconsumequeue/B/0")
    begin, end = queue.begin, queue.end()
    runs = list(queue.runs(begin, end))
    queue_offsets = np.unique(np.linspace(max(begin - 2, 0), end + 2, 500).astype(np.int64))
    units = [tuple(map(int, unit)) for unit in zip(*queue.units_of(queue_offsets), strict=True)]
    assert units == [queue.unit(at) for at in queue_offsets.tolist()]
    for low, high in runs:
        assert begin <= low < high <= end
        assert len(queue.units(low, min(high, low + 1000)).sizes) == min(high - low, 1000)
    with open_for(root) as store:
        slices = [QueueSlice("B", 0, low, min(high, low + 50)) for low, high in runs]
        for batch in read_queues(
            store.parts, slices, _spec("DROPMALFORMED", "queueOffset", "body")
        ):
            for row in batch.to_pylist():
                assert row["body"].strip(b"'") == b"%d" % (row["queueOffset"] // 2)


# ---- which units are trusted: the examples of the docstrings

EXAMPLE = [(0, 3), (3, 7), (99, 101), (9, 11), (11, 19), (15, 16), (16, 18)]


def units_at(messages: list[tuple[int, int]]) -> np.ndarray:
    units = np.zeros(len(messages), BATCH_UNIT)
    units["base_offset"] = [start for start, _ in messages]
    units["batch_size"] = [end - start for start, end in messages]
    units["physical_offset"] = np.arange(len(messages)) * 100
    return units


def test_the_example_of_trusted_units() -> None:
    found = trusted(units_at(EXAMPLE), 40)
    spans = list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))
    assert spans == [(0, 3), (3, 7), (9, 11), (11, 15), (15, 16), (16, 18)]
    assert found.numbers.tolist() == [40, 41, 43, 44, 45, 46]
    assert found.physical_offsets.tolist() == [0, 100, 300, 400, 500, 600]


def test_a_unit_that_nothing_contradicts_is_trusted() -> None:
    """Without its two neighbours, the damaged unit of the example has no linked unit next to it."""
    found = trusted(units_at([EXAMPLE[2]]), 0)
    assert (found.starts.tolist(), found.ends.tolist()) == ([99], [101])


@pytest.mark.parametrize("unit", [(-5, 3), (1 << 61, (1 << 61) + 2), (7, 7)])
def test_a_unit_that_can_be_of_no_message_is_not_trusted(unit: tuple[int, int]) -> None:
    found = trusted(units_at([EXAMPLE[0], unit, (4, 6)]), 0)
    assert (found.starts.tolist(), found.numbers.tolist()) == ([0, 4], [0, 2])


def test_the_example_of_agreeing_ranges() -> None:
    starts, ends = np.array([0, 3, 500, 8, 12]), np.array([3, 8, 502, 12, 15])
    assert agreeing(starts, ends, widest=10).tolist() == [True, True, False, True, True]


def test_ranges_of_which_no_two_agree_are_those_that_rise() -> None:
    starts = np.array([0, 500, 300, 900, 900])
    assert agreeing(starts, starts + 3, widest=10).tolist() == [True, True, False, True, False]
    assert agreeing(starts[:0], starts[:0], widest=10).tolist() == []
