"""Logs that changed between two looks: what the first one found must not outlive what it walked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import kafka_logs as build
import kafkalog
import tiers
from kafka_logs import COMMIT, marker

N = 5  # records of a batch


def plain(offset: int) -> bytes:
    return build.batch(offset, [b"a"] * N)


def sent(offset: int) -> bytes:
    """Return a batch of a transaction that is as long as a plain one."""
    return build.sent(offset, 7, *[b"x"] * N, sequence=offset)


def stable(log_dirs: kafkalog.LogDirs) -> int:
    log_dirs.refresh()
    return log_dirs.partition("t", 0).last_stable_offset


@pytest.mark.parametrize(
    ("before", "after", "offset"),
    [
        ([plain(5)], [sent(5), sent(10)], 5),
        ([plain(5)], [sent(5)], 5),
        ([plain(5), plain(10)], [plain(5), sent(10)], 10),
        ([sent(5)], [plain(5)], 10),
        ([sent(5)], [plain(5), plain(10)], 15),
        ([sent(5), sent(10)], [plain(5), plain(10), sent(15)], 15),
    ],
)
@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_follower_whose_log_was_cut_and_written_again_with_batches_of_the_same_size(
    killed: Path, before: list[bytes], after: list[bytes], offset: int, *, is_rolled: bool
) -> None:
    assert len(plain(5)) == len(sent(5))
    build.write_segment(killed, 0, plain(0), *before)
    if is_rolled:
        build.write_segment(killed, N * (1 + len(before)))
    log_dirs = kafkalog.open(killed.parent)
    stable(log_dirs)
    build.write_segment(killed, 0, plain(0), *after)
    if is_rolled:
        (killed / f"{N * (1 + len(before)):020}.log").unlink()
        build.write_segment(killed, N * (1 + len(after)))
    assert stable(log_dirs) == offset
    assert stable(kafkalog.open(killed.parent)) == offset


DATA = build.sent(0, 7, b"a", b"a")
END = marker(2, 7, COMMIT)
AFTER = build.batch(3, [b"c"] * 3)


def values(log_dirs: kafkalog.LogDirs) -> list[bytes | None]:
    scan = log_dirs.partition("t", 0).scan(isolation_level="read_committed", mode="FAILFAST")
    return build.values_of(scan.to_arrow())


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([({0: DATA, 3: AFTER}, 0), ({2: END}, 6)], id="lacks a segment for a while"),
        pytest.param([({3: AFTER}, 6), ({0: DATA}, 0), ({2: END}, 6)],
                     id="has its first segments last"),
        pytest.param([({0: DATA + bytes(len(END)) + AFTER}, 0), ({0: DATA + END + AFTER}, 6)],
                     id="has zeros before the bytes"),
        pytest.param([({0: DATA + END[:-1] + b"\x55" + AFTER}, 0), ({0: DATA + END + AFTER}, 6)],
                     id="has another CRC before the bytes"),
        pytest.param([({0: DATA + END[:40], 3: AFTER}, 0), ({0: DATA + END}, 6)],
                     id="has a part of a segment for a while"),
    ],
)  # fmt: skip
def test_a_copy_is_complete_in_the_end(
    folder: Path, steps: list[tuple[dict[int, bytes], int]]
) -> None:
    log_dirs = None
    for written, offset in steps:
        for base, content in written.items():
            build.write_segment(folder, base, content)
        log_dirs = log_dirs or kafkalog.open(folder.parent)
        assert stable(log_dirs) == offset
    assert log_dirs is not None
    assert values(log_dirs) == [b"a"] * 2 + [b"c"] * 3


def test_what_retention_deletes_is_not_walked_again(killed: Path, walks: list[int]) -> None:
    for base in (0, 5, 10):
        build.write_segment(killed, base, plain(base))
    log_dirs = kafkalog.open(killed.parent)
    assert stable(log_dirs) == 15
    (killed / f"{0:020}.log").unlink()
    build.write_segment(killed, 10, plain(10), sent(15))
    assert stable(log_dirs) == 15
    build.write_segment(killed, 20, plain(20))
    assert stable(log_dirs) == 15
    assert stable(log_dirs) == 15
    assert walks == [0, 15, 20]


def test_what_changes_before_a_producer_snapshot_does_not_matter(
    killed: Path, walks: list[int]
) -> None:
    for base in (0, 5, 10):
        build.write_segment(killed, base, plain(base))
    build.write_snapshot(killed, 10, {})
    build.write_checkpoint(killed, "recovery-point-offset", 10)
    log_dirs = kafkalog.open(killed.parent)
    assert stable(log_dirs) == 15
    build.write_segment(killed, 0, build.batch(0, [b"compacted"], last_offset_delta=4))
    build.write_segment(killed, 10, plain(10), sent(15))
    assert stable(log_dirs) == 15
    assert walks == [10, 15]


def test_the_snapshot_of_a_new_segment_is_taken_up(killed: Path, walks: list[int]) -> None:
    build.write_segment(killed, 0, plain(0))
    log_dirs = kafkalog.open(killed.parent)
    assert stable(log_dirs) == 5
    build.write_segment(killed, 0, plain(0), sent(5))
    build.write_segment(killed, 10, plain(10))
    build.write_snapshot(killed, 10, {7: 5})
    build.write_checkpoint(killed, "recovery-point-offset", 10)
    assert stable(log_dirs) == 5
    build.write_segment(killed, 0, build.batch(0, [b"compacted"], last_offset_delta=9))
    build.write_segment(killed, 10, plain(10), marker(15, 7, COMMIT))
    assert stable(log_dirs) == 16
    assert walks == [0, 10, 15]


def test_largest_timestamps_are_those_of_the_log_as_it_is(killed: Path) -> None:
    late = build.TIME + 1000
    build.write_segment(killed, 0, plain(0), plain(5))
    log_dirs = kafkalog.open(killed.parent)
    partition = log_dirs.partition("t", 0)
    assert partition.offset_for_time(late) is None
    build.write_segment(killed, 0, plain(0), build.batch(5, [b"b"] * N, time=late))
    log_dirs.refresh()
    partition = log_dirs.partition("t", 0)
    assert (partition.end_offset, partition.offset_for_time(late)) == (10, 5)


def test_a_segment_that_a_copy_lacked_ends_the_log_if_it_is_damaged(killed: Path) -> None:
    for base in (0, 10):
        build.write_segment(killed, base, plain(base))
    log_dirs = kafkalog.open(killed.parent)
    assert log_dirs.partition("t", 0).end_offset == 15
    other = kafkalog.open(killed.parent).partition("t", 0)
    other.resume(log_dirs.partition("t", 0).recovered_end)
    path = build.write_segment(killed, 5, plain(5)[:-1] + b"\x55")
    log_dirs.refresh()
    partition = log_dirs.partition("t", 0)
    assert partition.end_offset == other.end_offset == 5
    assert partition.recovery is not None
    assert partition.recovery.path == str(path)
    build.write_segment(killed, 5, plain(5))
    log_dirs.refresh()
    assert log_dirs.partition("t", 0).end_offset == 15


def test_segments_before_the_recovery_point_are_not_recovered_any_longer(killed: Path) -> None:
    for base in (0, 5):
        build.write_segment(killed, base, plain(base))
    log_dirs = kafkalog.open(killed.parent)
    assert set(log_dirs.partition("t", 0).log().largest_timestamps) == {0, 5}
    build.write_checkpoint(killed, "recovery-point-offset", 5)
    log_dirs.refresh()
    log = log_dirs.partition("t", 0).log()
    assert set(log.largest_timestamps) == {5}
    assert log == kafkalog.open(killed.parent).partition("t", 0).log()


class ChangingLog:
    """A log that changes as those of followers and of copies do; all data batches have one size."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._random = folder, random.Random(seed)
        self._segments: dict[int, list[bytes]] = {0: []}
        self._hidden: set[int] = set()
        self._is_cut = False  # within the last batch of the first segment
        self._end = self._n_written = self._epoch = 0

    def change(self) -> None:
        for _ in range(self._random.randint(1, 4)):
            self._random.choice([self._append, self._append, self._cut, self._roll, self._hide])()
        for path in self._folder.glob("*.log"):
            path.unlink()
        for base, batches in self._segments.items():
            if base not in self._hidden:
                content = b"".join(batches)
                is_cut = self._is_cut and base == 0
                build.write_segment(self._folder, base, content[:-3] if is_cut else content)
        clean = self._folder.parent / ".kafka_cleanshutdown"
        clean.unlink(missing_ok=True)
        if self._random.random() < 0.3:
            clean.touch()

    def _append(self) -> None:
        self._n_written += 1
        value = b"%08d" % self._n_written
        kind = self._random.choice(["plain", "sent", "end"])
        producer = self._random.randint(1, 2)
        time = build.TIME + self._random.randint(0, 9)
        if kind == "plain":
            batch = build.batch(self._end, [value], time=time)
        elif kind == "sent":
            batch = build.sent(self._end, producer, value, time=time)
        else:
            batch = marker(self._end, producer, COMMIT)
        epoch = self._epoch.to_bytes(4, "big")
        self._segments[max(self._segments)].append(batch[:12] + epoch + batch[16:])
        self._end += 1

    def _cut(self) -> None:
        """Cut some batches off and write those of another leader, perhaps as many."""
        self._epoch += 1
        n = self._random.randint(1, 4)
        for _ in range(n):
            last = max(self._segments)
            if self._segments[last]:
                self._segments[last].pop()
                self._end -= 1
            elif last:
                del self._segments[last]
        for _ in range(self._random.choice([n, n, n + 1, 0])):
            self._append()

    def _roll(self) -> None:
        self._segments.setdefault(self._end, [])

    def _hide(self) -> None:
        self._is_cut = self._random.random() < 0.3
        self._hidden = {
            base
            for base in self._segments
            if 0 < base < max(self._segments) and self._random.random() < 0.2
        }


@pytest.mark.parametrize("seed", tiers.seeds(20))
def test_a_later_look_finds_what_the_first_one_would(killed: Path, seed: int) -> None:
    killed.mkdir()
    log = ChangingLog(killed, seed)
    log.change()
    log_dirs = kafkalog.open(killed.parent)

    def found(partition: kafkalog.Partition) -> tuple[object, ...]:
        times = [partition.offset_for_time(build.TIME + ms) for ms in range(10)]
        return partition.end_offset, partition.last_stable_offset, partition.recovery, times

    for _ in range(30):
        expected = found(kafkalog.open(killed.parent).partition("t", 0))
        assert found(log_dirs.partition("t", 0)) == expected
        log.change()
        log_dirs.refresh()
