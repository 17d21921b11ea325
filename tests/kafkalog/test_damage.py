"""Damage of a store that was closed cleanly, and files that no broker writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kafka_logs as build
import kafkalog
from kafka_batches import ZSTD, Row, batch, resealed
from kafka_reading import count_crcs, offsets_of, opened
from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError, RmqStoreError

BATCHES = [build.batch(number * 2, [b"%d" % number, b"x" * number]) for number in range(12)]
POSITIONS = [sum(map(len, BATCHES[:number])) for number in range(13)]
OFFSETS = list(range(24))


@pytest.fixture
def filled(folder: Path) -> Path:
    """Return the folder of a partition of two segments, with an index of every third batch."""
    build.write_segment(folder, 0, *BATCHES[:10])
    build.write_index(folder, 0, *[(n * 2 + 1, POSITIONS[n]) for n in range(3, 10, 3)])
    build.write_segment(folder, 20, *BATCHES[10:])
    return folder


def change(path: Path, at: int, new: bytes) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:at] + new + content[at + len(new) :])


def without(*batches: int) -> list[int]:
    return [number for number in OFFSETS if number // 2 not in batches]


def test_a_batch_with_a_wrong_crc(filled: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled / f"{0:020}.log"
    change(path, POSITIONS[5] + 63, b"\x55")
    partition = opened(filled)
    with pytest.raises(kafkalog.CorruptBatchError, match="CRC") as raised:
        partition.scan().to_arrow()
    assert (raised.value.path, raised.value.offset) == (str(path), POSITIONS[5])
    assert offsets_of(partition) == without(5)
    assert f"dropped damage at {POSITIONS[5]}" in caplog.text
    rows = partition.scan(mode="PERMISSIVE", columns="offset,value").to_arrow().to_pylist()
    damaged = [row for row in rows if row["_corrupt_record"] is not None]
    reason = f"{path}, {POSITIONS[5]}: the CRC is wrong"
    assert damaged == [{"offset": 10, "value": None, "_corrupt_record": reason}]
    assert [row["offset"] for row in rows] == [*range(11), *range(12, 24)]


def test_damage_outside_of_the_range_is_not_met(filled: Path) -> None:
    change(filled / f"{0:020}.log", POSITIONS[5] + 63, b"\x55")
    partition = opened(filled)
    assert partition.scan(12).count() == 12
    assert partition.scan(None, 10).count() == 10
    with pytest.raises(CorruptRecordError):
        partition.scan(11, 12).count()


@pytest.mark.parametrize("field", [0, 23, 57], ids=["base offset", "last offset", "count"])
@pytest.mark.parametrize("value", [b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xf0"])
@pytest.mark.parametrize("number", [0, 5, 9, 11])
def test_what_a_damaged_head_says_is_not_believed(
    filled: Path, field: int, value: bytes, number: int
) -> None:
    base = 0 if number < 10 else 20
    at = POSITIONS[number] - (POSITIONS[10] if base else 0)
    change(filled / f"{base:020}.log", at + field, value)
    # the CRC as well, for base offsets lie outside of it
    change(filled / f"{base:020}.log", at + 17, b"\1\2\3\4")
    got = offsets_of(opened(filled))
    missing = without(number)
    # the end of the log is what the last head says
    assert got == missing or (number == 11 and got == [n for n in missing if n < 22])


def test_a_broken_chain_goes_on_where_the_index_says(filled: Path) -> None:
    path = filled / f"{0:020}.log"
    change(path, POSITIONS[4] + 8, b"\x00\x00\x00\x05")
    partition = opened(filled)
    with pytest.raises(kafkalog.CorruptBatchError) as raised:
        partition.scan().to_arrow()
    assert raised.value.offset == POSITIONS[4]
    assert offsets_of(partition) == without(4, 5)
    assert offsets_of(partition, 14) == OFFSETS[14:]
    assert partition.end_offset == 24


def test_a_broken_chain_without_an_index_goes_on_in_the_next_segment(filled: Path) -> None:
    (filled / f"{0:020}.index").unlink()
    change(filled / f"{0:020}.log", POSITIONS[4] + 8, b"\x7f\xff\xff\xff")
    assert offsets_of(opened(filled)) == without(4, 5, 6, 7, 8, 9)


def test_a_missing_first_segment_moves_the_start(filled: Path) -> None:
    (filled / f"{0:020}.log").unlink()
    partition = opened(filled)
    assert partition.start_offset == 20
    assert offsets_of(partition) == OFFSETS[20:]
    with pytest.raises(OffsetOutOfRangeError, match="fail_on_data_loss=False"):
        partition.scan(3).count()
    assert partition.scan(3, fail_on_data_loss=False).count() == 4


def test_a_start_after_the_end(filled: Path) -> None:
    partition = opened(filled)
    assert partition.scan(24).count() == 0
    with pytest.raises(OffsetOutOfRangeError):
        partition.scan(25).count()
    assert partition.scan(25, fail_on_data_loss=False).count() == 0
    assert partition.scan(20, 99).count() == 4


def test_a_cut_end_is_reported_by_a_read_of_the_whole_log(filled: Path) -> None:
    path = filled / f"{20:020}.log"
    path.write_bytes(path.read_bytes()[:-1])
    partition = opened(filled)
    assert partition.end_offset == 22
    assert partition.scan(0, 21).count() == 21
    with pytest.raises(kafkalog.CorruptBatchError, match="bytes left"):
        partition.scan().count()
    assert offsets_of(partition) == OFFSETS[:22]


def test_crcs_are_not_checked_if_they_need_not_be(filled: Path) -> None:
    change(filled / f"{0:020}.log", POSITIONS[5] + 17, b"\1\2\3\4")
    assert opened(filled).scan(check_crc=False).count() == 24


def test_a_batch_that_cannot_be_decoded(filled: Path) -> None:
    """Its CRC is right, so it was written like that."""
    bad = bytearray(build.batch(10, [b"1", b"2"]))
    bad[61] = 0x7E  # the length of the first record
    build.write_segment(filled, 0, *BATCHES[:5], resealed(bytes(bad)), *BATCHES[6:10])
    (filled / f"{0:020}.index").unlink()
    partition = opened(filled)
    assert offsets_of(partition) == without(5)
    with pytest.raises(kafkalog.CorruptBatchError) as raised:
        partition.scan().count()
    assert raised.value.offset == POSITIONS[5]
    rows = partition.scan(mode="PERMISSIVE").to_arrow().to_pylist()
    assert sum(row["_corrupt_record"] is not None for row in rows) == 1


def test_an_index_that_points_to_valid_bytes_inside_a_value_is_not_followed_past_the_offset(
    filled: Path,
) -> None:
    """The batch there begins after the offset that is looked for."""
    inner = build.batch(40, [b"inner"])
    outer = build.batch(0, [inner, b"b"])
    build.write_segment(filled, 0, outer, *BATCHES[1:10])
    build.write_index(filled, 0, (3, outer.index(inner)))
    assert offsets_of(opened(filled), 4) == OFFSETS[4:]


TEXT_FILES = (
    "leader-epoch-checkpoint", "partition.metadata", "meta.properties",
    "log-start-offset-checkpoint", "recovery-point-offset-checkpoint",
)  # fmt: skip
HOSTILE = [b"", b"\0", b"\0" * 4096, b"\xff" * 4096, BATCHES[0][:30], BATCHES[0] * 3,
           BATCHES[0] + b"\0\0\0\0\0\0\0\2\x7f\xff\xff\xf0" + b"\2" * 99]  # fmt: skip


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    "content", HOSTILE, ids=lambda content: f"{len(content)}-{content[:4].hex()}"
)
def test_any_bytes_anywhere(tmp_path: Path, content: bytes, is_clean: bool) -> None:
    folder = build.make_log_dir(tmp_path / "logs", is_clean=is_clean) / "t-0"
    build.write_segment(folder, 0, content)
    for name in (".index", ".timeindex", ".txnindex", ".snapshot", ".log.swap"):
        (folder / f"{0:020}{name}").write_bytes(content)
        read_all(folder)
    for path in (folder, folder.parent):
        for name in TEXT_FILES:
            (path / name).write_bytes(content)
    read_all(folder)


def read_all(folder: Path) -> None:
    """Read a partition in every way; only errors of our own may be raised."""
    try:
        logs = kafkalog.open(folder.parent)
        partition = logs.partition("t", 0)
        _ = partition.leader_epochs, partition.topic_id
        assert partition.start_offset <= partition.last_stable_offset <= partition.end_offset
        partition.offset_for_time(build.TIME)
        for mode in ("DROPMALFORMED", "PERMISSIVE", "FAILFAST"):
            partition.scan(isolation_level="read_committed", mode=mode).count()
            partition.scan(1, fail_on_data_loss=False, mode=mode).count()
    except RmqStoreError:
        pass


@pytest.mark.parametrize(
    "name",
    [*(f"{20:020}{kind}" for kind in (".log", ".index", ".timeindex", ".log.swap")),
     "../meta.properties", "../log-start-offset-checkpoint", "../t-1"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "dangling"])
def test_names_that_are_not_files(filled: Path, name: str, kind: str) -> None:
    path = filled / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else path.with_name("missing"))
    read_all(filled)


def test_a_file_of_a_terabyte_is_not_read(filled: Path) -> None:
    for name in (".log", ".index", ".timeindex"):
        with (filled / f"{20:020}{name}").open("ab") as file:
            file.truncate(1 << 40)
    read_all(filled)


def test_a_batch_of_a_gigabyte_is_refused(filled: Path) -> None:
    path = build.write_segment(filled, 20, b"\0" * 8 + (1 << 30).to_bytes(4, "big") + b"\0" * 60)
    with path.open("ab") as file:
        file.truncate((1 << 30) + 4096)
    with pytest.raises(CorruptRecordError, match="at most"):
        opened(filled).scan().count()


@pytest.mark.parametrize("number", [0, 3, 5, 7])
def test_no_record_comes_twice_around_damage(folder: Path, number: int) -> None:
    values = [bytes(10 << 20)] * 2  # so that each batch is decoded by itself
    parts = [
        batch(2 * at, [Row(b"k", value) for value in values], attributes=ZSTD) for at in range(8)
    ]
    parts[number] = batch(2 * number, [Row(), Row()], records=b"\1" * 40, attributes=ZSTD)
    build.write_segment(folder, 0, *parts)
    partition = opened(folder)
    assert offsets_of(partition) == [at for at in range(16) if at // 2 != number]
    assert partition.scan(mode="PERMISSIVE", columns="offset").count() == 15


def test_batches_that_inflate_to_more_than_an_array_holds(folder: Path) -> None:
    one = batch(0, [Row(b"k", bytes(64 << 20))], attributes=ZSTD)
    parts = [at.to_bytes(8, "big") + one[8:] for at in range(36)]
    build.write_segment(folder, 0, *parts)
    sizes = [piece.nbytes for piece in opened(folder).scan(columns="value")]
    assert len(sizes) == 36
    assert max(sizes) < 65 << 20


TIMED = [build.batch(10 * n, [b"v"] * 10, time=build.TIME + 100 * n) for n in range(6)]


@pytest.mark.parametrize("field", [27, 35], ids=["base timestamp", "largest timestamp"])
def test_a_time_in_a_damaged_batch_is_not_believed(folder: Path, field: int) -> None:
    path = build.write_segment(folder, 0, *TIMED)
    change(path, 2 * len(TIMED[0]) + field + 5, b"\0")
    build.write_time_index(folder, 0, (build.TIME + 509, 59))
    partition = opened(folder)
    assert partition.offset_for_time(build.TIME + 100) == 10
    for time in (150, 200, 300):
        with pytest.raises(kafkalog.CorruptBatchError, match="CRC"):
            partition.offset_for_time(build.TIME + time)


def test_a_segment_without_a_time_index_is_searched_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.write_segment(folder, 0, *TIMED)
    change(path, 4 * len(TIMED[0]) + 70, b"\x55")
    partition = opened(folder)
    assert partition.end_offset == 60
    n_heads = count_crcs(monkeypatch)
    assert partition.offset_for_time(build.TIME + 205) == 25  # damage after it does not matter
    assert sum(n_heads) == 3 + 1
    for time in (310, 400, 600):
        with pytest.raises(kafkalog.CorruptBatchError, match="CRC"):
            partition.offset_for_time(build.TIME + time)


def test_a_time_index_that_was_not_closed_does_not_hide_records(folder: Path) -> None:
    build.write_segment(folder, 0, *TIMED[:3])
    build.write_segment(folder, 30, *TIMED[3:])
    build.write_time_index(folder, 0, (build.TIME + 9, 9))
    partition = opened(folder)
    found = [partition.offset_for_time(build.TIME + time) for time in (5, 105, 205, 305)]
    assert found == [5, 15, 25, 35]
