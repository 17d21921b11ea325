"""Which records read_committed gives, and where it ends."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import kafka_logs as build
import kafkalog
from kafka_logs import ABORT, COMMIT, changed, commit, marker, sent
from kafka_reading import count_crcs, opened, read_in_windows
from kafkalog.errors import CorruptBatchError
from kafkalog.scan import ScanSpec
from kafkalog.transactions import read_transactions
from rmqstore.errors import OptionError
from rmqstore.query.damage import MODES


def plain(offset: int, *values: bytes) -> bytes:
    return build.batch(offset, values)


def committed(folder: Path, *bounds: int, mode: kafkalog.Mode = "FAILFAST") -> list[bytes | None]:
    scan = opened(folder).scan(*bounds, isolation_level="read_committed", mode=mode)
    return build.values_of(scan.to_arrow())


def test_the_end_of_one_transaction_says_nothing_of_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read on beyond a range until all that began in it has ended."""
    read_in_windows(monkeypatch, 100)
    between = [plain(offset, b"x" * 50) for offset in range(3, 8)]
    content = [sent(0, 1, b"a"), sent(1, 2, b"b"), marker(2, 1, COMMIT), *between]
    build.write_segment(folder, 0, *content, marker(8, 2, COMMIT))
    assert committed(folder, 0, 2) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("batches", "stable", "given"),
    [
        pytest.param([sent(0, 2, b"x"), sent(1, 1, b"a"), marker(2, 2, COMMIT), sent(3, 1, b"b"),
                      plain(4, b"hidden")], 1, [b"x"],
                     id="nothing after an open transaction is given"),
        pytest.param([marker(0, 1, ABORT), plain(1, b"a"), marker(2, 1, COMMIT),
                      sent(3, 1, b"b"), marker(4, 1, COMMIT), marker(5, 1, ABORT)], 6, [b"a", b"b"],
                     id="markers without data do nothing"),
        pytest.param([sent(0, 1, b"a"), marker(1, 1, 9), marker(2, 1, ABORT)], 3, [],
                     id="an unknown control record ends nothing"),
    ],
)  # fmt: skip
def test_what_markers_decide(
    folder: Path, batches: list[bytes], stable: int, given: list[bytes]
) -> None:
    build.write_segment(folder, 0, *batches)
    assert opened(folder).last_stable_offset == stable
    assert committed(folder) == given
    assert opened(folder).scan(stable, isolation_level="read_committed").count() == 0


def test_the_start_bounds_the_last_stable_offset(folder: Path) -> None:
    build.write_segment(folder, 0, sent(0, 1, b"a", b"b"), plain(2, b"c"))
    build.write_checkpoint(folder, "log-start-offset", 2)
    assert opened(folder).last_stable_offset == 2
    assert committed(folder) == []


def test_a_damaged_marker_decides_nothing_by_another(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    abort = changed(marker(1, 1, ABORT))
    later = (plain(2, b"b"), sent(3, 1, b"c"), marker(4, 1, COMMIT), plain(5, b"d"))
    path = build.write_segment(folder, 0, sent(0, 1, b"a"), abort, *later)
    place = re.escape(f"{path}") + f".*{len(sent(0, 1, b'a'))}.*may have decided"
    for bounds in ((), (0, 1), (0, 3)):
        with pytest.raises(CorruptBatchError, match=place):
            committed(folder, *bounds)
    assert committed(folder, 2, 6) == [b"b", b"c", b"d"]
    assert committed(folder, mode="DROPMALFORMED") == [b"b", b"c", b"d"]
    assert f"{path}: dropped damage at 0: the records 0 to 0 of producer 1 may be" in caplog.text
    scan = opened(folder).scan(isolation_level="read_committed", mode="PERMISSIVE")
    rows = [(row["offset"], row["_corrupt_record"]) for row in scan.to_arrow().to_pylist()]
    assert [offset for offset, _ in rows] == [0, 1, 2, 3, 5]
    assert [reason is None for _, reason in rows] == [False, False, True, True, True]
    for start, expected in enumerate([b"bcd", b"bcd", b"bcd", b"cd", b"d", b"d"]):
        found = committed(folder, start, 6, mode="DROPMALFORMED")
        assert b"".join(value or b"" for value in found) == expected


def with_byte(batch: bytes, at: int, value: int) -> bytes:
    return batch[:at] + bytes([value]) + batch[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "decides"),
    [
        (with_byte(marker(2, 9, COMMIT), 50, 7), False),  # the producer
        (with_byte(marker(2, 9, COMMIT), 22, 16), False),  # not a control batch, but for its number
        (with_byte(marker(2, 9, COMMIT), 16, 1), False),  # the format
        (with_byte(marker(2, 9, COMMIT), 11, 9), False),  # the length: the chain is broken
        (with_byte(marker(2, 9, COMMIT), 7, 0), True),  # only the offset is wrong
        (with_byte(plain(2, b"plain"), 70, 9), True),
        (with_byte(sent(2, 9, b"data"), 70, 9), True),
    ],
)
def test_what_may_have_been_a_marker(folder: Path, damage: bytes, *, decides: bool) -> None:
    before = (sent(0, 1, b"a"), sent(1, 2, b"b"))
    after = (marker(3, 1, COMMIT), sent(4, 1, b"c"), marker(5, 1, COMMIT), marker(6, 2, ABORT))
    build.write_segment(folder, 0, *before, damage, *after)
    position = len(b"".join(before)) + len(damage)
    build.write_index(folder, 0, (3, position))
    build.write_segment(folder, 7, sent(7, 2, b"d"), marker(8, 2, COMMIT))
    expected = [b"a", b"c", b"d"] if decides else [b"c", b"d"]
    assert committed(folder, mode="DROPMALFORMED") == expected


@pytest.mark.parametrize("fill", ["zeros", "ones", "noise"])
@pytest.mark.parametrize("first", [17, 21, 22, 23, 43])
@pytest.mark.parametrize("after", [53, 55, 57, 60, 61, 78])
def test_a_lost_part_of_a_marker(folder: Path, first: int, after: int, fill: str) -> None:
    """Zeros say that no control batch follows, of the producer 0 and from the sequence 0 on."""
    whole = marker(2, 7, ABORT)
    before, after_it = sent(0, 7, b"x", b"x"), sent(3, 7, b"x", b"x", sequence=2)
    build.write_checkpoint(folder, "recovery-point-offset", 6)
    for seed in range(5 if fill == "noise" else 1):
        lost = {
            "zeros": bytes(after - first),
            "ones": b"\xff" * (after - first),
            "noise": random.Random(seed).randbytes(after - first),
        }[fill]
        wrong = whole[:first] + lost + whole[after:]
        build.write_segment(folder, 0, before, wrong, after_it, marker(5, 7, COMMIT))
        for mode in ("DROPMALFORMED", "PERMISSIVE"):
            scan = opened(folder).scan(isolation_level="read_committed", mode=mode)
            rows = scan.to_arrow().to_pylist()
            given = [row["offset"] for row in rows if not row.get("_corrupt_record")]
            assert given == [3, 4]


def test_a_doubt_is_kept_once_for_all_producers(folder: Path) -> None:
    n_producers = 30
    batches = [sent(number, number, b"a") for number in range(n_producers)]
    for _ in range(n_producers):
        offset = len(batches)
        batches += [changed(marker(offset, 1, ABORT)), plain(offset + 1, b"b")]
    end = len(batches)
    markers = [marker(end + number, number, COMMIT) for number in range(n_producers)]
    batches += [
        *markers, sent(end + n_producers, 5, b"c"), marker(end + n_producers + 1, 5, COMMIT),
    ]  # fmt: skip
    build.write_segment(folder, 0, *batches)
    end += n_producers + 2
    transactions = read_transactions(opened(folder).log(), 0, end, ScanSpec(mode="DROPMALFORMED"))
    assert len(transactions.uncertain) == n_producers
    assert sum(len(ends.offsets) for ends in transactions.markers.values()) == n_producers + 1
    given = committed(folder, mode="DROPMALFORMED")
    assert given == [*[b"b"] * n_producers, b"c"]


def test_a_marker_whose_offset_is_damaged_decides_where_it_lies(folder: Path) -> None:
    batches = (sent(0, 1, b"a"), marker(1, 1, ABORT), sent(2, 1, b"b"), marker(3, 1, COMMIT))
    for offset in (0, 99):
        wrong = with_byte(batches[1], 7, offset)
        build.write_segment(folder, 0, batches[0], wrong, *batches[2:], plain(4, b"c"))
        assert committed(folder, mode="DROPMALFORMED") == [b"b", b"c"]


def test_a_marker_whose_offset_is_damaged_decides_nothing_after_it(folder: Path) -> None:
    wrong = with_byte(marker(1, 1, ABORT), 7, 99)
    three = sent(2, 1, b"b", b"c", b"d")
    build.write_segment(folder, 0, sent(0, 1, b"a"), wrong, three, marker(5, 1, COMMIT))
    build.write_index(folder, 0, (0, len(sent(0, 1, b"a"))))
    for start, expected in enumerate([b"bcd", b"bcd", b"bcd", b"cd", b"d", b""]):
        found = committed(folder, start, 6, mode="DROPMALFORMED")
        assert b"".join(value or b"" for value in found) == expected


@pytest.mark.parametrize("has_next", [False, True])
def test_the_last_stable_offset_without_checksums(folder: Path, *, has_next: bool) -> None:
    wrong = with_byte(marker(2, 7, COMMIT), 17, 1)  # the CRC
    batches = [sent(0, 7, b"a", b"b"), wrong, plain(3, b"c", b"d", b"e")]
    if has_next:
        batches += [sent(6, 7, b"f"), marker(7, 7, ABORT)]
    build.write_segment(folder, 0, *batches)
    partition = opened(folder)
    for _ in range(2):
        for mode in MODES:
            scan = partition.scan(isolation_level="read_committed", mode=mode, check_crc=False)
            assert scan.to_arrow().column("offset").to_pylist() == [0, 1, 3, 4, 5]
        assert partition.stable_offset(is_strict=False, check_crcs=False) == 6 + 2 * has_next
        assert partition.last_stable_offset == 8 * has_next
        partition.refresh()


def test_damage_that_keeps_the_last_stable_offset_low_is_an_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = build.write_segment(
        folder, 0, plain(0, b"a"), sent(1, 1, b"b"), changed(marker(2, 1, COMMIT)),
        plain(3, b"c"),
    )  # fmt: skip
    with pytest.raises(CorruptBatchError, match=re.escape(str(path))):
        committed(folder)
    assert committed(folder, 0, 1) == [b"a"]
    assert committed(folder, mode="DROPMALFORMED") == [b"a"]
    caplog.clear()
    assert opened(folder).last_stable_offset == 1
    assert "a transaction may seem undecided" in caplog.text


def test_damage_after_what_is_decided_does_not_matter(folder: Path) -> None:
    batches = [sent(0, 1, b"a"), marker(1, 1, COMMIT), plain(2, b"b")]
    build.write_segment(folder, 0, *batches)
    build.write_segment(folder, 3, changed(plain(3, b"c")), plain(4, b"d"))
    assert committed(folder, 0, 3) == [b"a", b"b"]


def test_a_crash_between_data_and_marker(killed: Path) -> None:
    build.write_segment(killed, 0, plain(0, b"a"), sent(1, 1, b"b"), marker(2, 1, COMMIT)[:-2])
    assert opened(killed).last_stable_offset == 1
    assert opened(killed).end_offset == 2


@pytest.mark.parametrize(
    ("batches", "offset"),
    [
        ([(1, 5), COMMIT], 5), ([(1, 5), ABORT], None), ([(1, 5)], None),
        ([(None, 4), (1, 5), ABORT], 4), ([(1, 5), (None, 4), COMMIT], 4),
        ([(None, 4), (None, None)], None), ([(1, 5), (None, 4), (None, None), COMMIT], None),
        ([(1, 5), (None, None), COMMIT], None), ([(1, 5), (2, None), COMMIT], None),
        ([(1, 5), (None, None), (1, 6), COMMIT], 6), ([(1, 5), (None, None), (None, 3), COMMIT], 3),
        ([(1, 5), (1, 6), COMMIT, (1, 7), ABORT], 6),
    ],
)  # fmt: skip
def test_committed_offsets_of_groups(
    folder: Path, batches: list[int | tuple[int | None, int | None]], offset: int | None
) -> None:
    content = [
        marker(number, 1, entry) if isinstance(entry, int) else commit(number, entry[1], entry[0])
        for number, entry in enumerate(batches)
    ]
    build.write_segment(folder.with_name("__consumer_offsets-0"), 0, *content)
    groups = kafkalog.open(folder.parent).consumer_groups().to_pylist()
    assert [row["offset"] for row in groups] == ([] if offset is None else [offset])
    assert all((row["group"], row["topic"], row["partition"]) == ("g", "t", 0) for row in groups)


def test_a_damaged_batch_of_group_offsets(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd_key = struct.pack(">hh1s", 1, 1, b"g")
    content = [
        commit(0, 1),
        changed(commit(1, 2)),
        commit(2, 3, 1), build.batch(3, [b"v"], key=odd_key),
        marker(4, 1, COMMIT), changed(commit(5, 4)),
    ]  # fmt: skip
    path = build.write_segment(folder.with_name("__consumer_offsets-0"), 0, *content)
    logs = kafkalog.open(folder.parent)
    with pytest.raises(CorruptBatchError, match="the CRC is wrong"):
        logs.consumer_groups()
    assert logs.consumer_groups(mode="DROPMALFORMED")["offset"].to_pylist() == [3]
    positions = [sum(map(len, content[:number])) for number in (1, 3, 5)]
    assert all(f"{path}: dropped damage at {position}:" in caplog.text for position in positions)
    (group, *odd) = logs.consumer_groups(mode="PERMISSIVE").to_pylist()
    assert (group["group"], group["offset"], group["_corrupt_record"]) == ("g", 3, None)
    assert [row["group"] for row in odd] == [None] * 3
    for row, position in zip(odd, positions, strict=True):
        assert row["_corrupt_record"].startswith(f"{path}, {position}: ")
    with pytest.raises(OptionError, match="mode"):
        logs.consumer_groups(mode="OTHER")  # type: ignore[arg-type]


def test_a_snapshot_knows_an_open_transaction_whose_beginning_was_deleted(folder: Path) -> None:
    build.write_segment(folder, 2, plain(2, b"a"), plain(3, b"b"))
    path = build.write_snapshot(folder, 3, {1: 0, 2: -1})
    assert opened(folder).last_stable_offset == 2
    assert committed(folder) == []
    path.write_bytes(path.read_bytes()[:-1] + b"\7")  # its CRC is wrong now
    assert opened(folder).last_stable_offset == 4
    assert committed(folder) == [b"a", b"b"]


def test_the_log_after_a_snapshot_is_walked(folder: Path) -> None:
    build.write_segment(folder, 0, sent(0, 1, b"a"), plain(1, b"b"))
    build.write_segment(folder, 2, marker(2, 1, COMMIT), sent(3, 2, b"c"), plain(4, b"d"))
    build.write_snapshot(folder, 2, {1: 0})
    build.write_snapshot(folder, 99, {1: 0})  # after the end of the log
    assert opened(folder).last_stable_offset == 3
    assert committed(folder) == [b"a", b"b"]
    build.write_snapshot(folder, 5, {2: 3})
    assert opened(folder).last_stable_offset == 3


def test_the_last_stable_offset_is_looked_for_from_where_it_was_found(
    killed: Path, walks: list[int]
) -> None:
    first = (sent(0, 1, b"a"), sent(1, 2, b"b"), marker(2, 1, COMMIT))
    path = build.write_segment(killed, 0, *first)
    log_dirs = kafkalog.open(killed.parent)
    for content, stable, starts in (
        (first, 1, [0]),
        (first, 1, []),
        ((*first, sent(3, 1, b"c"), marker(4, 2, ABORT)), 3, [3]),
        ((*first, sent(3, 1, b"c"), marker(4, 2, ABORT), plain(5, b"d")), 3, [5]),
        ((*first, plain(3, b"cut and written again, longer")), 1, [0]),
    ):
        path.write_bytes(b"".join(content))
        log_dirs.refresh()
        assert log_dirs.partition("t", 0).last_stable_offset == stable
        assert walks == starts
        walks.clear()


@pytest.mark.parametrize(
    "read",
    [
        lambda partition: partition.stable_offset(is_strict=True),
        lambda partition: partition.scan(3, isolation_level="read_committed").to_arrow(),
    ],
)
def test_the_first_damage_is_named_that_may_hide_the_end_of_a_transaction(
    folder: Path, read: Callable[[kafkalog.Partition], object]
) -> None:
    batches = [
        sent(0, 1, b"a"), changed(sent(1, 1, b"lost, but decided")), marker(2, 1, COMMIT),
        sent(3, 2, b"b"), changed(sent(4, 2, b"c")), plain(5, b"d"),
        changed(marker(6, 2, COMMIT)), changed(plain(7, b"e")), plain(8, b"f"),
    ]  # fmt: skip
    build.write_segment(folder, 0, *batches)
    partition = opened(folder)
    assert partition.last_stable_offset == 3
    first = sum(map(len, batches[:4]))
    with pytest.raises(CorruptBatchError, match=f"position {first}:"):
        read(partition)


def test_damage_that_was_met_before_still_keeps_the_last_stable_offset_low(folder: Path) -> None:
    batches = (sent(0, 1, b"a"), changed(marker(1, 1, COMMIT)), plain(2, b"b"))
    path = build.write_segment(folder, 0, *batches)
    log_dirs = kafkalog.open(folder.parent)
    for end in (3, 4):
        partition = log_dirs.partition("t", 0)
        assert (partition.last_stable_offset, partition.end_offset) == (0, end)
        with pytest.raises(CorruptBatchError, match="may have decided"):
            partition.stable_offset(is_strict=True)
        path.write_bytes(b"".join((*batches, plain(3, b"c"))))
        log_dirs.refresh()


def test_no_checksum_is_computed_where_no_transaction_is_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.write_segment(folder, 0, *(plain(number, b"a") for number in range(9)))
    partition = opened(folder)
    assert partition.end_offset == 9
    computed = count_crcs(monkeypatch)
    assert partition.last_stable_offset == 9
    assert sum(computed) == 1  # of the last batch


def test_a_batch_whose_marker_is_damaged_is_not_given(folder: Path) -> None:
    """A snapshot says that its transaction has ended, and nothing says how."""
    build.write_segment(folder, 0, sent(0, 1, b"a"), changed(marker(1, 1, ABORT)), plain(2, b"b"))
    build.write_snapshot(folder, 3, {})
    assert opened(folder).last_stable_offset == 3
    scan = opened(folder).scan(isolation_level="read_committed", mode="DROPMALFORMED")
    assert build.values_of(scan.to_arrow()) == [b"b"]
    with pytest.raises(kafkalog.CorruptBatchError):
        committed(folder)


OFFSET_KEY = struct.pack(">hh1sh1si", 1, 1, b"g", 1, b"t", 0)
OFFSET_VALUE = struct.pack(">hqihq", 3, 5, -1, 0, build.TIME)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (build.batch(1, [OFFSET_VALUE], key=OFFSET_KEY[:9]), "offset 1: .*cut off"),
        (build.batch(1, [OFFSET_VALUE[:9]], key=OFFSET_KEY), "offset 1: .*cut off"),
        (build.batch(1, [b"\0\x09" + OFFSET_VALUE[2:]], key=OFFSET_KEY), "version 9"),
        (build.batch(1, [OFFSET_VALUE] * 3, key=OFFSET_KEY, last_offset_delta=1), "offset 3"),
        (build.batch(1, [None], attributes=build.CONTROL)[:-1], "left of a batch"),
    ],
)
def test_odd_records_of_committed_offsets_are_damage(
    folder: Path, batch: bytes, reason: str
) -> None:
    valid = commit(0, 4)
    path = build.write_segment(folder.with_name("__consumer_offsets-0"), 0, valid, batch)
    with pytest.raises(kafkalog.CorruptBatchError, match=reason) as raised:
        kafkalog.open(folder.parent).consumer_groups()
    assert (raised.value.path, raised.value.offset) == (str(path), len(valid))
