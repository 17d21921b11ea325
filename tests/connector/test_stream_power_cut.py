"""Streams after a power cut and a recovery: stale records and units remain after the new ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

import rmqstore
import store_builder as build
from connector.test_stream_planning import LENIENT, Query, grow
from connector.test_stream_read import numbered
from mutations import overwrite
from rmqstore.errors import CorruptQueueError, CorruptRecordError
from rmqstore.read.parts import QueuesPart
from rmqstore.source.tail import StoreTail

RESTART = 5000  # ms, after the first message
NEW = RESTART + 1000
KEPT, LOST = 20, 10
Reopen = Callable[[Query], Query]


def start_broker(root: Path, at: int) -> None:
    os.utime(root / "lock", ns=((build.T0 + at) * 1_000_000,) * 2)


def old_store(tmp_path: Path) -> tuple[build.Store, Path]:
    """Return a store of which a cut will take the last messages."""
    store = grow(build.Store(segment_bytes=16384), KEPT + LOST)
    root = store.write(tmp_path / "s", abort=True)
    start_broker(root, -1000)
    return store, root


def recover(root: Path, old: build.Store, new: build.Store) -> None:
    """Write a store over another one; the rest of a longer old file stays, as after a recovery."""
    for start, data in new.segments.items():
        stale = old.segments.get(start, bytearray(len(data)))
        end = max(
            at.physical_offset + at.size
            for at in new.placed
            if start <= at.physical_offset < start + len(data)
        )
        # of a blank, only the head is written
        end += 0 if end == new.end else len(build.pack_blank(0))
        (root / "commitlog" / f"{start:020d}").write_bytes(
            data[: end - start] + stale[end - start :]
        )
    for key in {**old.queues, **new.queues}:
        units = new.queues.get(key, [])
        stale_units = old.queues.get(key, [])[len(units) :]
        build.write_queue(root / "consumequeue" / key[0] / str(key[1]), units + stale_units)
    start_broker(root, RESTART)


def kept() -> build.Store:
    return grow(build.Store(segment_bytes=16384), KEPT)


def same(query: Query) -> Query:
    return query


def restarted(query: Query) -> Query:
    return Query(Path(query.reader._options.read.source.stores[0].path), query.offset, **LENIENT)


reopened = pytest.mark.parametrize("reopen", [same, restarted])


@reopened
def test_stale_records_that_join_up_with_new_ones_are_not_delivered(
    tmp_path: Path, reopen: Reopen
) -> None:
    old, root = old_store(tmp_path)
    query = Query(root, **LENIENT)
    assert len(query.trigger()) == KEPT + LOST
    new = grow(kept(), 2, prefix="n0", late=NEW)
    assert old.placed[KEPT + 2].physical_offset == new.end, (
        "the next stale record begins where the new ones end"
    )
    recover(root, old, new)
    query = reopen(query)
    assert query.bodies() == ["n00", "n01"]
    assert not query.trigger()
    recover(root, old, grow(new, 9, prefix="n1", late=NEW + 100))
    assert query.bodies() == numbered(0, 9, "n1")
    assert len(Query(root, **LENIENT).trigger()) == KEPT + 11


@reopened
@pytest.mark.parametrize("pad", [0, 37])
def test_stale_units_of_a_queue_that_gets_nothing_are_not_messages(
    tmp_path: Path, pad: int, reopen: Reopen
) -> None:
    old, root = old_store(tmp_path)
    query = Query(root, **LENIENT)
    query.trigger()
    new = grow(kept(), 30, topic="B", prefix="n", late=NEW, pad=pad)
    recover(root, old, new)
    query = reopen(query)
    assert query.bodies() == [f"n{number}" + "." * pad for number in range(30)]
    assert not query.trigger()
    assert len(Query(root, **LENIENT).trigger()) == KEPT + 30
    recover(root, old, grow(new, 1, prefix="last", late=NEW + 100))
    assert query.bodies() == ["last0"]


@reopened
def test_stale_records_that_a_blank_spares_are_not_messages(tmp_path: Path, reopen: Reopen) -> None:
    old, root = old_store(tmp_path)
    query = Query(root, **LENIENT)
    query.trigger()
    new = grow(kept(), 1, topic="B", prefix="n", late=NEW, pad=16000)
    assert new.placed[-1].physical_offset == 16384, "the blank reaches over all that was cut off"
    recover(root, old, new)
    query = reopen(query)
    assert [body.rstrip(".") for body in query.bodies()] == ["n0"]
    assert not query.trigger()
    assert len(Query(root, **LENIENT).trigger()) == KEPT + 1
    with rmqstore.open(root) as store:
        assert store.queue_range("A", 0) == (0, KEPT)


@reopened
def test_a_query_that_had_not_reached_the_cut_gets_the_kept_and_the_new_messages(
    tmp_path: Path, reopen: Reopen
) -> None:
    old, root = old_store(tmp_path)
    query = Query(root, **LENIENT, maxOffsetsPerTrigger=7)
    delivered = query.bodies()
    recover(root, old, grow(kept(), 3, prefix="n", late=NEW))
    query = reopen(query)
    for _ in range(4):
        delivered += query.bodies()
    assert delivered == [*numbered(0, KEPT), "n0", "n1", "n2"]


def test_a_batch_that_was_planned_before_the_cut_leaves_new_messages_to_the_next(
    tmp_path: Path,
) -> None:
    old, root = old_store(tmp_path)
    query = Query(root, **LENIENT)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    recover(root, old, grow(kept(), 15, prefix="n", late=NEW))
    for reader in (query, Query(root, query.offset, **LENIENT)):
        assert [row[3] for row in reader.rows(query.offset, end)] == numbered(0, KEPT)
    query.offset = end
    assert query.bodies() == numbered(0, 15, "n")


@pytest.mark.parametrize("reads", [1, 2])
def test_a_recovery_while_a_task_reads_leaves_new_messages_to_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    old, root = old_store(tmp_path)
    query = Query(root, **LENIENT)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    read_part, calls = QueuesPart.read, []

    def read(part: QueuesPart, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == reads - 1:
            start_broker(root, RESTART - 1000)  # another run, which did not cut anything
        if len(calls) == reads:
            recover(root, old, grow(kept(), 15, prefix="n", late=NEW))
        return read_part(part, *args)

    monkeypatch.setattr(QueuesPart, "read", read)
    assert [row[3] for row in query.rows(query.offset, end)] == numbered(0, KEPT)
    query.offset = end
    assert query.bodies() == numbered(0, 15, "n")


def test_a_log_that_is_cut_ends_at_the_torn_record(tmp_path: Path) -> None:
    old, root = old_store(tmp_path)
    whole = grow(old, 20, prefix="late", pad=50)
    torn = whole.placed[-5]
    query = Query(root, **LENIENT)
    assert len(query.trigger()) == KEPT + LOST
    whole.put(torn.physical_offset + 90, bytes(40))
    recover(root, whole, whole)
    assert [body.rstrip(".") for body in query.bodies()] == numbered(0, 15, "late")


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "FAILFAST"])
def test_a_torn_record_that_its_broker_wrote_on_after_is_damage(tmp_path: Path, mode: str) -> None:
    old, root = old_store(tmp_path)
    query = Query(root, **LENIENT, mode=mode)
    query.trigger()
    start_broker(root, -1000)
    whole = grow(old, 20, prefix="late", late=100, pad=50)
    whole.put(whole.placed[-5].physical_offset + 90, bytes(40))
    for start, data in whole.segments.items():
        (root / "commitlog" / f"{start:020d}").write_bytes(data)
    build.write_queue(root / "consumequeue/A/0", whole.queues["A", 0])
    if mode == "FAILFAST":
        with pytest.raises(CorruptRecordError):
            query.trigger()
    else:
        assert len(query.trigger()) == 19


def test_a_unit_that_a_recovery_kept_and_nobody_ever_wrote_is_passed_over(tmp_path: Path) -> None:
    store = grow(build.Store(segment_bytes=16384), 5)
    store.queues["B", 0] = [build.NO_UNIT]
    grow(store, 3, topic="B", prefix="b")
    root = store.write(tmp_path / "s", abort=True)
    query = Query(root, **LENIENT)
    assert query.bodies() == numbered(0, 5) + numbered(0, 3, "b")


def test_units_come_from_the_log_until_a_hole_in_their_queue_is_filled(tmp_path: Path) -> None:
    store = grow(build.Store(segment_bytes=16384), 30)
    units = list(store.queues["A", 0])
    store.queues["A", 0][10:15] = [build.NO_UNIT] * 5
    root = store.write(tmp_path / "s", abort=True)
    query = Query(root, **LENIENT, maxOffsetsPerTrigger=8)
    delivered = query.bodies()
    store.queues["A", 0] = units
    grow(store, 2, late=100, prefix="n")
    (root / "commitlog" / f"{0:020d}").write_bytes(store.segments[0])
    holed = [*units[:10], *[build.NO_UNIT] * 5, *store.queues["A", 0][15:]]
    build.write_queue(root / "consumequeue/A/0", holed)
    for _ in range(4):
        delivered += query.bodies()
    assert delivered[:30] == numbered(0, 30)
    build.write_queue(root / "consumequeue/A/0", store.queues["A", 0])
    for _ in range(3):
        delivered += query.bodies()
    assert delivered[30:] == ["n0", "n1"]


def planned(query: Query) -> list[InputPartition]:
    return list(
        query.reader.partitions(
            query.offset, query.reader.latestOffset(query.offset, ReadAllAvailable())
        )
    )


def read_all(query: Query, parts: list[InputPartition]) -> list[str]:
    rows = [row for part in parts for batch in query.reader.read(part) for row in batch.to_pylist()]
    return sorted(row["body"] for row in rows)


def delete_queue(root: Path) -> None:
    for path in (root / "consumequeue/A/0").iterdir():
        path.unlink()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr("rmqstore.storage.broker.retry.sleep", found.append)
    return found


@pytest.mark.parametrize("options", [LENIENT, {}])
def test_queue_files_that_go_before_or_after_a_micro_batch_is_planned_are_taken_from_the_log(
    tmp_path: Path, pauses: list[float], options: dict[str, str]
) -> None:
    _, root = old_store(tmp_path)
    before, after = Query(root, **options), Query(root, **options)
    parts = planned(after)
    end = before.reader.latestOffset(before.offset, ReadAllAvailable())
    delete_queue(root)
    assert read_all(after, parts) == sorted(numbered(0, KEPT + LOST))
    assert not pauses
    assert len(before.rows(before.offset, end)) == KEPT + LOST
    assert len(pauses) == 1


def test_records_whose_file_a_recovery_deletes_before_they_are_read_are_lost_with_a_warning(
    tmp_path: Path, pauses: list[float]
) -> None:
    store = grow(build.Store(), 60)
    root = store.write(tmp_path / "s", abort=True)
    n_kept = sum(at.physical_offset < 4096 for at in store.placed)
    assert 0 < n_kept < 60
    for options in (LENIENT, {}):
        query = Query(root, **options)
        parts = planned(query)
        cut = (root / "commitlog" / f"{4096:020d}").rename(tmp_path / "cut")
        if options:
            assert read_all(query, parts) == sorted(numbered(0, n_kept))
        else:
            with pytest.raises(CorruptQueueError, match="past the end of the CommitLog"):
                read_all(query, parts)
        cut.rename(root / "commitlog" / f"{4096:020d}")
    assert not pauses


def test_damage_of_a_store_at_rest_is_not_waited_for(
    tmp_path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, root = old_store(tmp_path)
    damaged = store.placed[3]
    path = root / "commitlog" / f"{0:020d}"
    query = Query(root)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    overwrite(path, damaged.physical_offset + 90, b"\xff")
    monkeypatch.setattr(StoreTail, "invalidate", lambda _: pytest.fail("it is read again"))
    with pytest.raises(CorruptRecordError):
        query.rows(query.offset, end)
    assert not pauses
