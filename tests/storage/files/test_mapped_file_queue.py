"""Files as one address space, also where wrong names or lengths make them overlap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reading import descriptors_in
from rmqstore.storage.files.mapped_file_queue import MappedFileQueue, OpenFiles, Segment
from rmqstore.storage.files.paths import offset_to_name

Spans = list[tuple[int, int]]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([(0, 400), (400, 400)], [(0, 400), (400, 800)]),
        ([(0, 4000), (400, 400), (800, 400)], [(0, 400), (400, 800), (800, 1200)]),  # one that grew
        ([(0, 4000), (400, 400)], [(0, 400), (400, 800)]),
        ([(0, 400), (1, 1), (400, 400)], [(0, 400), (400, 800)]),  # one that is none of RocketMQ's
        ([(0, 400), (1, 1)], [(0, 400)]),
        ([(0, 400), (1, 4000), (400, 400)], [(0, 400), (400, 800)]),
        ([(0, 400), (200, 0), (400, 400)], [(0, 400), (400, 800)]),
        ([(800, 400), (1600, 400)], [(800, 1200), (1600, 2000)]),
        ([(0, 0)], [(0, 0)]),
        ([], []),
    ],
)
def test_files_that_do_not_fit_hide_none_that_do(
    tmp_path: Path, files: Spans, expected: Spans
) -> None:
    for start, size in files:
        (tmp_path / offset_to_name(start)).write_bytes(bytes(size))
    assert [
        (one.start, one.end) for one in MappedFileQueue([tmp_path], OpenFiles()).segments
    ] == expected


def test_a_file_that_was_deleted_and_made_again_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / offset_to_name(0)
    path.write_bytes(b"old" * 100)
    files = OpenFiles(at_once=4)
    queue = MappedFileQueue([tmp_path], files)
    assert bytes(queue.file_of(queue.segments[0]).read(0, 3)) == b"old"
    path.unlink()
    queue.refresh()
    assert not queue.segments
    path.write_bytes(b"new" * 100)
    queue.refresh()
    assert bytes(queue.file_of(queue.segments[0]).read(0, 3)) == b"new"


def test_whoever_reads_a_file_holds_it_and_nobody_else_does(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / offset_to_name(number * 100)).write_bytes(bytes([number]) * 100)
    queue = MappedFileQueue([tmp_path], OpenFiles(at_once=18))
    opened = [queue.file_of(segment) for segment in queue.segments]  # more than stay open
    opened = opened[::9]  # one that others drove out, one that will be deleted, and the 18th
    for segment in queue.segments[:15]:
        segment.path.unlink()
    queue.refresh()
    assert len(descriptors_in(tmp_path)) == 5 + 2
    queue.close()
    assert len(descriptors_in(tmp_path)) == 3
    for number in (18, 9, 0):
        window = np.ones(10, np.uint8)
        assert opened.pop().read_into(window, 90) == 10
        assert set(window.tolist()) == {number}
    assert not descriptors_in(tmp_path)


def test_of_two_listings_at_the_same_time_the_one_that_began_later_stays(tmp_path: Path) -> None:
    files = [Segment(0, 100, "older"), Segment(0, 100, "newer")]

    def list_files(*_: object) -> list[Segment]:
        mine = files.pop(0)
        if files:  # another thread lists them as well, and is done first
            queue.refresh()
        return [mine]

    queue = MappedFileQueue([tmp_path], OpenFiles(), lambda *_: [])
    queue._list_files = list_files
    queue.refresh()
    assert [segment.file for segment in queue.segments] == ["newer"]
