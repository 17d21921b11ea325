"""Where records begin and what ends a walk, on bytes built by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import store_builder as build
from rmqstore.format.columns.search import find_next_record, stores_its_offset
from rmqstore.format.columns.walk import StopKind, Walk, cut_batches, walk, walk_plainly

Walker = Any


def _walk_fast(buf: np.ndarray[Any, np.dtype[np.uint8]], start: int, end: int) -> Walk:
    return walk(buf, start, end, 0)


WALKERS = pytest.mark.parametrize("walker", [walk_plainly, _walk_fast], ids=["plain", "fast"])


def _buf(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8)


def _three() -> tuple[bytes, list[int]]:
    packed, starts = b"", []
    for body in (b"", b"x" * 10, b"y" * 100):
        starts.append(len(packed))
        packed += build.pack(build.Record(body=body), len(packed))
    return packed, starts


@WALKERS
def test_walk_reads_the_record_that_begins_before_the_end_of_the_range(walker: Walker) -> None:
    packed, starts = _three()
    found = walker(_buf(packed), 0, starts[1] + 1)
    assert found.starts.tolist() == starts[:2]
    assert found.kind == StopKind.END
    assert found.position == starts[2]


WALK_ENDS = {
    "nothing": (b"", StopKind.END),
    "smallest blank": (build.pack_blank(8), StopKind.BLANK),
    "blank over zeros": (build.pack_blank(50).ljust(50, b"\0"), StopKind.BLANK),
    "blank over stale bytes": (build.pack_blank(50).ljust(50, b"z"), StopKind.BLANK),
    "zeros": (bytes(8), StopKind.EMPTY),
    "too few zeros for a head": (bytes(3), StopKind.EMPTY),
    "too few bytes for a head": (b"\0\0z", StopKind.DAMAGE),
    "blank beyond the file": (build.pack_blank(51).ljust(50, b"\0"), StopKind.DAMAGE),
    "record cut by the end of the file": (build.pack(build.Record(), 0)[:-1], StopKind.DAMAGE),
    "record smaller than its head": (build.pack(build.Record(total_size=90), 0), StopKind.DAMAGE),
    "negative size": (build.pack(build.Record(total_size=-1), 0), StopKind.DAMAGE),
    "size 0 with a magic": (build.pack(build.Record(total_size=0), 0), StopKind.DAMAGE),
    "junk after a zero size": (b"\0\0\0\0junk", StopKind.DAMAGE),
    "unknown magic": (build.pack(build.Record(magic=0xDAA320A8), 0), StopKind.DAMAGE),
    "noise": (b"\xff" * 100, StopKind.DAMAGE),
}


@WALKERS
@pytest.mark.parametrize(("tail", "kind"), WALK_ENDS.values(), ids=WALK_ENDS)
def test_a_walk_says_what_ended_it(walker: Walker, tail: bytes, kind: StopKind) -> None:
    packed, starts = _three()
    found = walker(_buf(packed + tail), 0, len(packed + tail))
    assert (found.starts.tolist(), found.kind, found.position) == (starts, kind, len(packed))
    assert bool(found.reason) == (kind is StopKind.DAMAGE) or len(tail) < 8


@WALKERS
def test_body_that_holds_records_is_stepped_over(walker: Walker) -> None:
    inner, _ = _three()
    packed = build.pack(build.Record(body=inner), 0)
    found = walker(_buf(packed * 2), 0, len(packed) * 2)
    assert found.starts.tolist() == [0, len(packed)]


@WALKERS
def test_empty_range_has_no_records(walker: Walker) -> None:
    found = walker(_buf(b""), 0, 0)
    assert (found.starts.tolist(), found.kind, found.position) == ([], StopKind.END, 0)


def test_the_next_record_is_found_after_damage() -> None:
    junk = b"\xda\xa3\x20" * 7
    record = build.pack(build.Record(), len(junk))
    assert find_next_record(_buf(junk + record), 0, len(junk + record), 0) == len(junk)
    # not in the range: its end
    assert find_next_record(_buf(junk + record), 0, len(junk), 0) == len(junk)


def test_a_record_from_another_place_is_not_the_next_record() -> None:
    junk = bytes(13)
    stale = build.pack(build.Record(), 4_000)
    assert find_next_record(_buf(junk + stale), 0, len(junk + stale), 0) == len(junk + stale)
    assert find_next_record(_buf(junk + stale), 0, len(junk + stale), 4_000 - 13) == 13


def test_place_is_known_by_a_record_that_is_torn() -> None:
    record = build.pack(build.Record(body=b"x" * 100), 77)
    torn = _buf(bytes(5) + record[:90])
    assert stores_its_offset(torn, 5, 77)
    assert not stores_its_offset(torn, 5, 78)
    assert not stores_its_offset(_buf(record[:87]), 0, 77)


BATCHES = {
    "none": ([], 3, 10, []),
    "by rows": ([1, 1, 1, 1], 3, 10, [3, 1]),
    "by bytes": ([4, 4, 4, 4], 9, 10, [2, 2]),
    "exactly full": ([5, 5, 1], 9, 10, [2, 1]),
    "one that is too large alone": ([99, 99, 1, 1], 9, 10, [1, 1, 2]),
    "without a size": ([0, 0, 0], 9, 10, [3]),
    "huge": ([2**31] * 3, 9, 10, [1, 1, 1]),
}


@pytest.mark.parametrize(
    ("sizes", "max_rows", "max_bytes", "expected"), BATCHES.values(), ids=BATCHES
)
def test_batches_cover_all_records_in_order(
    sizes: list[int], max_rows: int, max_bytes: int, expected: list[int]
) -> None:
    cuts = list(cut_batches(np.array(sizes, np.int64), max_rows, max_bytes))
    assert [cut.stop - cut.start for cut in cuts] == expected
    assert [cut.start for cut in cuts] == [sum(expected[:at]) for at in range(len(expected))]


def test_batches_end_with_sizes_that_are_negative() -> None:
    """Sizes are a queue's word; damaged ones must not make the cutting run for ever."""
    cuts = list(cut_batches(np.array([5, -100, 5, -1, 7], np.int64), 2, 10))
    assert [row for cut in cuts for row in range(cut.start, cut.stop)] == [0, 1, 2, 3, 4]
