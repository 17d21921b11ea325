"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import goldens


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the root of a golden store by name, unpacked once a session; tests that change it copy it first."""

    @cache
    def unpacked(name: str) -> Path:
        return goldens.unpack(name, tmp_path_factory.mktemp(f"golden-{name}"))

    return unpacked
