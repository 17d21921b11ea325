"""Partitions and batches as rows, and what verify finds."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest

import kafka_logs as build
import kafkalog
from kafkalog.dump import batch_rows
from kafkalog.verify import PARTITIONS, partition_row, verify
from memory_storage import MemoryStorage
from rmqstore.errors import Finding


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


def test_verify_names_place_and_reason(folder: Path) -> None:
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


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([(30, 0), (50, 2)], None),
        ([], "no entry has the largest time of a batch, 50"),
        ([(30, 0)], "no entry has the largest time of a batch, 50"),
        ([(30, 0), (40, 1)], "an entry gives offset 1 the time 40, which no batch has there"),
        ([(30, 0), (50, 7)], "an entry gives offset 7 the time 50, which no batch has there"),
        ([(50, 0), (30, 1)], "its entries do not rise"),
        ([(30, 0), (50, 2), (50, 2)], "its entries do not rise"),
    ],
)
def test_verify_compares_time_indexes(
    folder: Path, entries: list[tuple[int, int]], text: str | None
) -> None:
    times = enumerate((30, 20, 50))
    build.write_segment(folder, 0, *(build.batch(at, [b"a"], time=time) for at, time in times))
    build.write_index(folder, 0)
    path = build.write_time_index(folder, 0, *entries)
    found = [finding for finding in findings(folder) if finding.part == "timeindex"]
    assert {finding.place for finding in found} == ({str(path)} if text else set())
    assert text is None or text in [finding.text for finding in found]


def write_aborted(folder: Path, *entries: tuple[int, int, int]) -> Path:
    """Write a transaction index; its entries are producers, first offsets and those of markers."""
    path = folder / f"{0:020}.txnindex"
    path.write_bytes(b"".join(struct.pack(">hqqqq", 0, *entry, 0) for entry in entries))
    return path


def test_verify_compares_transaction_indexes(folder: Path) -> None:
    build.write_segment(
        folder, 0, build.sent(0, 1, b"a"), build.sent(1, 2, b"a"), build.marker(2, 1, build.ABORT),
        build.marker(3, 2, build.COMMIT), build.marker(4, 3, build.ABORT),
    )  # fmt: skip
    build.write_index(folder, 0)
    build.write_time_index(folder, 0, (build.TIME, 0))
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


def test_verify_looks_into_producer_snapshots(folder: Path) -> None:
    build.write_segment(folder, 0, build.batch(0, [b"a"]))
    path = build.write_snapshot(folder, 1, {5: 0})
    assert findings(folder) == []
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert findings(folder) == [Finding("snapshot", f"{path}, 2", "the CRC is wrong")]
    build.write_snapshot(folder, 1, {5: 1})
    text = "producer 5 has offset 1, which lies after the snapshot"
    assert findings(folder) == [Finding("snapshot", str(path), text)]


def test_verify_reads_a_log_once(tmp_path: Path, folder: Path) -> None:
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


def test_verify_says_what_a_recovery_cuts(killed: Path) -> None:
    batch = build.batch(0, [b"a"])
    path = build.write_segment(killed, 0, batch, b"torn")
    later = build.write_segment(killed, 1, build.batch(1, [b"b"]))
    (cut, dropped) = findings(killed)
    assert cut.place == f"{path}, {len(batch)}"
    assert cut.text.startswith("a recovery cuts the log here: ")
    assert dropped == Finding("log", str(later), "a recovery deletes the segment")
    (row,) = partition_row(*opened(killed)).to_pylist()
    assert row["recovery"].startswith(f"cuts {path} at {len(batch)} and drops 1 segments")


def test_partitions_as_rows(folder: Path) -> None:
    path = build.write_segment(folder, 3, build.batch(3, [b"a", b"b"]))
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n2 0\n")
    build.write_checkpoint(folder, "replication-offset", 4)
    batch = partition_row(*opened(folder))
    assert batch.schema == PARTITIONS
    assert batch.to_pylist() == [
        {
            "topic": "t", "partition": 0, "start_offset": 3, "end_offset": 5,
            "last_stable_offset": 5, "high_watermark": 4, "segments": 1,
            "bytes": path.stat().st_size, "leader_epoch": 2, "recovery": None, "path": str(folder),
        }
    ]  # fmt: skip


def test_batches_of_a_range(folder: Path) -> None:
    build.write_segment(folder, 0, *(build.batch(number, [b"a"]) for number in range(5)))
    rows = pa.Table.from_batches(batch_rows(*opened(folder), 1, 3)).column("base_offset")
    assert rows.to_pylist() == [1, 2]
