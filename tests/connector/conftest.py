"""Fixtures of the tests of the connector."""

from __future__ import annotations

import pytest

from connector.engine import Engine
from connector.sparkreads import Golden, GoldenStore


@pytest.fixture
def golden(engine: Engine, golden_store: GoldenStore) -> Golden:
    return Golden(engine, golden_store)
