"""A queue whose units stand before the queue offsets in their records is read by its units.

After a record that a broker could not dispatch, it puts the units of all that follow in the queue
one place too early. ``interop/test_served_queues.py`` makes such a queue with the real RocketMQ.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import rmqstore
import store_builder as build
from rmqstore.inspect.verify import verify
from rmqstore.query.selection import parse_selection
from rmqstore.source.tail import StoreTail

LOST, N = 3, 12


@pytest.fixture
def store() -> build.Store:
    """Return twelve messages of one queue, of which the fourth was not dispatched."""
    made = build.filled(build.Record(body=b"m%02d" % number) for number in range(N))
    lost = made.placed[LOST]
    made.put(lost.physical_offset + lost.size - 2, b"\x80\x00")  # the length of its properties
    del made.queues["T", 0][LOST]
    return made


def bodies() -> list[tuple[int, bytes]]:
    numbers = [number for number in range(N) if number != LOST]
    return [(place, b"m%02d" % number) for place, number in enumerate(numbers)]


def read(root: Path, **choice: object) -> list[tuple[int, bytes]]:
    with rmqstore.open(root) as opened:
        rows = opened.scan(columns=["queueOffset", "body"], **choice).read_all()  # type: ignore[arg-type]
    return [(row["queueOffset"], row["body"]) for row in rows.to_pylist()]


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_each_mode_returns_every_message_at_the_place_of_its_unit(
    store: build.Store, tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(store.write(tmp_path / "s"), mode=mode) == bodies()
    assert "for the record of another unit" not in caplog.text


def test_verify_names_the_units_and_does_not_blame_them(
    store: build.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        found = list(verify(opened))
    assert [one for one in found if one.kind in ("unit", "fewer")] == []
    assert f"{N - LOST - 1} units stand at another queue offset" in caplog.text


def test_units_that_the_files_lack_are_recovered_at_the_places_of_the_broker(
    store: build.Store, tmp_path: Path
) -> None:
    del store.queues["T", 0][-2:]
    assert read(store.write(tmp_path / "s")) == bodies()


def test_a_tail_sees_what_is_appended_to_the_queue(store: build.Store, tmp_path: Path) -> None:
    ends = []
    for n_more in (0, 2):
        for number in range(n_more):
            after = build.Record(body=b"after %d" % number, queue_offset=N + number)
            placed = store.append(after, queued=False)
            store.queues["T", 0].append((placed.physical_offset, placed.size, 0))
        root = store.write(tmp_path / str(n_more))
        with rmqstore.open(root) as opened:
            tail = StoreTail(opened.parts, parse_selection())
            tail.poll()
            ends.append(tail.ends["T", 0])
    assert ends == [N - 1, N + 1]


def test_a_unit_that_fills_a_gap_is_read_as_it_is_served_whatever_the_cut(tmp_path: Path) -> None:
    made = build.filled(build.Record(body=b"m%d" % number) for number in range(4))
    made.queues["T", 0][1] = made.queues["T", 0][2]
    root = made.write(tmp_path / "s")
    served = [(0, b"m0"), (1, b"m2"), (2, b"m2"), (3, b"m3")]
    assert read(root) == served
    assert read(root, ending_offsets={"T": {"0": 2}}) == served[:2]
    assert read(root, starting_offsets={"T": {"0": 1}}) == served[1:]
    with rmqstore.open(root) as opened:
        (found,) = verify(opened)
    assert found.text.startswith("1 unit, the first at queue offset 1, for messages that have")


def test_a_unit_of_an_earlier_message_is_read_as_it_is_served(tmp_path: Path) -> None:
    made = build.filled(build.Record(body=b"m%d" % number) for number in range(4))
    made.queues["T", 0][2] = made.queues["T", 0][1]
    assert read(made.write(tmp_path / "s")) == [(0, b"m0"), (1, b"m1"), (2, b"m1"), (3, b"m3")]


@pytest.mark.parametrize("has_abort", [False, True])
@pytest.mark.parametrize("is_built", [True, False])
def test_units_behind_the_offsets_in_their_records(
    tmp_path: Path, *, has_abort: bool, is_built: bool
) -> None:
    """Old brokers appended them; 5.3.3 serves them, and passes over them when it builds queues."""
    made = build.Store(units_per_file=20)
    for number, named in enumerate([*range(6), *range(3, 8), -(1 << 63)]):
        at = made.append(build.Record(body=b"%d" % number, queue_offset=named), queued=False)
        if number not in (6, 7, 8, 11) or not is_built:
            made.queues.setdefault(("T", 0), []).append((at.physical_offset, at.size, 0))
    if not is_built:
        made.queues["T", 0][0] = (0, made.placed[0].size, 5)  # a tags code that a rebuild mends
    root = made.write(tmp_path / "s", abort=has_abort)
    kept = [b"%d" % number for number in range(N) if number not in (6, 7, 8, 11) or not is_built]
    assert [body for _, body in read(root)] == kept
    with rmqstore.open(root) as opened:
        found = {one.kind: one.text for one in verify(opened) if one.part == "queue"}
    if is_built:
        assert {*found} == {"named"}
        assert found["named"].startswith("4 records are in no queue, the first at physical offset")
    else:
        assert {*found} == {"fewer", "named", "tags"}
        assert "would not have 4 messages that a broker serves now" in found["fewer"]
