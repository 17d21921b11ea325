"""Changes how kafkalog reads logs for a test, or counts what it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.format.batch_headers import BatchHeaders, Data
from kafkalog.storage import windows
from kafkalog.storage.partition_log import Ordered, PartitionLog, ordered_windows
from rmqstore.format.layout import Mask


def read_in_windows(
    monkeypatch: pytest.MonkeyPatch, first_bytes: int, most_bytes: int | None = None
) -> None:
    """Let windows have a number of bytes, or grow from one to another."""
    most = first_bytes if most_bytes is None else most_bytes
    monkeypatch.setattr(windows, "_FIRST_BYTES", first_bytes)
    monkeypatch.setattr(windows, "_MOST_BYTES", most)


def count_crcs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of batches each time that CRCs are compared."""
    n_batches: list[int] = []
    check = BatchHeaders.check_crcs

    def counted(headers: BatchHeaders, data: Data) -> Mask:
        n_batches.append(len(headers))
        return check(headers, data)

    monkeypatch.setattr(BatchHeaders, "check_crcs", counted)
    return n_batches


def record_walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the offset at which each walk for open transactions begins."""
    starts: list[int] = []

    def recorded(log: PartitionLog, start_offset: int) -> Iterator[Ordered]:
        starts.append(start_offset)
        return ordered_windows(log, start_offset)

    monkeypatch.setattr("kafkalog.transactions.ordered_windows", recorded)
    return starts


def opened(folder: Path) -> kafkalog.Partition:
    return kafkalog.open(folder.parent).partition("t", 0)


def offsets_of(partition: kafkalog.Partition, *bounds: int, **options: Any) -> list[int]:
    """Return the offsets of records that are not damaged, or those that options choose."""
    scan = partition.scan(*bounds, **{"columns": "offset", "mode": "DROPMALFORMED", **options})
    found: list[int] = scan.to_arrow().column("offset").to_pylist()
    return found
