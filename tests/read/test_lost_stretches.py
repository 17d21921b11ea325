"""Queues rebuilt from a damaged log: reads by queue report damage as reads by log do."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
import store_builder as build
import tiers
from reading import offsets, read, state
from rmqstore import CorruptRecordError, OffsetOutOfRangeError
from rmqstore.read.plan import plan
from rmqstore.read.request import parse_request
from rmqstore.read.split import Limits

Damage = Callable[[build.Store, build.Placed], None]

QUEUES = (("A", 0), ("A", 1), ("B", 0))


def flip_body(store: build.Store, at: build.Placed) -> None:
    store.put(at.physical_offset + 88, b"\xff")


def break_magic(store: build.Store, at: build.Placed) -> None:
    store.put(at.physical_offset + 4, b"XXXX")


def overstate_size(store: build.Store, at: build.Placed) -> None:
    store.put(at.physical_offset, struct.pack(">i", at.size + 7))


def overstate_size_hugely(store: build.Store, at: build.Placed) -> None:
    store.put(at.physical_offset, struct.pack(">i", 1 << 30))


def zero(store: build.Store, at: build.Placed) -> None:
    store.put(at.physical_offset, bytes(at.size))


def tear(store: build.Store, at: build.Placed) -> None:
    store.put(at.physical_offset + 90, bytes(at.size - 90))


DAMAGES = (flip_body, break_magic, overstate_size, overstate_size_hugely, zero, tear)


def misplace(store: build.Store, at: build.Placed) -> None:
    store.put(at.physical_offset + 28, struct.pack(">q", 1 << 40))


# Zeros in place of the last record are the end of a log.
HURTS = [
    (damage, row)
    for damage in (*DAMAGES, misplace)
    for row in (0, 1, 12, 44, 45, 87, 88, 89)
    if (damage, row) != (zero, 89)
]


def made(n_records: int = 90) -> build.Store:
    store = build.Store()
    for number in range(n_records):
        topic, queue_id = QUEUES[number % len(QUEUES)]
        record = build.Record(
            topic, queue_id, body=b"%d" % number * 9, store_timestamp=build.T0 + 1000 * number
        )
        store.append(record)
    return store


def keep_units(store: build.Store, kept: int) -> None:
    store.queues = {key: units[:kept] for key, units in store.queues.items()} if kept else {}


@pytest.mark.parametrize(("hurts", "kept"), tiers.spread(3, HURTS, [0, 3]))
def test_a_read_by_queue_reports_damage_as_a_read_by_log(
    tmp_path: Path, hurts: tuple[Damage, int], kept: int
) -> None:
    """``kept`` units are in the files of each queue: the queues are gone, or lag behind the log."""
    damage, row = hurts
    store = made()
    hurt = store.placed[row]
    damage(store, hurt)
    keep_units(store, kept)
    root = store.write(tmp_path / "s")
    before = state(root)
    good = [at.physical_offset for at in store.placed if at is not hurt]
    for scan in ("commitlog", "queue"):
        with rmqstore.open(root) as opened:
            with pytest.raises(rmqstore.RmqStoreError) as caught:
                read(opened, scan=scan)
            if row >= 3 * kept or scan == "commitlog":
                assert isinstance(caught.value, CorruptRecordError)
                assert caught.value.offset == hurt.physical_offset, scan
            assert offsets(read(opened, scan=scan, mode="DROPMALFORMED")) == good, scan
            rows = read(opened, scan=scan, mode="PERMISSIVE")
            assert sorted(offsets(row for row in rows if row["_corrupt_record"] is None)) == good, (
                scan
            )
            corrupt = [row["commitLogOffset"] for row in rows if row["_corrupt_record"]]
            assert hurt.physical_offset in corrupt, scan
            # whose remainder is no record either
            assert len(corrupt) == 1 or damage is overstate_size, scan
    assert state(root) == before


def test_each_queue_offset_that_damage_hides_is_a_row_of_its_own(tmp_path: Path) -> None:
    store = made()
    hurt = store.placed[10:16]
    for at in hurt:
        zero(store, at)
    keep_units(store, 0)
    corrupt = [
        row
        for row in read(store.write(tmp_path / "s"), mode="PERMISSIVE")
        if row["_corrupt_record"]
    ]
    assert sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in corrupt) == sorted(
        (str(at.record.topic), at.record.queue_id, at.record.queue_offset) for at in hurt
    )
    assert {row["commitLogOffset"] for row in corrupt} == {hurt[0].physical_offset}


@pytest.mark.parametrize("asked", [{"tags": "x"}, {"where": "topic = 'B'"}], ids=str)
def test_what_is_asked_for_does_not_hide_what_is_lost(
    tmp_path: Path, asked: dict[str, str]
) -> None:
    store = made()
    zero(store, store.placed[10])  # of topic A
    keep_units(store, 0)
    with rmqstore.open(store.write(tmp_path / "s")) as opened, pytest.raises(CorruptRecordError):
        read(opened, **asked)


@pytest.mark.parametrize("kept", [0, 1, 200])
@pytest.mark.parametrize("abort", [False, True])
def test_a_missing_file_is_data_loss_of_queues_that_are_gone_short_or_whole(
    tmp_path: Path, kept: int, *, abort: bool
) -> None:
    store = made(200)
    keep_units(store, kept)
    root = store.write(tmp_path / "s", abort=abort)
    if not kept:
        (root / "checkpoint").unlink()
    (root / "commitlog" / f"{4096:020d}").unlink()
    left = [at.physical_offset for at in store.placed if not 4096 <= at.physical_offset < 8192]
    with rmqstore.open(root) as opened:
        for scan in ("queue", "commitlog"):
            with pytest.raises(OffsetOutOfRangeError, match="fail_on_data_loss=False"):
                read(opened, scan=scan)
            assert offsets(read(opened, scan=scan, fail_on_data_loss=False)) == left


def test_a_missing_file_is_lost_to_each_read_that_it_lies_in(tmp_path: Path) -> None:
    root, config = tmp_path / "s", rmqstore.StoreConfig(mapped_file_size_commit_log=4096)
    with rmqstore.create(root, config=config) as writer:
        keys = [f"k{row}" for row in range(60)]
        writer.append(pa.table({"topic": ["T"] * 60, "keys": keys, "body": [b"x"] * 60}))
    with rmqstore.open(root) as opened:
        key = next(row["keys"] for row in read(opened) if 4096 <= row["commitLogOffset"] < 8192)
    (root / "commitlog" / f"{4096:020d}").unlink()
    request = parse_request({"columns": "commitLogOffset", "scan": "commitlog"})
    with rmqstore.open(root) as opened:
        bounded = partial(read, opened, scan="commitlog")
        assert bounded(ending_physical_offset=4096)
        for start, end in ((0, 5000), (5000, 6000), (6000, 9000)):
            with pytest.raises(OffsetOutOfRangeError):
                bounded(starting_physical_offset=start, ending_physical_offset=end)
        (whole,) = plan(opened.parts, request, Limits(4096))
        parts = [part.read(opened.parts, request) for part in whole.split(Limits(4096))]
        with pytest.raises(OffsetOutOfRangeError):
            [*chain.from_iterable(parts)]
        with pytest.raises(OffsetOutOfRangeError):
            opened.query("T", key)


def test_a_queue_whose_last_unit_has_a_wrong_size_does_not_end_before_it(tmp_path: Path) -> None:
    store = build.Store()
    early = store.append(build.Record("Early", 0))
    store.queues["Early", 0] = [(early.physical_offset, early.size + 7, 0)]
    for number in range(200):
        store.append(build.Record("A", 0, store_timestamp=build.T0 + 1000 * number))
    with rmqstore.open(store.write(tmp_path / "s", abort=True)) as opened:
        assert opened.log_end is not None
        assert opened.log_end.scanned_from > early.physical_offset
        with pytest.raises(CorruptRecordError, match=f"total size is {early.size}, not"):
            read(opened)
        rows = opened.scan(mode="PERMISSIVE").read_all().to_pylist()
    assert [row["topic"] for row in rows if row["_corrupt_record"]] == ["Early"]


def test_damage_before_the_place_where_a_recovery_begins(tmp_path: Path) -> None:
    """A queue without files is rebuilt from the whole log, so all of its damage counts."""
    store = made(200)
    hurt = store.placed[10]
    break_magic(store, hurt)
    del store.queues["B", 0]
    root = store.write(tmp_path / "s", abort=True)
    good = [at.physical_offset for at in store.placed if at is not hurt]
    with rmqstore.open(root) as opened:
        assert opened.log_end is not None
        assert opened.log_end.scanned_from > hurt.physical_offset
        with pytest.raises(CorruptRecordError) as caught:
            read(opened)
        assert caught.value.offset == hurt.physical_offset
        assert offsets(read(opened, mode="DROPMALFORMED")) == good


@pytest.mark.parametrize("damage", DAMAGES)
def test_ignoring_the_end_of_a_log_recovers_queues_after_it(tmp_path: Path, damage: Damage) -> None:
    store = made()
    hurt = store.placed[60]
    damage(store, hurt)
    keep_units(store, 0)
    root = store.write(tmp_path / "s", abort=True)
    good = [at.physical_offset for at in store.placed if at is not hurt]
    with rmqstore.open(root, ignore_log_end=True) as opened:
        with pytest.raises(CorruptRecordError) as caught:
            read(opened)
        assert caught.value.offset == hurt.physical_offset
        assert offsets(read(opened, mode="DROPMALFORMED")) == good


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_a_recovery_cut_of_a_store_that_was_closed_since_does_not_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Damage
) -> None:
    """A broker cut the log and its queues by moving their ends; whole stale records follow."""
    store = made()
    end = store.placed[81]
    damage(store, end)
    keep_units(store, 27)
    with rmqstore.open(store.write(tmp_path / "s")) as opened, caplog.at_level(logging.WARNING):
        assert offsets(read(opened)) == store.places[:81]
    warnings = [text for text in caplog.messages if "scan=commitlog" in text]
    assert len(warnings) == 1
    assert "bytes that follow" in warnings[0]


def test_a_record_out_of_line_keeps_its_place_and_is_no_end_of_its_queue(tmp_path: Path) -> None:
    """Nothing guards the queue offset of a record: a flipped bit there leaves the record whole.

    A broker puts its unit where the queue ends.
    """
    store = made()
    hurt = store.placed[12]
    store.put(hurt.physical_offset + 20, struct.pack(">q", 1 << 40))
    keep_units(store, 0)
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        assert offsets(read(opened)) == store.places  # by units that only the log has


def test_a_crashed_queue_that_lost_its_first_file_is_taken_from_the_log(tmp_path: Path) -> None:
    """A power cut loses the names of unflushed files; retention deletes those of the log first."""
    store = made()
    root = store.write(tmp_path / "s", abort=True)
    (root / "checkpoint").unlink()
    min((root / "consumequeue/A/0").iterdir()).unlink()
    with rmqstore.open(root) as opened:
        assert opened.queue_range("A", 0) == (0, 30)
        assert offsets(read(opened)) == store.places


@pytest.mark.parametrize("damage", DAMAGES)
def test_records_after_the_end_of_a_crashed_log_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Damage
) -> None:
    store = made()
    damage(store, store.placed[50])
    root = store.write(tmp_path / "s", abort=True)
    (root / "checkpoint").unlink()
    n_bytes = sum(at.size for at in store.placed[51:])
    with rmqstore.open(root) as opened, caplog.at_level(logging.WARNING):
        assert len(read(opened)) == 50
    warnings = [text for text in caplog.messages if "ignore_log_end=True" in text]
    assert len(warnings) == 1
    assert f"39 records of {n_bytes} bytes" in warnings[0]


def test_more_damage_than_is_named_one_by_one_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore.storage.recovery.queue_tails._MAX_LOST", 3)
    store = made()
    hurt = store.placed[5:85:8]
    for at in hurt:
        break_magic(store, at)
    keep_units(store, 0)
    good = [at.physical_offset for at in store.placed if at not in hurt]
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        assert offsets(read(opened, mode="DROPMALFORMED")) == good
        with pytest.raises(CorruptRecordError):
            read(opened)


@pytest.mark.parametrize("with_damage", [False, True])
@pytest.mark.parametrize("file", [0, 1, 2, None])
def test_ignoring_the_end_gives_no_fewer_messages_where_files_of_a_queue_are_gone(
    tmp_path: Path, file: int | None, with_damage: bool
) -> None:
    made = build.Store(1 << 14, 25)
    for number in range(70):
        for queue_id in (0, 1):
            made.append(build.Record(queue_id=queue_id, body=b"m%d" % number))
    if with_damage:
        made.put(made.placed[60].physical_offset + 8, b"\xff\xff")  # the CRC of T-0, 30
    root = made.write(tmp_path / "s", abort=True)
    folder = root / "consumequeue/T/1"
    for gone in folder.iterdir() if file is None else [folder / f"{file * 500:020d}"]:
        gone.unlink()
    expected = [number for number in range(70) if not (with_damage and number == 30)]
    with rmqstore.open(root, ignore_log_end=True) as opened:
        rows = opened.scan(columns=["queueId", "queueOffset"], mode="DROPMALFORMED").read_all()
    found = [row for row in rows.to_pylist() if row["queueId"] == 1]
    assert [row["queueOffset"] for row in found] == list(range(70))
    found = [row["queueOffset"] for row in rows.to_pylist() if row["queueId"] == 0]
    assert found == expected
