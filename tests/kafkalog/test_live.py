"""Folders that change while they are read, as those of a running broker do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import kafka_logs as build
import kafkalog
from kafka_reading import opened, read_in_windows
from rmqstore.errors import FileDeletedError, OffsetOutOfRangeError
from rmqstore.storage.files.local import LocalStorage
from rmqstore.storage.files.storage import AnyPath, Entry

SEGMENTS = 5
PER_SEGMENT = 4  # batches of one record


@pytest.fixture
def folder(killed: Path) -> Path:
    """Return a partition folder of a running broker: five segments of four records."""
    for number in range(SEGMENTS):
        write(killed, number * PER_SEGMENT)
    return killed


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_windows(monkeypatch, 100)


def write(folder: Path, base: int, *, without: tuple[int, ...] = (), n: int = PER_SEGMENT) -> Path:
    offsets = [number for number in range(base, base + n) if number not in without]
    batches = [build.batch(number, [b"%d" % number]) for number in offsets]
    return build.write_segment(folder, base, *batches)


def begun(
    partition: kafkalog.Partition, **options: bool
) -> tuple[list[int], Iterator[pa.RecordBatch]]:
    """Begin a scan; return the offsets in its first batch, and the rest of it."""
    batches = iter(partition.scan(columns="offset", **options))  # type: ignore[arg-type]
    return next(batches).column("offset").to_pylist(), batches


def rest(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def segment(folder: Path, number: int) -> Path:
    return folder / f"{number * PER_SEGMENT:020}.log"


def append(folder: Path, content: bytes) -> None:
    with segment(folder, SEGMENTS - 1).open("ab") as file:
        file.write(content)


def test_what_is_written_later_is_seen_after_a_refresh(folder: Path) -> None:
    partition = opened(folder)
    assert partition.end_offset == 20
    append(folder, build.batch(20, [b"20"]) + build.batch(21, [b"21"])[:30])
    write(folder, 22)
    assert partition.scan().count() == 20
    partition.refresh()
    assert partition.end_offset == 21
    assert partition.scan().count() == 21


def test_a_half_written_batch_ends_the_log_for_now(folder: Path) -> None:
    batch = build.batch(20, [b"20"])
    for n_bytes in range(len(batch)):
        write(folder, 16)
        append(folder, batch[:n_bytes])
        assert opened(folder).scan().count() == 20


def test_the_last_segment_grows_and_the_first_is_deleted_during_a_scan(folder: Path) -> None:
    first, batches = begun(opened(folder))
    segment(folder, 0).rename(f"{segment(folder, 0)}.deleted")
    append(folder, build.batch(20, [b"20"]))
    write(folder, 21)
    assert first + rest(batches) == list(range(20))


def test_retention_overtakes_a_scan_which_fails_or_goes_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, failing = begun(opened(folder))
    first, batches = begun(opened(folder), fail_on_data_loss=False)
    for number in range(3):
        segment(folder, number).unlink()
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: offsets 4 to 12 are gone \(retention\)"):
        rest(failing)
    assert first + rest(batches) == [*range(4), *range(12, 20)]
    assert "data loss: t-0: offsets 4 to 12 are gone" in caplog.text


def test_all_of_a_partition_is_deleted(folder: Path) -> None:
    first, batches = begun(opened(folder), fail_on_data_loss=False)
    folder.rename(f"{folder}.0b953211e2df4576b22bd9075560653c-delete")
    assert first + rest(batches) == list(range(4))


@pytest.mark.parametrize("suffix", ["", ".swap"], ids=["done", "interrupted"])
def test_segments_are_compacted_during_a_scan(folder: Path, suffix: str) -> None:
    """The cleaner merges segments 1 and 2 under the first one's name."""
    first, batches = begun(opened(folder))
    path = write(folder, 4, without=(5, 6, 9), n=8)
    path.rename(f"{path}{suffix}")
    segment(folder, 2).unlink()
    assert first + rest(batches) == [number for number in range(20) if number not in (5, 6, 9)]


def test_the_end_is_cut_during_a_scan(folder: Path) -> None:
    """A follower cuts what its new leader does not have."""
    partition = opened(folder)
    append(folder, b"half a batch")
    assert partition.end_offset == 20
    first, batches = begun(partition)
    write(folder, 16, n=2)
    gone = r"offsets 18 to 20 are gone \(the log was cut\)"
    with pytest.raises(OffsetOutOfRangeError, match=gone):
        rest(batches)
    first, batches = begun(opened(folder), fail_on_data_loss=False)
    assert first + rest(batches) == list(range(18))


def test_bounds_and_times_while_segments_are_deleted(folder: Path) -> None:
    partition = opened(folder)
    assert partition.end_offset == 20
    segment(folder, 0).unlink()
    assert partition.offset_for_time(0) == 4
    segment(folder, 1).unlink()
    assert partition.last_stable_offset == 20
    assert partition.start_offset == 8


def test_a_listing_that_misses_a_renamed_file_is_not_believed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = LocalStorage.list_folder
    hidden = iter([2, None, 3, 0])

    def missing(self: LocalStorage, path: AnyPath) -> list[Entry]:
        number = next(hidden, None) if str(path) == str(folder) else None
        gone = None if number is None else segment(folder, number).name
        return [entry for entry in listed(self, path) if entry.name != gone]

    partition = opened(folder)
    monkeypatch.setattr(LocalStorage, "list_folder", missing)
    assert partition.start_offset == 0
    assert len(partition.log().segments) == SEGMENTS
    hidden = iter(number % 2 for number in range(1000))
    late = kafkalog.open(folder.parent).partition("t", 0)
    with pytest.raises(FileDeletedError):
        late.log()
