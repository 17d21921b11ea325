"""The walks that all readers share, on logs built by hand: over damage, and to the last records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import store_builder as build
import tiers
from rmqstore.format.columns.walk import StopKind
from rmqstore.storage.log import walks
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import Window, next_record, walk_back, walk_forward, window_at


def _log(store: build.Store, folder: Path) -> CommitLog:
    return CommitLog([store.write(folder / "s") / "commitlog"])


def _store(n_records: int, **options: int) -> build.Store:
    store = build.Store(**options)
    for number in range(n_records):
        store.append(build.Record(body=b"%d" % number * 9))
    return store


def _places(store: build.Store, log: CommitLog) -> list[list[int]]:
    """Return the physical offsets of records, file by file."""
    return [
        [at for at in store.places if segment.start <= at < segment.end] for segment in log.segments
    ]


def _starts(window: Window) -> list[int]:
    return (window.segment.start + window.records.starts).tolist()


def test_a_file_is_walked_up_to_its_blank(tmp_path: Path) -> None:
    store = _store(60)
    log = _log(store, tmp_path)
    for segment, places in zip(log.segments[:-1], _places(store, log)[:-1], strict=True):
        (window,) = walk_forward(log, segment, segment.start, segment.end)
        assert _starts(window) == places
        assert window.records.kind == StopKind.BLANK
        assert window.damage is None


@pytest.mark.parametrize("n_bytes", [1, 500, 1 << 20])
def test_windows_join_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    monkeypatch.setattr(walks, "WINDOW_BYTES", n_bytes)
    store = _store(20)
    log = _log(store, tmp_path)
    windows = list(walk_forward(log, log.segments[0], 0, store.placed[15].physical_offset))
    assert [place for window in windows for place in _starts(window)] == store.places[:15]
    assert [window.resumed for window in windows[:-1]] == [
        _starts(window)[0] for window in windows[1:]
    ]
    assert all(window.damage is None for window in windows)


def test_a_walk_goes_on_at_the_next_whole_record_after_damage(tmp_path: Path) -> None:
    store = _store(10)
    bad, following = store.placed[3].physical_offset, store.placed[4].physical_offset
    store.put(bad, b"\xff" * 8)
    log = _log(store, tmp_path)
    before, after = walk_forward(log, log.segments[0], 0, store.end)
    assert _starts(before)[-1] == store.placed[2].physical_offset
    assert before.stopped == bad
    assert before.resumed == following
    assert before.damage is not None
    assert "magic" in before.damage
    assert (_starts(after)[0], after.stopped, after.damage) == (following, store.end, None)


def test_a_walk_that_ends_at_damage_does_not_look_for_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    search = walks.next_record

    def counted(*arguments: object) -> int:
        searched.append(arguments)
        return search(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(walks, "next_record", counted)
    store = _store(3)
    log = _log(store, tmp_path)
    forward = walk_forward(log, log.segments[0], 0, store.segment_bytes)
    window = next(forward)
    assert (window.damage, searched) == (StopKind.EMPTY.value, [])
    assert window.resumed == store.segment_bytes
    assert window.resumed == store.segment_bytes
    assert len(searched) == 1
    assert (list(forward), len(searched)) == ([], 1)


def test_records_that_a_damaged_size_hides_are_rejoined(tmp_path: Path) -> None:
    store = _store(10)
    three = sum(at.size for at in store.placed[2:5])
    store.put(store.placed[2].physical_offset, three.to_bytes(4))
    log = _log(store, tmp_path)
    window = window_at(log, log.segments[0], 0, store.end)
    every = store.places
    starts, sizes = window.chain()
    assert (starts.tolist(), int(sizes[2])) == ([*every[:3], *every[5:]], three)
    assert window.rejoined()[1].tolist() == every


def test_a_record_that_a_misplaced_one_overlaps_is_rejoined(tmp_path: Path) -> None:
    store = _store(10)
    size, overlap = store.placed[0].size, 10
    properties = b"A\x01" + b"b" * 2 * overlap + b"\x02"
    store.append(
        build.Record(body=bytes(9 + size + overlap - len(properties)), properties=properties)
    )
    placed = store.placed
    misplaced = placed[10].physical_offset
    assert placed[10].size == 2 * size + overlap
    # A page of the disk came back in the place of another, and ended within the record.
    page = bytes(store.segments[0][misplaced : misplaced + 2 * size])
    store.put(placed[2].physical_offset, page)
    log = _log(store, tmp_path)
    window = window_at(log, log.segments[0], 0, store.end)
    assert window.rejoined()[1].tolist() == [placed[row].physical_offset for row in (0, 1, 2, 4)]
    assert window.resumed == placed[5].physical_offset


def test_a_window_ends_at_its_bound_and_is_searched_beyond(tmp_path: Path) -> None:
    store = _store(10)
    log = _log(store, tmp_path)
    every = store.places
    window = window_at(log, log.segments[0], 0, store.end, every[2] + 1)
    assert (_starts(window), window.stopped, window.end) == (every[:3], every[3], store.end)
    store.put(every[1], bytes(8))
    log = _log(store, tmp_path / "damaged")
    window = window_at(log, log.segments[0], 0, store.end, every[1] + 1)
    assert (window.damage, window.resumed) == (StopKind.EMPTY.value, every[2])


def test_the_last_records_are_found_from_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "NEWEST_BYTES", 16)
    store = _store(60)
    log = _log(store, tmp_path)
    segment, places = log.segments[0], _places(store, log)[0]
    found = [_starts(window) for window in walk_back(log, segment, segment.end)]
    assert found == [places[-n:] for n in sorted({len(starts) for starts in found})]
    assert (len(found[0]) < len(places), found[-1]) == (True, places)


def test_a_search_from_the_end_walks_up_to_the_end_however_far_it_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "WINDOW_BYTES", 500)
    store = _store(20)
    log, every = _log(store, tmp_path), store.places
    (window,) = walk_back(log, log.segments[0], store.end)
    assert (_starts(window)[0], window.stopped, len(_starts(window))) == (0, store.end, 20)
    store.put(every[9], bytes(8))
    log = _log(store, tmp_path / "damaged")
    found = [_starts(window) for window in walk_back(log, log.segments[0], store.end)]
    assert found == [every[10:], every[:9]]  # the newest first


def test_a_part_without_a_record_is_left_out_of_a_search_from_the_end(tmp_path: Path) -> None:
    store = build.Store(segment_bytes=1 << 20)
    for _ in range(3):
        store.append(build.Record(body=b"x" * 100_000))
    log = _log(store, tmp_path)
    first, *others = walk_back(log, log.segments[0], store.placed[2].physical_offset + 99_000)
    assert _starts(first) == store.places
    assert (others, first.stopped) == ([], store.end)


def test_nothing_is_found_before_the_start_of_a_file(tmp_path: Path) -> None:
    log = _log(_store(3), tmp_path)
    assert list(walk_back(log, log.segments[0], 0)) == []
    assert list(walk_forward(log, log.segments[0], 0, 0)) == []


def test_the_next_record_is_the_end_of_a_range_without_one(tmp_path: Path) -> None:
    store = _store(60)
    log = _log(store, tmp_path)
    segment, places = log.segments[1], _places(store, log)[1]
    assert next_record(log, segment, segment.start, segment.end) == places[0]
    assert next_record(log, segment, places[0] + 1, segment.end) == places[1]
    assert next_record(log, segment, places[-1] + 1, segment.end) == segment.end


def _sparse(folder: Path, store: build.Store, hole: int) -> CommitLog:
    root = store.write(folder / "s")
    path = root / "commitlog" / f"{0:020d}"
    stored = path.read_bytes()[: store.end]
    with path.open("wb") as file:
        file.write(stored)
        file.truncate(hole)
    return CommitLog([root / "commitlog"])


def test_a_walk_does_not_look_into_the_rest_of_a_sparse_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _store(300, segment_bytes=1 << 20)
    log = _sparse(tmp_path, store, 1 << 28)
    (segment,) = log.segments
    assert [*log.file_of(segment).data_spans(0, 1 << 28, is_appended=True)] == [
        (0, -(-store.end // 4096) * 4096)
    ]
    limits: list[int] = []
    for name in ("walk", "find_frames"):
        looked = getattr(walks, name)
        monkeypatch.setattr(
            walks, name, lambda *args, _looked=looked: limits.append(args[2]) or _looked(*args)
        )
    windows = list(walk_forward(log, segment, 0, 1 << 28))
    assert [at for window in windows for at in _starts(window)] == store.places
    assert windows[-1].resumed == 1 << 28
    assert max(limits) <= store.end + 2 * 4096


def test_records_after_a_hole_are_found(tmp_path: Path) -> None:
    store = _store(200, segment_bytes=1 << 16)
    log = _sparse(tmp_path, store, 1 << 16)
    places = store.places
    stored = log.segments[0].path.read_bytes()
    resumed = next(place for place in places if place >= 12288)
    with log.segments[0].path.open("wb") as file:  # a page is a hole now
        file.write(stored[:8192])
        file.seek(12288)
        file.write(stored[12288:])
    log.refresh()
    windows = list(walk_forward(log, log.segments[0], 0, 1 << 16))
    assert windows[0].resumed == resumed
    assert _starts(windows[1])[0] == resumed
    assert [at for window in windows for at in _starts(window)][-1] == places[-1]


def test_data_lengths_leave_out_holes(tmp_path: Path) -> None:
    store = _store(300, segment_bytes=1 << 20)
    log = _sparse(tmp_path, store, 1 << 28)
    data_end = -(-store.end // 4096) * 4096
    points = np.array([0, 0, 100, data_end - 5, data_end + 7, 1 << 27, 1 << 28, 1 << 29])
    expected = [0, 100, data_end - 105, 5, 0, 0, 0]
    assert log.data_lengths(points).tolist() == expected
    assert log.data_lengths(points[3:5]).tolist() == [5]
    assert log.data_lengths(points[5:]).tolist() == [0, 0]


@pytest.mark.parametrize("seed", tiers.seeds(20))
def test_data_lengths_are_distances_without_holes(tmp_path: Path, seed: int) -> None:
    store = _store(300, segment_bytes=8192)
    log = _log(store, tmp_path)
    points = np.sort(np.random.default_rng(seed).integers(0, log.max_offset, 50))
    assert log.data_lengths(points).tolist() == np.diff(points).tolist()


def test_short_holes_do_not_cut_a_window(tmp_path: Path) -> None:
    store = build.Store(segment_bytes=1 << 20)
    for _ in range(50):
        store.append(build.Record(body=bytes(12_000)))
    root = store.write(tmp_path / "s")
    path = root / "commitlog" / f"{0:020d}"
    stored = path.read_bytes()
    with path.open("wb") as file:  # as `cp --sparse=always` writes it
        for low in range(0, len(stored), 4096):
            if any(stored[low : low + 4096]):
                file.seek(low)
                file.write(stored[low : low + 4096])
        file.truncate(len(stored))
    log = CommitLog([root / "commitlog"])
    (segment,) = log.segments
    assert len([*log.file_of(segment).data_spans(0, segment.end, is_appended=True)]) > 20
    first = next(walk_forward(log, segment, 0, segment.end))
    assert _starts(first) == store.places
