"""Stores with a DLedger log: read as what they are, up to the end that DLedger finds."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from mutations import overwrite
from reading import column, offsets, read, rows, state
from rmqstore import (
    CorruptRecordError,
    MessageNotFoundError,
    NotAStoreError,
    OptionError,
    UnsupportedFeatureError,
)
from rmqstore.format.schema import select_columns
from rmqstore.inspect.verify import verify
from rmqstore.query.selection import parse_lookup_keys, parse_selection
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import read_log
from rmqstore.read.record_filter import log_filter
from rmqstore.read.store_parts import open_parts
from rmqstore.source.tail import StoreTail

SEGMENT = 4096
DIVIDE = 131072  # of the golden store dledger-mixed


def a_store(count: int = 40, *, divide: int = 0, term: int = 3) -> build.Store:
    """Return a store whose log has entries from the divide on, in three files or more."""
    store = build.Store(SEGMENT, divide=divide, term=term)
    for number in range(count):
        record = build.Record(
            queue_id=number % 2,
            body=bytes([number]) * (100 + number),
            properties=build.properties({"KEYS": f"k{number}"}),
            store_timestamp=build.T0 + 1000 * number,
        )
        store.append(record)
    return store


def frame_of(placed: build.Placed) -> int:
    return placed.physical_offset - build.ENTRY_BYTES


def change(root: Path, store: build.Store, physical_offset: int, data: bytes) -> None:
    """Overwrite bytes of the log on disk."""
    start = physical_offset - physical_offset % SEGMENT
    overwrite(store.log_file(root, start), physical_offset - start, data)


def by_log(root: Path, **options: Any) -> list[int]:
    return column(root, "commitLogOffset", scan="commitlog", **options)


def by_queue(root: Path, **options: Any) -> list[int]:
    return sorted(column(root, "commitLogOffset", **options))


# ---- torn records


@pytest.mark.parametrize("name", goldens.TORN)
def test_a_torn_record_is_damage_of_one_record_and_not_the_end(
    golden_store: Golden, name: str
) -> None:
    root = golden_store(name)
    valid = [row["physicalOffset"] for row in goldens.records(name)]
    (torn,) = (row for row in goldens.lines(name, "commitlog") if row.get("error"))
    with pytest.raises(CorruptRecordError, match=f"physical offset {torn['physicalOffset']}"):
        by_log(root)
    assert by_log(root, mode="DROPMALFORMED") == valid
    with rmqstore.open(root) as store:
        found = read(store, scan="commitlog", columns="commitLogOffset", mode="PERMISSIVE")
        assert store.log_end is not None
        assert store.log_end.physical_offset == goldens.summary(name)["maxPhyOffset"]
        assert not store.log_end.reason
    assert sorted(offsets(found)) == sorted([*valid, torn["physicalOffset"]])
    assert [row["commitLogOffset"] for row in found if row["_corrupt_record"]] == [
        torn["physicalOffset"]
    ]


@pytest.mark.parametrize("name", goldens.TORN)
def test_queues_get_what_they_lack_from_the_log_but_no_torn_record(
    golden_store: Golden, name: str
) -> None:
    root = golden_store(name)
    expected = [row for row in goldens.lines(name, "expected") if row["bodyCRCOk"]]
    assert by_queue(root, mode="DROPMALFORMED") == sorted(row["physicalOffset"] for row in expected)
    with pytest.raises(CorruptRecordError):
        by_queue(root)


def test_the_message_after_a_torn_record_takes_its_queue_offset(tmp_path: Path) -> None:
    """A broker gives a torn record no unit, so the next message of the queue has its offset."""
    store = a_store(10)
    torn = store.append(build.Record(queue_offset=5, body=b"x" * 90, body_crc=1), queued=False)
    store.append(build.Record(body=b"next"))
    root = store.write(tmp_path / "s")
    good = [at.physical_offset for at in store.placed if at != torn]
    assert by_queue(root) == good
    assert by_log(root, mode="DROPMALFORMED") == good
    shutil.rmtree(root / "consumequeue")
    (root / "abort").touch()
    assert by_queue(root, mode="DROPMALFORMED") == good


def test_a_torn_newest_record_of_a_closed_store_is_in_no_queue(tmp_path: Path) -> None:
    store = a_store(10)
    store.append(build.Record(queue_offset=5, body=b"x" * 90, body_crc=1), queued=False)
    root = store.write(tmp_path / "s")
    assert by_queue(root) == store.places[:-1]


# ---- the end of the log


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize(
    ("number", "term"), [(None, 2), (7, 3), (0, 9)], ids=["lower term", "other index", "first"]
)
def test_entries_that_were_cut_off_are_not_messages(
    tmp_path: Path, *, abort: bool, number: int | None, term: int
) -> None:
    """A follower that was ahead was cut: old entries follow the end, whole, at their places."""
    store = a_store()
    first = len(store.placed)
    store.n_entries = store.n_entries if number is None else number
    store.term = term
    for _ in range(3):
        store.append(build.Record(body=b"stale"), queued=False)
    root = store.write(tmp_path / "s", abort=abort)
    kept = store.places[:first]
    assert by_log(root) == kept
    assert by_queue(root) == kept
    with rmqstore.open(root) as opened:
        (last,) = (row for row in rows(opened.view("commitlog")) if row["kind"] == "end")
        assert last["commitLogOffset"] == frame_of(store.placed[first])
        assert "entry" in last["reason"]
        assert list(verify(opened)) == []


@pytest.mark.parametrize("at", [0, 5, 9, 24, 47])
def test_a_damaged_head_ends_a_log_that_was_not_closed_and_is_damage_in_a_closed_one(
    tmp_path: Path, at: int
) -> None:
    store = a_store()
    placed = store.placed
    row = len(placed) - 4
    bad = frame_of(placed[row])
    head = build.pack_entry(bytes(placed[row].size), bad, row, 3)
    root = store.write(tmp_path / "s")
    change(root, store, bad + at, bytes([head[at] ^ 0x40]))
    every = [at.physical_offset for at in placed]
    with pytest.raises(CorruptRecordError, match=f"physical offset {bad}"):
        by_log(root)
    assert by_log(root, mode="DROPMALFORMED") == every[:row] + every[row + 1 :]
    assert by_queue(root) == every  # units point at the records
    (root / "abort").touch()
    assert by_log(root) == every[:row]
    assert by_queue(root) == every[:row]


@pytest.mark.parametrize(("field", "number"), [(8, 1), (8, 1 << 40), (16, 2)])
def test_damaged_numbers_of_one_entry_are_damage_without_queues_too(
    tmp_path: Path, field: int, number: int
) -> None:
    """The entry that follows has the index that should follow, so nothing was cut off here."""
    store = a_store()
    root = store.write(tmp_path / "s")
    shutil.rmtree(root / "consumequeue")
    row = len(store.placed) - 4
    change(root, store, frame_of(store.placed[row]) + field, struct.pack(">q", number))
    every = store.places
    with pytest.raises(CorruptRecordError, match=r"entry (index|term)"):
        by_log(root)
    assert by_log(root, mode="DROPMALFORMED") == every[:row] + every[row + 1 :]


# ---- both kinds of files


def test_a_log_goes_on_in_entries_where_dledger_was_enabled(
    golden_store: Golden, tmp_path: Path
) -> None:
    root = golden_store("dledger-mixed")
    with open_parts(root) as store:
        assert store.log.min_offset == 0
        framings = [store.log.framing(segment).head_bytes for segment in store.log.segments]
        assert framings == [0, 0, 48, 48]
    copy = Path(shutil.copytree(root, tmp_path / "s"))
    shutil.rmtree(copy / "commitlog")
    (copy / "commitlog").mkdir()
    newer = [
        row["physicalOffset"]
        for row in goldens.records("dledger-mixed")
        if row["physicalOffset"] > DIVIDE
    ]
    assert by_log(copy) == newer
    assert by_queue(copy) == newer
    (copy / "commitlog").rmdir()
    assert by_log(copy) == newer


def test_parts_of_the_log_are_read_by_time_and_by_place(tmp_path: Path) -> None:
    store = a_store(60, divide=2 * SEGMENT)
    root = store.write(tmp_path / "s")
    every = store.placed
    assert every[0].physical_offset == 0
    low, high = every[11].physical_offset, every[47].physical_offset
    for order in ("queue", "commitlog"):
        with rmqstore.open(root) as opened:
            by_row = opened.scan(
                scan=order,
                where=f"commitLogOffset >= {low} AND commitLogOffset <= {high}",
                columns="commitLogOffset",
            )
            assert sorted(offsets(rows(by_row))) == [at.physical_offset for at in every[11:48]]
            by_time = opened.scan(
                scan=order,
                where=f"storeTimestamp >= {build.T0 + 25_000}",
                columns="commitLogOffset,storeTimestamp",
            )
            late = [
                at.physical_offset for at in every if at.record.store_timestamp >= build.T0 + 25_000
            ]
            assert sorted(offsets(rows(by_time))) == late


def test_headers_where_the_log_is_cut_are_those_of_entries(tmp_path: Path) -> None:
    store = a_store(60, divide=2 * SEGMENT)
    root = store.write(tmp_path / "s")
    plain = {at.physical_offset for at in store.placed if at.physical_offset < 2 * SEGMENT}
    entries = {frame_of(at) for at in store.placed if at.physical_offset >= 2 * SEGMENT}
    spec, columns = ReadSpec(select_columns(["commitLogOffset"])), ["commitLogOffset"]
    everything = log_filter(parse_selection(), columns, parse_lookup_keys(None, None))
    with open_parts(root) as parts:
        headers = parts.sampler.log_headers()
        assert {*headers} <= plain | entries
        assert len({*headers} & plain) > 2
        assert len({*headers} & entries) > 2
        whole = parts.ends.log_slice()
        for low, high in zip(headers, [*headers[1:], whole.end], strict=True):
            piece = whole._replace(start=low, end=high)
            part = offsets(
                row
                for batch in read_log(parts, piece, spec, everything)
                for row in batch.to_pylist()
            )
            assert part == [
                at.physical_offset for at in store.placed if low <= at.physical_offset < high
            ]


# ---- which log, and where


def test_the_logs_of_several_nodes_need_a_choice(golden_store: Golden, tmp_path: Path) -> None:
    root = Path(shutil.copytree(golden_store("dledger-mixed"), tmp_path / "s"))
    shutil.copytree(root / "dledger-n0", root / "dledger-n1")
    for mode in ("r", "a"):
        with pytest.raises(OptionError, match=r"n0 in .*n1 in .*dledger_self_id="):
            rmqstore.open(root, mode=mode)
    with pytest.raises(OptionError, match=r"dledger_self_id=n7 .*n0 in .*n1 in"):
        rmqstore.open(root, dledger_self_id="n7")
    with pytest.raises(OptionError, match="its folders: give one"):
        rmqstore.open(root, dledger_self_id="n1", dledger_logs=[root / "dledger-n0" / "data"])
    with rmqstore.open(root, dledger_self_id="n1") as store:
        assert [folder.parent.name for folder in store.paths.dledger_logs] == ["dledger-n1"]
        assert len(read(store, scan="commitlog", columns="commitLogOffset")) == 600
    # the log of a node that never wrote is no choice
    shutil.rmtree(root / "dledger-n1" / "data")
    (root / "dledger-n1" / "data").mkdir()
    assert len(by_log(root)) == 600


def test_a_log_outside_of_the_root_is_named(copied: Golden, tmp_path: Path) -> None:
    root = copied("dledger")
    shutil.move(root / "dledger-n0" / "data", tmp_path / "elsewhere")
    with pytest.raises(NotAStoreError, match="commitlog"):
        rmqstore.open(root)
    (root / "commitlog").mkdir()
    assert by_log(root) == []  # its commitlog/ is there, and empty
    with rmqstore.open(root, dledger_logs=[str(tmp_path / "elsewhere")]) as store:
        found = column(store, "commitLogOffset", scan="commitlog")
        kinds = {row["kind"] for row in store.view("files").read_all().to_pylist()}
    assert found == [row["physicalOffset"] for row in goldens.records("dledger")]
    assert "dledger/data" in kinds
    with pytest.raises(NotAStoreError, match="dledger_logs="):
        rmqstore.open(root, dledger_logs=[str(tmp_path / "nowhere")])


@pytest.mark.parametrize("kind", ["link", "file", "dangling", "fifo"])
def test_what_is_no_folder_is_no_log(copied: Golden, tmp_path: Path, kind: str) -> None:
    root = copied("dledger-mixed")
    data = root / "dledger-n0" / "data"
    if kind == "link":
        shutil.move(data, tmp_path / "real")
        data.symlink_to(tmp_path / "real")
        assert len(by_log(root)) == 600
        return
    shutil.rmtree(data)
    if kind == "file":
        data.touch()
    elif kind == "fifo":
        os.mkfifo(data)
    else:
        data.symlink_to("nowhere")
    assert len(by_log(root)) == 300


def test_nothing_is_written_into_a_log_of_a_quorum(golden_store: Golden, copied: Golden) -> None:
    root = copied("dledger")
    (root / "lock").unlink()  # its time changes
    before = state(root)
    with pytest.raises(UnsupportedFeatureError, match="quorum"):
        rmqstore.open(root, mode="a")
    with pytest.raises(UnsupportedFeatureError, match="quorum"):
        rmqstore.open(root, mode="a", commitlogs=[str(golden_store("basic") / "commitlog")])
    (root / "lock").unlink(missing_ok=True)
    assert state(root) == before


# ---- views, look-ups, streams


def test_files_are_shown_with_their_kinds(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("dledger-expired")) as store:
        found = [row for row in rows(store.view("files")) if "dledger" in row["path"]]
    kinds = {row["kind"] for row in found}
    assert kinds == {"dledger/data", "dledger/index", "dledger/checkpoint", "dledger/currterm"}
    data = [row for row in found if row["kind"] == "dledger/data"]
    assert all(row["rangeEnd"] - row["rangeStart"] == row["size"] for row in data)
    assert {row["state"] for row in data} == {"live"}


def test_a_message_is_found_by_its_record_and_not_by_its_entry(tmp_path: Path) -> None:
    store = a_store()
    root = store.write(tmp_path / "s")
    with rmqstore.open(root) as opened:
        for at in store.placed:
            assert opened.get(at.physical_offset).body == at.record.body
            with pytest.raises(MessageNotFoundError):
                opened.get(frame_of(at))


@pytest.mark.parametrize("name", ["dledger", "dledger-mixed"])
def test_keys_are_found_without_an_index(copied: Golden, name: str) -> None:
    root = copied(name)
    keyed = goldens.lines(name, "keys")[::40]
    with rmqstore.open(root) as store:
        indexed = [len(store.query(row["topic"], row["key"])) for row in keyed]
    for file in sorted((root / "index").iterdir())[1:]:
        file.unlink()
    with rmqstore.open(root) as store:
        for row, count in zip(keyed, indexed, strict=True):
            assert len(store.query(row["topic"], row["key"], scan_uncovered=True)) == count


@pytest.mark.parametrize("abort", [False, True])
def test_a_stream_follows_the_entries_that_are_written(tmp_path: Path, *, abort: bool) -> None:
    store = a_store(10)
    root = store.write(tmp_path / "s", abort=abort)
    with open_parts(root) as parts:
        tail = StoreTail(parts, parse_selection())
        assert tail.spans() == {("T", 0): (0, 5), ("T", 1): (0, 5)}
        for count in (1, 30, 2):
            for _ in range(count):
                store.append(build.Record(body=b"new" * 60))
            shutil.rmtree(root)
            store.write(root, abort=abort)
            assert tail.spans()["T", 0] == (0, len(store.queues["T", 0]))
            assert tail.last_record is not None
            assert tail.last_record.physical_offset == store.placed[-1].physical_offset
