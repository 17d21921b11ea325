"""The log of a copy, given bytes in any portions; and where its records begin, which is known."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

import tiers
from following.fake_master import FILE_BYTES, content, more
from following.followers import files
from rmqstore.errors import CorruptRecordError
from rmqstore.replica import log_copy
from rmqstore.replica.log_copy import LogCopy, RecordStarts
from rmqstore.replica.state import copy_paths
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.log.walks import walk_forward
from store_builder import Store


def log_of(count: int) -> Store:
    log = Store(segment_bytes=FILE_BYTES)
    for size in (1, 100, 3000, 100):
        more(log, count, size=size)
    return log


def joined(log: Store) -> bytes:
    return b"".join(log.segments[start] for start in sorted(log.segments))[: log.end]


@contextmanager
def open_copy(root: Path) -> Iterator[LogCopy]:
    paths, disk = copy_paths(root), Disk()
    paths.commitlogs[0].mkdir(parents=True)
    with closing(disk), closing(LogCopy(disk, paths, FILE_BYTES, 0, "the log")) as copy:
        yield copy


def sync(copy: LogCopy) -> None:
    flush, disk = copy.begin_flush(copy.end), Disk()
    with closing(disk):
        flush.perform(disk)
    copy.unflushed.forget(flush.number)


def test_bytes_that_have_no_place_leave_nothing_whole_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copy, "_MAX_RECORD_BYTES", 4000)
    monkeypatch.setattr(log_copy, "_BUFFER_BYTES", 1000)
    log = log_of(2)
    data = joined(log)
    with open_copy(tmp_path / "copy") as copy:
        copy.buffer(data[:4900])
        assert copy.end == 0
        copy.buffer(data[4900:])
        assert copy.end == log.end


def test_a_blank_of_which_a_part_came_leaves_nothing(tmp_path: Path) -> None:
    """Another master may have a record there, and what followed it would look like its log."""
    log = log_of(40)
    data = bytearray(joined(log))
    end = max(at.physical_offset + at.size for at in log.placed if at.physical_offset < FILE_BYTES)
    assert end + 40 < FILE_BYTES
    data[end + 8 : FILE_BYTES] = b"\xff" * (FILE_BYTES - end - 8)
    with open_copy(tmp_path) as copy:
        copy.buffer(data[: end + 40])
        copy.write_buffer()
        copy.forget_begun()
        assert copy.end == end
        (written,) = files(tmp_path).values()
        assert written == data[:end].ljust(FILE_BYTES, b"\0")


@pytest.mark.parametrize("seed", tiers.split(range(40), 8))
def test_any_portions_give_the_same_files(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(log_copy, "_BUFFER_BYTES", dice.choice([1, 5000, 60_000]))
    monkeypatch.setattr(log_copy, "_MAX_RECORD_BYTES", 4000)
    monkeypatch.setattr(log_copy, "_LARGE_RECORD_BYTES", dice.choice([0, 200, 1 << 20]))
    log = log_of(40)
    data = memoryview(joined(log))
    with open_copy(tmp_path) as copy:
        done = 0
        while done < len(data):
            count = dice.choice([1, 7, 100, 3000, 50_000])
            copy.buffer(data[done : done + count])
            done = min(done + count, len(data))
            if dice.random() < 0.5:
                copy.write_buffer()
                assert done - 4000 < copy.end <= done or copy.end % FILE_BYTES
        copy.write_buffer()
        assert copy.end == log.end
        assert copy.last_store_timestamp == 1_700_000_000_000 + len(log.placed) - 1
        sync(copy)
    assert files(tmp_path) == content(log)


def test_what_is_valid_before_a_wrong_record_is_written(tmp_path: Path) -> None:
    log = log_of(20)
    bad = log.placed[30].physical_offset
    data = bytearray(joined(log))
    data[bad + 28 + 7] ^= 1
    with open_copy(tmp_path) as copy:
        copy.buffer(bytes(data))
        with pytest.raises(CorruptRecordError, match=f"says that it is at {bad ^ 1}"):
            copy.write_buffer()
        assert copy.end == bad
        assert copy.is_consistent
        copy.forget_begun()
        copy.buffer(joined(log)[bad:])
        copy.write_buffer()
        sync(copy)
    assert files(tmp_path) == content(log)


@pytest.mark.parametrize("most", [0, 300, 1 << 20])
def test_known_starts_are_those_of_a_walk(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copy, "_MOST", most)
    dice, log = random.Random(most), log_of(40)
    data = joined(log)
    offsets = [at.physical_offset for at in log.placed]
    with open_copy(tmp_path) as copy:
        done = 0
        while done < len(data):
            count = dice.choice([700, 3000, 9000])
            copy.buffer(data[done : done + count])
            copy.write_buffer()
            done += count
        sync(copy)
        assert (copy.starts.boundary(0, log.end) is not None) == bool(most)
        found = []
        for segment in copy.log.segments:
            end = min(segment.end, copy.end)
            first = next(at for at in offsets if at >= segment.start)
            middle = dice.choice([at for at in offsets if first < at < end])
            for low, high in ((first, middle), (middle, end)):
                walks = walk_forward(copy.log, segment, low, high)
                walked = [window.records.starts for window in walks]
                known = []
                for window in copy.starts.windows(copy.log, segment, low, high):
                    assert window.damage is None
                    known.append(window.records.starts)
                    for _, headers, whole in window.headers():
                        assert whole.all()
                        assert len(headers)
                assert np.concatenate(known).tolist() == np.concatenate(walked).tolist()
                found += (np.concatenate(known) + segment.start).tolist()
        assert found == offsets


def test_a_cut_forgets_where_records_begin(tmp_path: Path) -> None:
    log = log_of(20)
    with open_copy(tmp_path) as copy:
        copy.buffer(joined(log))
        copy.write_buffer()
        sync(copy)
        copy.cut(log.placed[10].physical_offset, "lost", tmp_path / "cut")
        assert copy.starts.boundary(0, log.end) is None


def test_many_small_runs_take_bounded_memory() -> None:
    starts = RecordStarts()
    tracemalloc.start()
    try:
        for number in range(200_000):
            starts.add(number * 100, number * 100 + 100, np.zeros(1, np.int64))
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 24 << 20
