"""Fixtures of the tests with the real RocketMQ: one JVM for each version and session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import missing
from interop.rocketmq import JarsUnavailableError, RocketMQ, resolve_jars

JARS = Path(__file__).parents[2] / ".rocketmq"


def start(version: str, home: Path) -> RocketMQ:
    """Start RocketMQ, or skip the tests with the reason; fail if nothing may be skipped."""
    return RocketMQ(version, jars_of(version), home)


def jars_of(version: str) -> Path:
    """Return the folder with the jars of a version, or skip the tests as :func:`start` does."""
    missing.require_java()
    try:
        return resolve_jars(version, JARS)
    except JarsUnavailableError as err:
        missing.skip(
            f"the real RocketMQ {version}",
            f"Spark's --packages fetches its jars once, into {JARS.name}; that failed: {err}",
        )


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    real = start("5.3.3", tmp_path_factory.mktemp("rocketmq-5.3.3"))
    yield real
    real.close()


@pytest.fixture(scope="session")
def rocketmq_55(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Return RocketMQ 5.5.1, its store alone."""
    real = start("5.5.1", tmp_path_factory.mktemp("rocketmq-5.5.1"))
    yield real
    real.close()


@pytest.fixture
def real_mq(request: pytest.FixtureRequest, version: str) -> RocketMQ:
    """Return the RocketMQ of the fixture that the parameter ``version`` names."""
    real: RocketMQ = request.getfixturevalue(version)
    return real


@pytest.fixture(scope="session")
def rocketmq_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Return RocketMQ 4.9.8, its store alone."""
    real = start("4.9.8", tmp_path_factory.mktemp("rocketmq-4.9.8"))
    yield real
    real.close()
