"""Queues: where they begin and end, and units that are damaged, missing or fillers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import rmqstore
import store_builder as build
from reading import column, offsets, read
from rmqstore import CorruptQueueError, OffsetOutOfRangeError
from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.storage.queue.queue import Queue, RecoveredUnits
from rmqstore.storage.queue.queue_set import RecoveredQueue

UNITS = [(100 * at, 100, at) for at in range(50)]


def _queue(folder: Path, units: list[tuple[int, int, int]], first: int = 0) -> ConsumeQueue:
    build.write_queue(folder, units, first)
    return ConsumeQueue(folder)


def _store(n_records: int = 30) -> build.Store:
    store = build.Store()
    for number in range(n_records):
        store.append(build.Record(body=b"%d" % number, store_timestamp=build.T0 + number))
    return store


@pytest.mark.parametrize("count", [0, 1, 19, 20, 21, 25, 40, 50])
@pytest.mark.parametrize("n_preallocated", [0, 35])
@pytest.mark.parametrize("first", [0, 40])
def test_the_end_follows_the_last_written_unit(
    tmp_path: Path, count: int, n_preallocated: int, first: int
) -> None:
    """It is the first queue offset of a queue without units."""
    units = [*UNITS[:count], *[build.NO_UNIT] * n_preallocated]
    assert _queue(tmp_path / "0", units, first).end() == (first + count if units else 0)


def test_a_file_that_becomes_shorter_gives_the_whole_units_that_it_still_has(
    tmp_path: Path,
) -> None:
    queue = _queue(tmp_path / "0", UNITS)
    assert queue.end() == 50
    os.truncate(tmp_path / "0" / f"{40 * 20:020d}", 5 * 20 + 7)
    assert queue.units(40, 45).physical_offsets.tolist() == [4000, 4100, 4200, 4300, 4400]
    with pytest.raises(OffsetOutOfRangeError, match="queue offset 45"):
        queue.units(40, 50)


@pytest.mark.parametrize("recovered_from", [None, 95, 110])
def test_single_units_are_those_of_ranges_and_zeros_elsewhere(
    tmp_path: Path, recovered_from: int | None
) -> None:
    build.write_queue(tmp_path / "0", UNITS, first=60)
    (tmp_path / "0" / f"{80 * 20:020d}").unlink()  # 80 to 99
    queue: Queue = ConsumeQueue(tmp_path / "0")
    if recovered_from is not None:
        units = np.array([(7000 + at, 70, -at) for at in range(8)], QUEUE_UNIT)
        queue = RecoveredQueue(queue, RecoveredUnits(recovered_from, units))
    queue_offsets = np.array([0, 59, 60, 61, 79, 80, 94, 95, 99, 100, 102, 103, 109, 110, 117, 118])
    queue_offsets = queue_offsets[queue_offsets < queue.end()]
    found = [tuple(map(int, unit)) for unit in zip(*queue.units_of(queue_offsets), strict=True)]
    assert found == [queue.unit(at) for at in queue_offsets.tolist()]
    assert 5 < len(found) - found.count((0, 0, 0)) < len(found)
    assert [len(column) for column in queue.units_of(queue_offsets[:0])] == [0, 0, 0]


def test_units_of_a_deleted_file_are_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="59"):
        _queue(tmp_path / "0", UNITS, first=60).units(59, 70)


def test_read_over_a_missing_middle_file_names_where_it_should_stand(tmp_path: Path) -> None:
    store = _store(60)
    root = store.write(tmp_path / "s")
    (root / f"consumequeue/T/0/{400:020d}").unlink()
    with rmqstore.open(root) as opened:
        with pytest.raises(CorruptQueueError, match=r"queue offset 20 should be there"):
            read(opened)
        assert len(read(opened, mode="DROPMALFORMED")) == 40


@pytest.mark.parametrize("place", [0, 1, 9, 10, 14, 18])
def test_zero_unit_in_the_middle_is_an_error_not_a_silent_end(tmp_path: Path, place: int) -> None:
    """It costs one message where damage is borne, and none where the log is read."""
    store = _store(20)
    store.queues["T", 0][place] = build.NO_UNIT
    path = tmp_path / f"s/consumequeue/T/0/{0:020d}"
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        with pytest.raises(CorruptQueueError) as caught:
            read(opened)
        assert (caught.value.path, caught.value.offset) == (str(path), place * 20)
        good = [at for at in range(20) if at != place]
        assert column(opened, "queueOffset", mode="DROPMALFORMED") == good
        found = read(opened, columns="queueOffset", mode="PERMISSIVE")
        assert [row["queueOffset"] for row in found if not row["_corrupt_record"]] == good
        assert [row["queueOffset"] for row in found if row["_corrupt_record"]] == [place]
        assert offsets(read(opened, scan="commitlog", mode="DROPMALFORMED")) == store.places


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param((-1, 99, 0), id="negative offset"),
        pytest.param((-(1 << 63), 99, 0), id="top bit"),
        pytest.param((0, 0x7FFFFFFF, 0), id="filler amid messages"),
        pytest.param((1 << 62, 99, 0), id="far beyond the log"),
        pytest.param((50, 99, 0), id="between records"),
        pytest.param((0, 98, 0), id="another record"),
        pytest.param((4090, 99, 0), id="end of a file"),
        pytest.param((4200, 1 << 30, 0), id="huge size"),
        pytest.param((100, -5, 0), id="negative size"),
    ],
)
@pytest.mark.parametrize("place", [1, 5, 10, 15, 30, 45])  # also those that a bisection looks at
@pytest.mark.parametrize("abort", [False, True])
def test_damaged_unit_is_never_a_silent_loss(
    tmp_path: Path, unit: tuple[int, int, int], place: int, *, abort: bool
) -> None:
    store = _store(60)
    store.queues["T", 0][place] = unit
    root = store.write(tmp_path / "s", abort=abort)
    never_written = unit[0] < 0 or unit[1] < 0  # as a crash may leave it: a recovery rebuilds it
    with rmqstore.open(root) as opened:
        if abort and never_written:
            assert [row["commitLogOffset"] for row in read(opened)] == store.places
            return
        with pytest.raises((rmqstore.StoreFormatError, OffsetOutOfRangeError), match=str(root)):
            read(opened)
        found = read(opened, mode="DROPMALFORMED", columns="queueOffset", fail_on_data_loss=False)
    assert [row["queueOffset"] for row in found] == [at for at in range(60) if at != place]


def test_fillers_before_the_first_message_are_not_messages(tmp_path: Path) -> None:
    store = build.Store()
    store.first_units["T", 0] = 20
    store.queues["T", 0] = [build.PRE_BLANK] * 13
    for number in range(30):
        store.append(build.Record(store_timestamp=build.T0 + number))
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        assert opened.queue_range("T", 0) == (33, 63)
        assert [row["queueOffset"] for row in read(opened)] == list(range(33, 63))
        assert opened.offset_at("T", 0, 0) == 33
        assert opened.offset_at("T", 0, build.T0 + 7, "upper") == 40


def test_queue_whose_records_are_all_deleted_is_empty_at_its_end(tmp_path: Path) -> None:
    store = build.filled(build.Record(topic=topic) for topic in ["Old"] * 5 + ["New"] * 60)
    root = store.write(tmp_path / "s")
    (root / "commitlog" / f"{0:020d}").unlink()
    with rmqstore.open(root) as opened:
        assert opened.queue_range("Old", 0) == (5, 5)
        assert opened.queues("Old")[0].first_store_timestamp is None
        assert {row["topic"] for row in read(opened)} == {"New"}


@pytest.mark.parametrize("abort", [False, True])
def test_units_beyond_the_end_of_the_log(tmp_path: Path, *, abort: bool) -> None:
    """In a store that was not closed they are not messages; in a closed one they are damage."""
    store = _store(30)
    end = store.end
    store.queues["T", 0] += [(end, 100, 0), (end + 100, 100, 0)]
    root = store.write(tmp_path / "s", abort=abort)
    with rmqstore.open(root) as opened:
        if abort:
            assert opened.queue_range("T", 0) == (0, 30)
            assert len(read(opened)) == 30
        else:
            with pytest.raises(rmqstore.CorruptRecordError, match=rf"physical offset {end}\b"):
                read(opened)
            assert len(read(opened, mode="DROPMALFORMED")) == 30
            corrupt = [row for row in read(opened, mode="PERMISSIVE") if row["_corrupt_record"]]
            places = [(row["topic"], row["queueId"], row["queueOffset"]) for row in corrupt]
            assert places == [("T", 0, 30), ("T", 0, 31)]


def test_unit_that_is_cut_is_still_the_last_one_and_its_absence_is_named(tmp_path: Path) -> None:
    build.write_queue(tmp_path / "0", UNITS[:20])
    path = tmp_path / "0" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:-7])
    assert ConsumeQueue(tmp_path / "0").end() == 20
    assert list(ConsumeQueue(tmp_path / "0").runs(0, 20)) == [(0, 19)]


def test_folders_and_files_with_other_names_are_not_read(tmp_path: Path) -> None:
    root = _store(5).write(tmp_path / "s")
    (root / "consumequeue/T/notanumber").mkdir()
    (root / "consumequeue/T/0/00000000000000000400.bak").write_bytes(b"junk")
    for name in ("backup", "99999999999999999999", "09223372036854775800"):  # of no offset
        (root / "commitlog" / name).write_bytes(bytes(4096))
    (root / "commitlog" / f"{4096:020d}").mkdir()
    with rmqstore.open(root) as opened:
        assert opened.queue_ids("T") == [0]
        assert len(read(opened)) == len(read(opened, scan="commitlog")) == 5
        assert opened.view("commitlog").read_all().num_rows == 6  # and where the log ends
        assert not opened.query("T", "none", scan_uncovered=True)
