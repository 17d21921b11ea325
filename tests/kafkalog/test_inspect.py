"""Batches against what DumpLogSegments shows, and what verify finds."""

from __future__ import annotations

import struct
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

import kafka_logs as build
import kafkalog
from kafkalog.dump import BATCHES, batch_rows
from kafkalog.verify import PARTITIONS, partition_rows, verify
from memory_storage import MemoryStorage
from rmqstore.errors import Finding

FIELDS = {
    "lastOffset": "last_offset", "position": "position", "size": "size", "magic": "magic",
    "codec": "codec", "isValid": "is_valid", "maxTimestamp": "max_timestamp",
}  # fmt: skip
FIELDS_OF_V2 = {
    "baseOffset": "base_offset", "count": "count", "producerId": "producer_id",
    "producerEpoch": "producer_epoch", "baseSequence": "base_sequence",
    "isTransactional": "is_transactional", "partitionLeaderEpoch": "leader_epoch",
}  # fmt: skip


@pytest.mark.parametrize("name", [*build.CLEAN, "damaged"])
def test_batches_are_those_of_the_dump_tool(name: str, kafka_store: build.Golden) -> None:
    root = kafka_store(name)
    shown = build.segments(name)
    compared = 0
    for dirs in build.log_dirs(name, root):
        partitions = kafkalog.open(*dirs).partitions.values()
        rows = chain.from_iterable(batch_rows(partition, 0, 1 << 62) for partition in partitions)
        table = pa.Table.from_batches(rows, BATCHES)
        times = table.column("max_timestamp").cast(pa.int64()).to_pylist()
        rows = table.drop_columns(["max_timestamp"]).to_pylist()
        for row, time in zip(rows, times, strict=True):
            path = str(Path(row["path"]).relative_to(root))
            file = shown[path]
            expected = {batch["position"]: batch for batch in file["batches"]}
            if row["position"] not in expected and file.get("threw"):
                continue  # the tool ended at damage before it
            batch = expected[row["position"]]
            fields = FIELDS | (FIELDS_OF_V2 if row["magic"] == 2 else {})
            row["max_timestamp"] = time
            assert {key: without(batch[key]) for key in fields} == {
                key: row[column] for key, column in fields.items()
            }
            marker = batch["records"][0] if batch.get("isControl") else None
            assert row["marker"] == (batch["marker"]["type"] if marker else None)
            compared += 1
    assert compared > 100


def without(value: object) -> object:
    return None if value == -1 else value


@pytest.mark.parametrize("name", build.EVERY)
def test_verify_finds_what_was_damaged(name: str, kafka_store: build.Golden) -> None:
    found = [
        finding
        for dirs in build.log_dirs(name, kafka_store(name))
        for finding in verify(kafkalog.open(*dirs).partitions.values())
    ]
    places = [Path(finding.place.split(",")[0]) for finding in found]
    damaged = {place.name if place.is_dir() else place.parent.name for place in places}
    changed = {
        "damaged": {"Cr-0", "Cr-1", "CrLz4-0", "Cr-2", "CrIndex-0"},
        # Where only zeros follow, as in CrLz4 and Mix, the file was preallocated. In CrTx they
        # took the place of a batch that the high watermark knows.
        "crash2": {"Cr-0", "Cr-1", "Cr-2", "CrPre-0", "CrIndex-0", "CrTx-0"},
        "oldcrash": {"V0-3", "V1-3"},
    }
    assert damaged == changed.get(name, set())


def opened(folder: Path) -> list[kafkalog.Partition]:
    return [kafkalog.open(folder.parent).partition("t", 0)]


def findings(folder: Path) -> list[Finding]:
    return list(verify(opened(folder)))


def test_verify_names_place_and_reason(tmp_path: Path) -> None:
    folder = build.make_log_dir(tmp_path / "logs") / "t-0"
    first, second = build.batch(0, [b"a"]), build.batch(1, [b"b", b"c"])
    path = build.write_segment(folder, 0, first, second, build.batch(2, [b"d"]))
    at = len(first) + len(second)
    assert findings(folder) == [Finding("log", f"{path}, {at}", "offset 2 is not in order")]
    path = build.write_segment(folder, 0, first, second[:-1] + b"\1", b"\0" * 20)
    index = build.write_index(folder, 0, (1, len(first)), (2, len(first) + 1))
    (wrong_crc, zeros, entry) = findings(folder)
    assert wrong_crc == Finding("log", f"{path}, {len(first)}", "the CRC is wrong")
    assert zeros.place == f"{path}, {at}"
    text = f"an entry sends offset 2 to {len(first) + 1}, where no batch of it begins"
    assert entry == Finding("index", str(index), text)


def write_time_index(folder: Path, *entries: tuple[int, int]) -> Path:
    path = folder / f"{0:020}.timeindex"
    path.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))
    return path


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([(30, 0), (50, 2)], None),
        ([], None),
        ([(30, 0)], "its last entry has the time 30, and a batch has 50"),
        ([(30, 0), (40, 1)], "an entry gives offset 1 the time 40, which no batch has there"),
        ([(30, 0), (50, 7)], "an entry gives offset 7 the time 50, which no batch has there"),
        ([(50, 0), (30, 1)], "its entries do not rise"),
        ([(30, 0), (50, 2), (50, 2)], "its entries do not rise"),
    ],
)
def test_verify_compares_time_indexes(
    tmp_path: Path, entries: list[tuple[int, int]], text: str | None
) -> None:
    folder = build.make_log_dir(tmp_path / "logs") / "t-0"
    times = (30, 20, 50)
    batches = [build.batch(offset, [b"a"], time=time) for offset, time in enumerate(times)]
    build.write_segment(folder, 0, *batches)
    path = write_time_index(folder, *entries)
    found = [finding for finding in findings(folder) if finding.part == "timeindex"]
    assert {finding.place for finding in found} == ({str(path)} if text else set())
    assert text is None or text in [finding.text for finding in found]


def write_aborted(folder: Path, *entries: tuple[int, int, int]) -> Path:
    """Write a transaction index; its entries are producers, first offsets and those of markers."""
    path = folder / f"{0:020}.txnindex"
    rows = [struct.pack(">hqqqq", 0, *entry, 0) for entry in entries]
    path.write_bytes(b"".join(rows))
    return path


def test_verify_compares_transaction_indexes(tmp_path: Path) -> None:
    folder = build.make_log_dir(tmp_path / "logs") / "t-0"
    sent = [
        build.batch(
            offset, [b"a"], producer=build.Producer(producer, 0, 0), attributes=build.TRANSACTIONAL
        )
        for offset, producer in ((0, 1), (1, 2))
    ]
    ends = [
        build.marker(2, 1, build.ABORT), build.marker(3, 2, build.COMMIT),
        build.marker(4, 3, build.ABORT),
    ]  # fmt: skip
    build.write_segment(folder, 0, *sent, *ends)
    path = folder / f"{0:020}.txnindex"
    missing = "no entry has the transaction of producer 1 from 0 to 2, which was aborted"
    assert findings(folder) == [Finding("txnindex", str(path), missing)]
    write_aborted(folder, (1, 0, 2))
    assert findings(folder) == []
    write_aborted(folder, (1, 0, 2), (2, 1, 3))
    odd = "producer 2 aborted nothing at offset 3, as an entry says"
    assert findings(folder) == [Finding("txnindex", str(path), odd)]
    write_aborted(folder, (1, 1, 2))
    assert findings(folder) == [Finding("txnindex", str(path), missing)]
    path.write_bytes(write_aborted(folder, (1, 0, 2)).read_bytes() + b"\0")
    assert findings(folder) == [Finding("txnindex", f"{path}, 34", "the file ends within an entry")]


def test_verify_looks_into_producer_snapshots(tmp_path: Path) -> None:
    folder = build.make_log_dir(tmp_path / "logs") / "t-0"
    build.write_segment(folder, 0, build.batch(0, [b"a"]))
    path = build.write_snapshot(folder, 1, {5: 0})
    assert findings(folder) == []
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert findings(folder) == [Finding("snapshot", f"{path}, 2", "the CRC is wrong")]
    build.write_snapshot(folder, 1, {5: 1})
    text = "producer 5 has offset 1, which lies after the snapshot"
    assert findings(folder) == [Finding("snapshot", str(path), text)]


@pytest.mark.parametrize("number", [1, 3])
def test_verify_names_the_batch_whose_offset_is_wrong(tmp_path: Path, number: int) -> None:
    folder = build.make_log_dir(tmp_path / "logs") / "t-0"
    (folder.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    batches = [build.batch(at, [b"a"]) for at in range(4)]
    batches[number] = (70).to_bytes(8, "big") + batches[number][8:]
    path = build.write_segment(folder, 0, *batches)
    place = f"{path}, {number * len(batches[0])}"
    assert findings(folder) == [Finding("log", place, "offset 70 is not in order")]


def test_verify_reads_a_log_once(tmp_path: Path) -> None:
    folder = build.make_log_dir(tmp_path / "logs") / "t-0"
    for base in (0, 10):
        build.write_segment(folder, base, *(build.batch(base + n, [b"a"]) for n in range(10)))
    storage = MemoryStorage(tmp_path / "logs")
    partition = kafkalog.open(storage.root, storage=storage).partition("t", 0)
    assert partition.end_offset == 20
    storage.n_read.clear()
    assert not list(verify([partition]))
    n_read = {path.name: n for path, n in storage.n_read.items() if path.suffix == ".log"}
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.log")}
    assert n_read == sizes


def test_verify_says_what_a_recovery_cuts(tmp_path: Path) -> None:
    folder = build.make_log_dir(tmp_path / "logs", is_clean=False) / "t-0"
    batch = build.batch(0, [b"a"])
    path = build.write_segment(folder, 0, batch, b"torn")
    later = build.write_segment(folder, 1, build.batch(1, [b"b"]))
    (cut, dropped) = findings(folder)
    assert cut.place == f"{path}, {len(batch)}"
    assert cut.text.startswith("a recovery cuts the log here: ")
    assert dropped == Finding("log", str(later), "a recovery deletes the segment")
    (row,) = partition_rows(opened(folder)).to_pylist()
    assert row["recovery"].startswith(f"cuts {path} at {len(batch)} and drops 1 segments")


def test_zeros_of_a_preallocated_file_are_not_damage(tmp_path: Path) -> None:
    folder = build.make_log_dir(tmp_path / "logs", is_clean=False) / "t-0"
    build.write_segment(folder, 0, build.batch(0, [b"a"]), b"\0" * 5000)
    assert findings(folder) == []


def test_partitions_as_rows(tmp_path: Path) -> None:
    folder = build.make_log_dir(tmp_path / "logs") / "t-0"
    path = build.write_segment(folder, 3, build.batch(3, [b"a", b"b"]))
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n2 0\n")
    (folder.parent / "replication-offset-checkpoint").write_text("0\n1\nt 0 4\n")
    batch = partition_rows(opened(folder))
    assert batch.schema == PARTITIONS
    assert batch.to_pylist() == [
        {
            "topic": "t", "partition": 0, "start_offset": 3, "end_offset": 5,
            "last_stable_offset": 5, "high_watermark": 4, "segments": 1,
            "bytes": path.stat().st_size, "leader_epoch": 2, "recovery": None, "path": str(folder),
        }
    ]  # fmt: skip


def test_batches_of_a_range(tmp_path: Path) -> None:
    folder = build.make_log_dir(tmp_path / "logs") / "t-0"
    build.write_segment(folder, 0, *(build.batch(number, [b"a"]) for number in range(5)))
    rows = pa.Table.from_batches(batch_rows(*opened(folder), 1, 3)).column("base_offset")
    assert rows.to_pylist() == [1, 2]


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_missing_segment_is_found_unless_the_log_was_compacted(
    tmp_path: Path, is_cleaned: bool
) -> None:
    root = build.make_log_dir(tmp_path / "logs")
    for base in (0, 10, 20, 30):
        build.write_segment(root / "t-0", base, *(build.batch(base + n, [b"v"]) for n in range(10)))
    assert not found(root)
    (root / "t-0" / f"{10:020}.log").unlink()
    path = f"{root}/t-0/{20:020}.log"
    text = "offsets 10 to 20 are missing before it: a segment is gone"
    if is_cleaned:
        (root / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 20\n")
    assert found(root) == ([] if is_cleaned else [("log", path, text)])
    build.write_segment(root / "t-0", 0, *(build.batch(n, [b"v"]) for n in (0, 3, 5)))
    assert not found(root)


def found(root: Path) -> list[tuple[str, str, str]]:
    return [finding[:3] for finding in verify(kafkalog.open(root).partitions.values())]
