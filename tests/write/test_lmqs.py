"""Rows that name light message queues: appended, copied verbatim, staged, repaired and rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import goldens
import rmqstore
from goldens import Golden
from rmqstore.errors import IllegalMessageError
from rmqstore.format.layout import MAX_PROPERTIES_BYTES
from rmqstore.storage.broker.store_config import StoreConfig
from written import files_of, require_valid, rows_of, stage

CONFIG = StoreConfig().updated(goldens.summary("lmq")["conf"])
NAMES, OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
MAP = pa.map_(pa.string(), pa.string())


@pytest.fixture
def root(copied: Golden) -> Path:
    return copied("lmq")


def lmqs(root: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Return queue offset and body of the messages of each LMQ."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    for row in rows_of(root):
        if row["topic"].startswith("%LMQ%"):
            assert row["queueId"] == 0
            found.setdefault(row["topic"], []).append((row["queueOffset"], row["body"]))
    return found


def rows(*named: str | None, topic: str = "Parent", first: int = 0, **more: Any) -> pa.RecordBatch:
    properties = [
        [("colour", "blue"), *([(NAMES, names)] if names is not None else [])] for names in named
    ]
    columns = {
        "topic": [topic] * len(named),
        "body": [b"new %d" % number for number in range(first, first + len(named))],
        "properties": pa.array(properties, MAP),
    }
    return pa.RecordBatch.from_pydict(columns | more)


def append(root: Path, *batches: pa.RecordBatch) -> None:
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        for batch in batches:
            writer.append(batch)


def rebuild(root: Path) -> None:
    """Build the queues again, which changes none of them."""
    queues = files_of(root, "consumequeue")
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        assert not writer.rebuild()
    assert files_of(root, "consumequeue") == queues


SOME = ("%LMQ%a", None, "%LMQ%a,%LMQ%b", "%LMQ%b,%LMQ%sub_1", None, "%LMQ%a")


def check_some(root: Path, ends: dict[str, int]) -> None:
    """The rows of SOME are in their LMQs, after what was there."""
    found = lmqs(root)
    expected = {"%LMQ%a": [0, 2, 5], "%LMQ%b": [2, 3], "%LMQ%sub_1": [3]}
    for name, numbers in expected.items():
        end = ends.get(name, 0)
        bodies = [b"new %d" % number for number in numbers]
        assert found[name][end:] == [(end + n, body) for n, body in enumerate(bodies)]
    require_valid(root)


def test_rows_get_units_and_offsets_in_each_lmq(root: Path) -> None:
    before = lmqs(root)
    ends = {name: len(messages) for name, messages in before.items()}
    append(root, rows(*SOME[:3]), rows(*SOME[3:], first=3))
    check_some(root, ends)
    parents = {row["body"]: dict(row["properties"]) for row in rows_of(root)}
    assert parents[b"new 0"][OFFSETS] == "0"
    assert parents[b"new 2"][OFFSETS] == "1,0"
    assert parents[b"new 3"][OFFSETS] == f"1,{ends['%LMQ%sub_1']}"
    assert OFFSETS not in parents[b"new 1"]
    rebuild(root)


def test_offsets_go_on_after_a_flush_and_after_an_append_that_is_refused(root: Path) -> None:
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        writer.append(rows("%LMQ%a"))
        writer.flush()
        large = rows("%LMQ%a", "%LMQ%a")
        large = large.set_column(1, "body", pa.array([b"x", bytes(65536)]))
        with pytest.raises(IllegalMessageError, match="row 2,"):
            writer.append(large)
        writer.append(rows("%LMQ%a", first=1))
        writer.abandon()
        writer.append(rows("%LMQ%a", first=2))
    assert lmqs(root)["%LMQ%a"] == [(0, b"new 0"), (1, b"new 2")]
    require_valid(root)


def test_offsets_of_the_store_that_rows_were_read_from_are_replaced(root: Path) -> None:
    properties = [[(NAMES, "%LMQ%a"), (OFFSETS, "77")], [(OFFSETS, "5")]]
    append(root, rows(None, None).set_column(2, "properties", pa.array(properties, MAP)))
    parents = {row["body"]: dict(row["properties"]) for row in rows_of(root)}
    assert parents[b"new 0"][OFFSETS] == "0"
    assert parents[b"new 1"][OFFSETS] == "5"


@pytest.mark.parametrize("topic", ["%RETRY%group", "rmq_sys_x"])
def test_topics_that_a_broker_does_not_dispatch(root: Path, topic: str) -> None:
    before = lmqs(root)
    append(root, rows("%LMQ%sub_1", topic=topic))
    assert lmqs(root) == before
    require_valid(root)


def test_a_refused_row_leaves_no_gap_in_any_lmq(root: Path) -> None:
    """The rows before it in its batch name the same queues, which the writer knows already."""
    good = rows("%LMQ%a,%LMQ%b", "%LMQ%sub_1", "%LMQ%new")

    def with_last(column: str, value: Any, kind: pa.DataType | None = None) -> pa.RecordBatch:
        batch = rows("%LMQ%a,%LMQ%b", "%LMQ%sub_1,%LMQ%new", "%LMQ%b")
        values = [*batch.column(column).to_pylist()[:2], value]
        place = batch.schema.get_field_index(column)
        return batch.set_column(place, column, pa.array(values, kind))

    with rmqstore.open(root, "a", config=CONFIG) as writer:
        with rmqstore.open(root) as store:
            copied = store.scan(scan="commitlog", verbatim=True).read_all().to_batches()[0]
        writer.append(good)
        refused = {
            "begin with %LMQ%": rows("%LMQ%a,%LMQ%b", "%LMQ%new", "%LMQ%b,other"),
            "twice": rows("%LMQ%a,%LMQ%b", "%LMQ%new", "%LMQ%b,%LMQ%b"),
            "cannot name a folder": rows("%LMQ%a,%LMQ%b", "%LMQ%new", "%LMQ%b,%LMQ%/"),
            "INNER_NUM": with_last("properties", [("INNER_NUM", "1"), (NAMES, "%LMQ%a")], MAP),
            "a CommitLog file holds": with_last("body", bytes(65536)),
            "queue offset": copied,
        }
        for reason, batch in refused.items():
            with pytest.raises(IllegalMessageError, match=reason):
                writer.append(batch, verbatim=batch is copied)
            writer.append(good)
        told = set()
        for n_bytes in range(MAX_PROPERTIES_BYTES, 0, -1):
            long = with_last("properties", [(NAMES, "%LMQ%a"), ("x", "y" * n_bytes)], MAP)
            try:
                writer.append(long)
                break
            except IllegalMessageError as err:
                told.add("with the offsets in light message queues" in str(err))
        assert told == {False, True}, "too long in itself, and by the offset that it gets"
    ends = {name: len(messages) for name, messages in lmqs(root).items()}
    n = 1 + len(refused)
    for name in ("%LMQ%a", "%LMQ%b", "%LMQ%sub_1", "%LMQ%new"):
        offsets = [queue_offset for queue_offset, _ in lmqs(root)[name]]
        assert offsets == [*range(ends[name])]
        assert ends[name] >= n
    require_valid(root)


def test_a_staged_job_gives_offsets_in_lmqs(root: Path) -> None:
    ends = {name: len(messages) for name, messages in lmqs(root).items()}
    batches = rows(*SOME[:3]), rows(*SOME[3:], first=3), rows(None, first=6)
    with rmqstore.open(root, "a", config=CONFIG) as writer:
        writer.append_staged(stage(root, *batches))
    check_some(root, ends)
    assert sum(row["body"] == b"new 6" for row in rows_of(root)) == 1
    rebuild(root)


def test_a_repair_builds_the_units_that_a_crash_left_out(root: Path) -> None:
    append(root, rows(*SOME))
    queues = files_of(root, "consumequeue")
    for name in ("%LMQ%a", "%LMQ%b", "%LMQ%sub_1"):
        folder = root / "consumequeue" / name / "0"
        newest = max(folder.iterdir())
        newest.unlink() if name != "%LMQ%sub_1" else newest.write_bytes(bytes(400))
    (root / "abort").touch()
    append(root)
    assert files_of(root, "consumequeue") == queues


def test_copies_keep_their_offsets(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with rmqstore.open(root) as store:
        table = store.scan(scan="commitlog", verbatim=True).read_all()
    with rmqstore.create(copy, config=CONFIG) as writer:
        writer.append(table, verbatim=True)
    assert lmqs(copy) == lmqs(root)
    assert files_of(copy, "consumequeue") == files_of(root, "consumequeue")
    with (
        rmqstore.open(copy, "a", config=CONFIG) as writer,
        pytest.raises(IllegalMessageError, match=r"row 10: queue offset 0 of Parent-0"),
    ):
        writer.append(table, verbatim=True)


def test_a_copy_with_another_offset_in_a_lmq_is_refused(root: Path, tmp_path: Path) -> None:
    with rmqstore.open(root) as store:
        table = store.scan(scan="commitlog", verbatim=True).read_all()
    strings = [bytes(value) for value in table.column("properties").to_pylist()]
    row = max(n for n, value in enumerate(strings) if OFFSETS.encode() in value)
    head, _, tail = strings[row].partition(OFFSETS.encode() + b"\x01")
    strings[row] = head + OFFSETS.encode() + b"\x019" + tail
    place = table.schema.get_field_index("properties")
    table = table.set_column(place, table.schema.field(place), pa.array([*strings], pa.binary()))
    copy = tmp_path / "copy"
    with rmqstore.create(copy, config=CONFIG) as writer:
        with pytest.raises(IllegalMessageError, match=f"row {row + 1}: queue offset .* of %LMQ%"):
            writer.append(table.combine_chunks().to_batches()[0], verbatim=True)
        writer.append(rows("%LMQ%sub_1"))
    assert lmqs(copy) == {"%LMQ%sub_1": [(0, b"new 0")]}


def test_messages_of_batch_topics_name_no_lmq(copied: Golden) -> None:
    root = copied("batch-cq")
    conf = StoreConfig().updated(goldens.summary("batch-cq")["conf"])
    batch = rows("%LMQ%a", topic="BatchA")
    with rmqstore.open(root, "a", config=conf) as writer:
        with pytest.raises(IllegalMessageError, match="BatchA has BatchConsumeQueues"):
            writer.append(batch)
        with pytest.raises(IllegalMessageError, match="BatchA has BatchConsumeQueues"):
            writer.append_staged(stage(root, batch))
        writer.append(rows("%LMQ%a", topic="Plain"))
    assert lmqs(root) == {"%LMQ%a": [(0, b"new 0")]}
