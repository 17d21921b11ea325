"""Folders of the partition t-0, in which nothing is yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kafka_logs
from kafkalog.storage.partition_log import Ordered, PartitionLog, ordered_windows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a partition folder of a broker that was stopped."""
    return kafka_logs.make_log_dir(tmp_path / "logs") / "t-0"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return a partition folder of a broker that was killed, or runs."""
    return kafka_logs.make_log_dir(tmp_path / "logs", is_clean=False) / "t-0"


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the offsets at which walks for open transactions begin."""
    starts: list[int] = []

    def recorded(log: PartitionLog, start_offset: int) -> Iterator[Ordered]:
        starts.append(start_offset)
        return ordered_windows(log, start_offset)

    monkeypatch.setattr("kafkalog.transactions.ordered_windows", recorded)
    return starts
