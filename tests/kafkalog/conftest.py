"""Folders of the partition t-0, in which nothing is yet, and walks through its log."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafka_logs


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
    from kafka_reading import record_walks  # which a run without kafkalog cannot import

    return record_walks(monkeypatch)
