"""Where a log ends: torn tails, stale bytes, lost files, with and without the ``abort`` file."""

from __future__ import annotations

import logging
import shutil
import struct
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
import store_builder as build
from goldens import Golden
from reading import offsets, read, rows
from rmqstore import CorruptRecordError, MessageNotFoundError, OffsetOutOfRangeError
from rmqstore.format.schema import MESSAGE
from rmqstore.inspect.verify import verify
from rmqstore.query.selection import parse_selection
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import read_queues
from rmqstore.storage.broker.broker_run import Checkpoint, read_checkpoint
from rmqstore.storage.broker.folders import find_store
from written import files_of


def _store(n_records: int = 60, *, topic: str = "T") -> build.Store:
    store = build.Store()
    for number in range(n_records):
        record = build.Record(
            topic=topic, body=b"%d" % number * 9, store_timestamp=build.T0 + 1000 * number
        )
        store.append(record)
    return store


def _tear_last(store: build.Store) -> build.Placed:
    """Zero the last record from the middle of its body on, as a crash leaves it."""
    last = store.placed[-1]
    store.put(last.physical_offset + 90, bytes(last.size - 90))
    return last


def test_torn_tail_with_abort_is_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = _store()
    last = _tear_last(store)
    root = store.write(tmp_path / "s", abort=True)
    kept = store.places[:-1]
    with rmqstore.open(root) as opened, caplog.at_level(logging.WARNING):
        assert offsets(read(opened, scan="commitlog")) == kept
        assert offsets(read(opened)) == kept
        assert opened.queue_range("T", 0) == (0, 59)
        assert opened.log_end is not None
        assert opened.log_end.physical_offset == last.physical_offset
        with pytest.raises(MessageNotFoundError):
            opened.get(last.physical_offset)
    warnings = [text for text in caplog.messages if "log ends" in text]
    assert len(warnings) == 1
    assert str(last.physical_offset) in warnings[0]
    assert str(root) in warnings[0]


@pytest.mark.parametrize("n_bytes", [0, 4096], ids=["empty", "preallocated"])
@pytest.mark.parametrize("abort", [False, True])
def test_a_next_file_without_records_is_not_damage(
    tmp_path: Path, n_bytes: int, *, abort: bool
) -> None:
    store = _store(20)
    store.segments[max(store.segments) + store.segment_bytes] = bytearray(n_bytes)
    with rmqstore.open(store.write(tmp_path / "s", abort=abort)) as opened:
        assert len(read(opened)) == len(read(opened, scan="commitlog")) == 20


def test_stale_bytes_after_the_end_of_a_closed_store_are_not_damage(tmp_path: Path) -> None:
    """A recovery cuts a log by moving its end; what follows stays until it is overwritten."""
    store = _store(10)
    stale = build.pack(build.Record(body=b"old" * 50), 3_000)
    store.put(store.end, stale[37:] + stale)
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        for mode in ("FAILFAST", "DROPMALFORMED", "PERMISSIVE"):
            assert offsets(read(opened, scan="commitlog", mode=mode)) == store.places
        assert len(read(opened)) == 10


def test_missing_first_file_is_retention_not_data_loss(tmp_path: Path) -> None:
    store = _store(120)
    root = store.write(tmp_path / "s")
    (root / "commitlog" / f"{0:020d}").unlink()
    left = [at for at in store.placed if at.physical_offset >= 4096]
    with rmqstore.open(root) as opened:
        assert opened.queue_range("T", 0) == (left[0].record.queue_offset, 120)
        for scan in ("queue", "commitlog"):
            assert offsets(read(opened, scan=scan)) == [at.physical_offset for at in left]
        first = {"starting_offsets": {"T": {"0": 0}}}
        with pytest.raises(OffsetOutOfRangeError, match=r"starting_offsets.*_on_data_loss=False"):
            read(opened, **first)
        found = read(opened, **first, fail_on_data_loss=False)
        assert offsets(found) == [at.physical_offset for at in left]
        with pytest.raises(OffsetOutOfRangeError):
            opened.get(0)


def test_log_file_deleted_while_read_is_data_loss(tmp_path: Path) -> None:
    store = _store(120)
    root = store.write(tmp_path / "s")
    left = [at.physical_offset for at in store.placed if at.physical_offset >= 4096]
    for scan in ("queue", "commitlog"):
        path = root / "commitlog" / f"{0:020d}"
        data = path.read_bytes()
        with rmqstore.open(root) as opened:
            readers = [opened.scan(scan=scan), opened.scan(scan=scan, fail_on_data_loss=False)]
            path.unlink()
            with pytest.raises(OffsetOutOfRangeError, match="deleted"):
                readers[0].read_all()
            assert readers[1].read_all()["commitLogOffset"].to_pylist() == left
        path.write_bytes(data)


def test_file_deleted_under_a_mapping_is_still_read(tmp_path: Path) -> None:
    store = _store(60)
    root = store.write(tmp_path / "s")
    with rmqstore.open(root) as opened:
        read(opened, scan="commitlog")
        (root / "commitlog" / f"{0:020d}").unlink()
        assert len(read(opened)) == 60


def test_queue_file_deleted_after_planning_is_data_loss(tmp_path: Path) -> None:
    store = _store(60)
    root = store.write(tmp_path / "s")
    selection = parse_selection()
    for fail_on_data_loss in (True, False):
        with rmqstore.open(root) as opened:
            spec = ReadSpec(MESSAGE, fail_on_data_loss=fail_on_data_loss)
            plan = [*opened.parts.ranges.resolve(selection, spec)]
            opened.refresh()
            first = min((root / "consumequeue/T/0").iterdir())
            data, kept = first.read_bytes(), len(first.read_bytes()) // 20
            # as when so many others were read meanwhile that the file is not open any more
            opened.parts.queues._files.close()
            first.unlink()
            if fail_on_data_loss:
                with pytest.raises(OffsetOutOfRangeError, match="fail_on_data_loss=False"):
                    list(read_queues(opened.parts, plan, spec))
            else:
                found = rows(read_queues(opened.parts, plan, spec))
                assert [row["queueOffset"] for row in found] == list(range(kept, 60))
        first.write_bytes(data)


def test_queue_file_deleted_before_planning_is_as_if_it_had_not_been_there(tmp_path: Path) -> None:
    root = _store(60).write(tmp_path / "s")
    with rmqstore.open(root) as opened:
        opened.parts.queues.open("T", 0)
        first = min((root / "consumequeue/T/0").iterdir())
        kept = len(first.read_bytes()) // 20
        first.unlink()
        assert opened.queue_range("T", 0) == (kept, 60)
        assert [row["queueOffset"] for row in read(opened)] == list(range(kept, 60))


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 20, 59])
def test_units_that_queues_lack_are_taken_from_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: int, *, abort: bool
) -> None:
    store = _store(60)
    if kept:
        store.queues["T", 0] = store.queues["T", 0][:kept]
    else:
        store.queues.clear()
    root = store.write(tmp_path / "s", abort=abort)
    before = files_of(root)
    with rmqstore.open(root) as opened, caplog.at_level(logging.WARNING):
        assert [row["commitLogOffset"] for row in read(opened)] == store.places
        assert opened.queue_range("T", 0) == (0, 60)
        assert [info.max_offset for info in opened.queues("T")] == [60]
        late = read(opened, starting_offsets={"T": {0: 40}})
        assert [row["queueOffset"] for row in late] == list(range(40, 60))
    assert any(f"{60 - kept} unit" in text for text in caplog.messages)
    assert files_of(root) == before


def test_a_queue_whose_records_do_not_follow_on_it_is_read_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """5.3.3 assigns an offset twice after a loss: the first of the two records is in no queue."""
    store = _store(30)
    store.append(build.Record(topic="T", queue_offset=29), queued=False)
    with (
        rmqstore.open(store.write(tmp_path / "s", abort=True)) as opened,
        caplog.at_level(logging.WARNING),
    ):
        assert [row["queueOffset"] for row in read(opened)] == list(range(30))
    assert any("do not follow" in text for text in caplog.messages)


@pytest.mark.parametrize("n_bytes", [0, 7, 24, 39, 47])
def test_short_checkpoint_counts_as_zeros(tmp_path: Path, n_bytes: int) -> None:
    full = struct.pack(">6q", 5000, 6000, 7000, 8000, 9000, 10_000)
    paths = find_store(build.Store().write(tmp_path))
    paths.checkpoint.write_bytes(full[:n_bytes])
    expected = [5000, 6000, 7000, 8000, 9000][: n_bytes // 8]
    assert list(read_checkpoint(paths))[: len(expected)] == expected
    paths.checkpoint.unlink()
    assert read_checkpoint(paths) == Checkpoint(0, 0, 0, 0, 0, 0)
    assert Checkpoint(5000, 6000).min_timestamp == 2000
    assert Checkpoint(5000, 10).min_timestamp == 0


@pytest.mark.parametrize("hurt", range(0, 60, 7))
def test_damaged_record_does_not_spoil_the_search_for_a_time(tmp_path: Path, hurt: int) -> None:
    """The search may meet the damaged record; modes that tolerate damage then search around it."""
    store = _store()
    store.put(store.placed[hurt].physical_offset + 4, b"XXXX")
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        for bound in range(0, 61, 5):
            at = build.T0 + 1000 * bound
            expected = [row for row in range(60) if row != hurt]
            late = read(opened, mode="DROPMALFORMED", starting_timestamp=at)
            assert [row["queueOffset"] for row in late] == [row for row in expected if row >= bound]
            early = read(opened, mode="DROPMALFORMED", ending_timestamp=at)
            assert [row["queueOffset"] for row in early] == [row for row in expected if row < bound]


def test_damaged_record_spoils_no_look_at_the_queues(tmp_path: Path) -> None:
    """A queue's times come from its first and last record; damage there is an error with a path."""
    store = _store()
    store.put(store.placed[0].physical_offset + 4, b"XXXX")
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        assert opened.queue_range("T", 0) == (0, 60)
        with pytest.raises(CorruptRecordError) as caught:
            opened.queues("T")
        assert caught.value.offset == 0


@pytest.mark.parametrize("abort", [False, True])
def test_a_deleted_topic_does_not_come_back_from_the_log(tmp_path: Path, *, abort: bool) -> None:
    store = _store(20, topic="Deleted")
    for _ in range(20):
        store.append(build.Record(topic="T"))
    del store.queues["Deleted", 0]
    store.queues["T", 0] = store.queues["T", 0][:10]
    root = store.write(tmp_path / "s", abort=abort)
    build.write_config(root, topics=["T"])
    with rmqstore.open(root) as opened:
        assert opened.topics() == ["T"]
        assert len(read(opened)) == 20
        assert len(read(opened, scan="commitlog", subscribe="Deleted")) == 20


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("live", "consumequeue/LivePlain/1"),
        ("lmq", "consumequeue/%LMQ%sub_0"),
        ("batch-cq", "batchconsumequeue/BatchA"),
        ("batch-cq", "batchconsumequeue/BatchB/1"),
        ("live", "consumequeue/LivePlain/1/*"),
    ],
)
def test_a_queue_that_lost_its_folder_or_files_is_not_taken_for_deleted(
    copied: Golden, name: str, lost: str
) -> None:
    root = copied(name)
    with rmqstore.open(root) as opened:
        topics, found = opened.topics(), read(opened, include_system_topics=True)
    for path in root.glob(lost):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    with rmqstore.open(root) as opened:
        assert opened.topics() == topics
        assert read(opened, include_system_topics=True) == found
    topic = "Parent" if name == "lmq" else lost.split("/")[1]
    with rmqstore.open(root, mode="a") as writer:
        writer.append(pa.table({"topic": [topic], "body": [b"next"]}))
    with rmqstore.open(root) as opened:
        assert len(read(opened, include_system_topics=True)) == len(found) + 1
        assert list(verify(opened)) == []


def test_a_queue_that_lacks_too_much_refuses_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _store(60, topic="Long")
    for _ in range(20):
        store.append(build.Record(topic="T"))
    store.queues.clear()
    root = store.write(tmp_path / "s", abort=True)
    monkeypatch.setattr("rmqstore.storage.recovery.queue_tails._MAX_UNITS", 50)
    with rmqstore.open(root) as opened:
        assert opened.topics() == ["Long", "T"]
        assert len(read(opened, subscribe="T")) == 20
        with pytest.raises(rmqstore.RmqStoreError, match=r"Long-0.*scan=commitlog.*rebuild"):
            read(opened, subscribe="Long")


@pytest.mark.parametrize("forged", [False, True])
def test_messages_that_stand_in_the_blank_of_a_file_are_cut_off(
    tmp_path: Path, *, forged: bool
) -> None:
    old, new = _store(), _store(20)
    body_at = new.end + 88
    # A body is no proof of where a file ends, even if it holds what would be a blank.
    new.append(
        build.Record(
            topic="B", body=build.pack_blank(new.segment_bytes - body_at) if forged else b"x" * 8
        )
    )
    for size in (8, 2000):
        new.append(build.Record(topic="B", body=b"x" * size))
    last, following = new.placed[-2:]
    blank = last.physical_offset + last.size
    assert following.physical_offset == new.segment_bytes, "a blank closes the file"
    new.segments[0][blank + 8 :] = old.segments[0][blank + 8 :]
    new.queues["T", 0] += old.queues["T", 0][20:36]
    with rmqstore.open(new.write(tmp_path / "s", abort=True)) as opened:
        assert opened.queue_range("T", 0) == (0, 20)
        assert offsets(read(opened, subscribe="T")) == new.places[:20]
        assert offsets(read(opened, subscribe="B")) == new.places[20:]
