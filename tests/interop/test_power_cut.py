"""A stream over the store of a real broker that loses power and recovers; see ``power_cut``."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

import tiers
from interop.power_cut import Trial
from interop.rocketmq import RocketMQ


@pytest.fixture(scope="module")
def undertaker(rocketmq: RocketMQ) -> Iterator[Executor]:  # noqa: ARG001 - its JVM has to live until all is shut down
    """Return what shuts brokers down while other trials run."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that no later test has: a broker that is shut down may still write there."""
    return tmp_path_factory.mktemp("power-cut")


@pytest.mark.interop
@pytest.mark.crash
@pytest.mark.parametrize("seed", tiers.split(range(205), 5))
def test_a_stream_delivers_what_the_recovered_store_has(
    rocketmq: RocketMQ, folder: Path, seed: int, undertaker: Executor
) -> None:
    trial = Trial(rocketmq, folder, seed, undertaker)
    try:
        trial.run()
        trial.judge()
    finally:
        trial.close()
