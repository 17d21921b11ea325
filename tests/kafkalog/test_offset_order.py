"""Base offsets, which no CRC covers, and damage at the end of a log that was closed cleanly."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafka_logs as build
import kafkalog
from kafka_reading import offsets_of, opened, read_in_windows

BATCHES = [build.batch(10 * n, [b"%d" % (10 * n + i) for i in range(10)]) for n in range(6)]


def based(batch: bytes, base_offset: int) -> bytes:
    return base_offset.to_bytes(8, "big", signed=True) + batch[8:]


@pytest.mark.parametrize("base", [-1, 0, 5, 33, 48, 2**40, 2**63 - 5])
@pytest.mark.parametrize("window", [256 << 10, 200])
def test_a_changed_base_offset_loses_one_batch(
    folder: Path, base: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in_windows(monkeypatch, window)
    build.write_segment(folder, 0, *BATCHES[:2], based(BATCHES[2], base), *BATCHES[3:])
    with pytest.raises(kafkalog.CorruptBatchError, match="not in order"):
        opened(folder).scan().count()
    assert offsets_of(opened(folder)) == [*range(20), *range(30, 60)]
    assert offsets_of(opened(folder), 45, 50) == list(range(45, 50))
    if window > 200:  # otherwise no batch beside the changed one shows that it lies outside
        assert opened(folder).scan(45, 50).count() == 5


def test_an_offset_beyond_the_next_segment(folder: Path) -> None:
    build.write_segment(folder, 0, *BATCHES[:2], based(BATCHES[2], 45))
    build.write_segment(folder, 30, *BATCHES[3:])
    assert offsets_of(opened(folder)) == [*range(20), *range(30, 60)]


@pytest.mark.parametrize("base", [0, 7, 12])
@pytest.mark.parametrize("window", [256 << 10, 100])
@pytest.mark.parametrize("is_rolled", [True, False])
def test_a_batch_that_repeats_offsets_is_named(
    folder: Path, base: int, window: int, *, is_rolled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks no offset, so nothing but its place says that it is wrong."""
    read_in_windows(monkeypatch, window)
    repeated = build.batch(base, [b"again"] * 3)
    if is_rolled:
        build.write_segment(folder, 0, *BATCHES[:3])
        build.write_segment(folder, 30, repeated, *BATCHES[3:])
    else:
        build.write_segment(folder, 0, *BATCHES[:3], repeated, *BATCHES[3:])
    with pytest.raises(kafkalog.CorruptBatchError, match=f"offset {base} is not in order"):
        opened(folder).scan().count()
    permissive = opened(folder).scan(mode="PERMISSIVE").to_arrow()
    reasons = permissive.column("_corrupt_record").to_pylist()
    assert sum(reason is not None for reason in reasons) == 1
    assert offsets_of(opened(folder)) == list(range(60))
    if window > 200:  # as above
        assert opened(folder).scan(40, 50).count() == 10


@pytest.mark.parametrize(
    ("batches", "kept"),
    [
        ([build.batch(0, [b"a"], last_offset_delta=-5), *BATCHES[1:]], range(10, 60)),
        ([*BATCHES[:5], based(BATCHES[5], 2)], range(50)),
    ],
    ids=["a negative last offset delta", "a lower base offset at the end"],
)
def test_offsets_that_cannot_be(folder: Path, batches: list[bytes], kept: range) -> None:
    build.write_segment(folder, 0, *batches)
    with pytest.raises(kafkalog.CorruptBatchError, match="not in order"):
        opened(folder).scan().count()
    assert offsets_of(opened(folder)) == list(kept)
    assert opened(folder).end_offset == kept.stop


@pytest.mark.parametrize("at", [8, 23, 70])
@pytest.mark.parametrize("n_before", [0, 2])
def test_damage_at_the_end_is_reported(folder: Path, at: int, n_before: int) -> None:
    damaged = build.changed(BATCHES[n_before], at, 0x80)
    build.write_segment(folder, 0, *BATCHES[:n_before], damaged)
    with pytest.raises(kafkalog.CorruptBatchError):
        opened(folder).scan().count()
    assert offsets_of(opened(folder)) == list(range(10 * n_before))
    if n_before:
        assert opened(folder).scan(0, 19).count() == 19


def test_a_first_batch_without_a_length(folder: Path) -> None:
    build.write_segment(folder, 0, BATCHES[0][:8] + b"\x01" + BATCHES[0][9:], BATCHES[1])
    with pytest.raises(kafkalog.CorruptBatchError):
        opened(folder).scan().count()


def test_the_last_segment_vanishes_after_it_was_read(folder: Path) -> None:
    path = build.write_segment(folder, 0, *BATCHES)
    n_rows = 0
    for batch in opened(folder).scan():
        n_rows += batch.num_rows
        path.unlink()
    assert n_rows == 60


@pytest.mark.parametrize("witness", ["recovery point", "snapshot"])
@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("n_before", [0, 1, 5])
@pytest.mark.parametrize("window", [256 << 10, 150])
def test_a_higher_base_offset_at_the_end(
    folder: Path,
    witness: str,
    *,
    is_indexed: bool,
    n_before: int,
    window: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that stops writes down where its logs end."""
    read_in_windows(monkeypatch, window)
    end = 10 * n_before + 10
    before = BATCHES[:n_before]
    path = build.write_segment(folder, 0, *before, based(BATCHES[n_before], end + 1000))
    if is_indexed:
        build.write_index(folder, 0, (end - 1, sum(map(len, before))))
    if witness == "snapshot":
        build.write_snapshot(folder, end, {})
    else:
        build.write_checkpoint(folder, "recovery-point-offset", end)
    assert opened(folder).end_offset == end
    with pytest.raises(kafkalog.CorruptBatchError, match=f"offset {end + 1000} is not in order"):
        opened(folder).scan().count()
    assert offsets_of(opened(folder)) == list(range(end - 10))
    path.write_bytes(b"".join((*before, BATCHES[n_before])))
    assert opened(folder).scan().count() == end


@pytest.mark.parametrize(
    ("point", "snapshots", "end"),
    [
        (100, (70, 100), 100), (100, (70,), 100), (0, (70, 100), 100),
        (0, (70,), 100),  # only that of the cut
        (57, (70, 100), 100),
        (80, (70,), 100), (70, (57,), 100), (70, (103,), 100), (103, (70,), 100),  # contradictions
        (103, (), 100), (70, (70,), 70), (70, (), 70), (70, (50, 55), 70), (0, (57,), 57),
        (50, (40, 57), 57),
    ],
)  # fmt: skip
def test_a_follower_that_was_cut_in_a_gap(
    folder: Path, point: int, snapshots: tuple[int, ...], end: int
) -> None:
    """A compacted topic has gaps. A cut in one leaves a snapshot there, and the log goes on."""
    build.write_segment(folder, 0, build.batch(0, [b"a"] * 50), build.batch(93, [b"b"] * 7))
    if point:
        build.write_checkpoint(folder, "recovery-point-offset", point)
    for offset in snapshots:
        build.write_snapshot(folder, offset, {})
    assert opened(folder).end_offset == end
    assert opened(folder).scan(mode="DROPMALFORMED").count() == (57 if end == 100 else 50)
