"""Where a log ends, whether its broker was stopped cleanly or not; and interrupted cleanings."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from pathlib import Path

import pytest

import kafka_logs as build
import kafkalog
from kafka_logs import changed
from kafka_reading import opened
from kafkalog.storage import recovery
from kafkalog.storage.recovery import Cut
from kafkalog.storage.segments import Segment
from kafkalog.storage.windows import Window
from rmqstore.errors import CorruptRecordError
from rmqstore.storage.files.storage import Storage

ONE = build.batch(0, [b"a", b"b"])
TWO = build.batch(2, [b"c"])
THREE = build.batch(3, [b"d"])
LATER = build.batch(4, [b"e"])


@pytest.mark.parametrize(
    "tail",
    [
        TWO[:-2], TWO[:17], TWO[:10], b"\0", b"\0" * 5000, changed(TWO),
        changed(TWO, 30), b"\xff" * 300, TWO[:20] + b"\0" * 500,
        TWO[:8] + b"\x7f\xff\xff\xff" + TWO[12:], TWO[:8] + b"\x80\0\0\0" + TWO[12:],
        TWO[:8] + b"\0\0\0\x0e" + TWO[12:],
    ],
    ids=lambda tail: f"{len(tail)} bytes, {tail[:12].hex()}",
)  # fmt: skip
def test_a_killed_log_ends_at_the_first_bad_batch(killed: Path, tail: bytes) -> None:
    first = build.write_segment(killed, 0, ONE, tail, THREE)
    later = build.write_segment(killed, 4, LATER)
    partition = opened(killed)
    assert partition.end_offset == 2
    assert build.values_of(partition.scan().to_arrow()) == [b"a", b"b"]
    assert isinstance(partition.recovery, Cut)
    reason = partition.recovery.reason
    assert partition.recovery == Cut(str(first), len(ONE), reason, (str(later),))


def test_only_segments_from_the_recovery_point_on_are_recovered(killed: Path) -> None:
    build.write_segment(killed, 0, ONE, changed(TWO, 68), THREE)
    build.write_segment(killed, 4, LATER)
    build.write_checkpoint(killed, "recovery-point-offset", 3)
    assert opened(killed).end_offset == 2
    build.write_checkpoint(killed, "recovery-point-offset", 4)
    partition = opened(killed)
    assert partition.end_offset == 5
    with pytest.raises(CorruptRecordError) as raised:
        partition.scan().to_arrow()
    assert raised.value.offset == len(ONE)
    rows = partition.scan(mode="DROPMALFORMED").to_arrow()
    assert build.values_of(rows) == [b"a", b"b", b"d", b"e"]


def test_a_recovered_log_that_ends_before_its_start_is_empty(
    killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build.write_segment(killed, 0, ONE, b"torn")
    build.write_checkpoint(killed, "log-start-offset", 9)
    partition = opened(killed)
    assert (partition.start_offset, partition.end_offset) == (9, 9)
    assert "ends at 2, before its start at 9" in caplog.text
    assert partition.scan().count() == 0
    assert partition.last_stable_offset == 9


MERGED = build.batch(0, [b"a"], last_offset_delta=2)


@pytest.mark.parametrize(
    ("segments", "end", "values"),
    [
        pytest.param([(0, "", ONE), (7, "", b"")], 7, b"ab", id="an empty active segment"),
        pytest.param([(0, "", build.batch(0, [b"a"], last_offset_delta=5)
                       + build.batch(6, [], last_offset_delta=3))], 10, b"a",
                     id="a batch whose last records a compaction removed, and one without any"),
        pytest.param([(0, "", ONE + TWO), (0, ".cleaned", TWO), (0, ".deleted", TWO),
                      (5, ".deleted", TWO)], 3, b"abc", id="files of the cleaner"),
        pytest.param([(0, "", ONE), (2, "", TWO), (3, "", THREE), (0, ".swap", MERGED)], 4, b"ad",
                     id="a finished cleaning replaces what it was made from"),
        pytest.param([(0, "", ONE + TWO), (2, ".swap", TWO), (0, ".cleaned", ONE)], 3, b"abc",
                     id="the swap files of an unfinished split"),
    ],
)  # fmt: skip
def test_the_segments_of_a_log_that_was_closed(
    folder: Path, segments: list[tuple[int, str, bytes]], end: int, values: bytes
) -> None:
    for base, suffix, content in segments:
        build.write_segment(folder, base, content, suffix=suffix)
    partition = opened(folder)
    assert (partition.end_offset, partition.recovery) == (end, None)
    assert b"".join(filter(None, build.values_of(partition.scan().to_arrow()))) == values


def test_other_files_are_not_segments(folder: Path) -> None:
    build.write_segment(folder, 0, ONE)
    for name in ("a.log", ".log", "-5.log", "1.x.log", "99999999999999999999.log", "5.logs"):
        (folder / name).write_bytes(TWO)
    (folder / "00000000000000000007.log").mkdir()
    assert opened(folder).end_offset == 2


def looked_again(partition: kafkalog.Partition) -> tuple[int, Cut | None]:
    partition.refresh()
    return partition.end_offset, partition.recovery


def test_a_later_look_goes_on_from_the_end_that_was_found(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.write_segment(killed, 0, ONE)
    partition = opened(killed)
    assert partition.end_offset == 2
    walked: list[tuple[str, int]] = []
    walk = recovery.walk_segment

    def counting(storage: Storage, segment: Segment, position: int = 0) -> Generator[Window]:
        walked.append((Path(segment.path).name, position))
        return walk(storage, segment, position)

    monkeypatch.setattr(recovery, "walk_segment", counting)
    with path.open("ab") as file:
        file.write(TWO + THREE)
    build.write_segment(killed, 4, LATER[:-1])
    end, cut = looked_again(partition)
    assert end == 4
    assert cut is not None
    assert Path(cut.path).name == f"{4:020}.log"
    assert {position for name, position in walked if name == path.name} == {len(ONE)}
    build.write_segment(killed, 4, LATER)
    assert looked_again(partition) == (5, None)
    assert looked_again(partition) == (5, None)


@pytest.mark.parametrize(
    ("content", "end"),
    [
        ((ONE,), 2),  # cut
        ((), 0),
        ((ONE, build.batch(2, [b"x"] * 9)), 11),  # cut and written again
        ((build.batch(0, [b"other"] * 40),), 40),
        ((ONE, TWO, THREE, b"\xff" * 100), 4),
        ((ONE, TWO, THREE, ONE), 2),  # offsets that fall
    ],
)
def test_a_log_that_was_cut_meanwhile_is_walked_from_its_start(
    killed: Path, content: tuple[bytes, ...], end: int
) -> None:
    build.write_segment(killed, 0, ONE, TWO, THREE)
    partition = opened(killed)
    assert partition.end_offset == 4
    build.write_segment(killed, 0, *content)
    found = looked_again(partition)
    assert found == (opened(killed).end_offset, opened(killed).recovery)
    assert found[0] == end


def test_another_process_takes_the_mark(killed: Path) -> None:
    build.write_segment(killed, 0, ONE, TWO)
    build.write_segment(killed, 3, THREE)
    first = opened(killed)
    assert first.end_offset == 4
    other = opened(killed)
    other.resume(pickle.loads(pickle.dumps(first.recovered_end)))
    assert other.log() == first.log()
    (killed / f"{3:020}.log").unlink()
    gone = opened(killed)
    gone.resume(first.recovered_end)
    assert gone.end_offset == 3


def test_a_broker_that_starts_again_after_a_clean_stop(folder: Path) -> None:
    """What was written before the stop has later times than what is written after it."""
    early, late = build.TIME, build.TIME + 1000
    first = build.batch(0, [b"a", b"b"], time=late)
    build.write_segment(folder, 0, first)
    log_dirs = kafkalog.open(folder.parent)
    partition = log_dirs.partition("t", 0)
    assert (partition.end_offset, partition.offset_for_time(late)) == (2, 0)
    assert partition.recovered_end is None
    (folder.parent / ".kafka_cleanshutdown").unlink()
    build.write_segment(folder, 0, first, build.batch(2, [b"c"], time=early))
    log_dirs.refresh()
    partition = log_dirs.partition("t", 0)
    assert (partition.end_offset, partition.offset_for_time(late)) == (3, 0)
