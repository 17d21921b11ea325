"""What a real store does with a broken timer log or wheel; see broken_stores.py.

Its messages are due when the broken store is opened, but for those of the truth, of which some
were due later: a broker that enters messages again then may read its timer log in a circle until
the memory of the JVM is full. Such cases were recorded with a JVM for each.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

import broken_stores
import tiers
from broken_stores import Case, Row, spans
from interop.rocketmq import RocketMQ
from interop.timers import N_MESSAGES, RealTimerStore

TRUTH = broken_stores.truth("timers")
TAME = [case for case, row in TRUTH.items() if not row.get("stops")]
SAMPLE = [
    Case("timers", "closed", "timerlog", "first", "missing"),
    Case("timers", "closed", "timerlog", "first", "cut"),
    Case("timers", "closed", "timerlog", "middle", "missing"),
    Case("timers", "closed", "timerlog", "middle", "page"),
    Case("timers", "closed", "timerwheel", "newest", "missing"),
    Case("timers", "crashed", "timerlog", "first", "page"),
]
CASES = dict.fromkeys([*SAMPLE, *TAME])


@pytest.fixture(scope="module")
def whole(rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of which no message was delivered, though all of them are due."""
    root = tmp_path_factory.mktemp("timers") / "s"
    with RealTimerStore(rocketmq, root) as real:
        due = real.fill()
    time.sleep(max(0.0, due - time.time()))
    return root


def observe(rocketmq: RocketMQ, root: Path) -> Row:
    """Return what the real store makes of a broken one.

    ``lost`` are the messages that it does not deliver, by their queue offsets in the timer topic;
    ``twice`` those that it delivers twice.
    """
    try:
        opened = RealTimerStore(rocketmq, root)
    except (AssertionError, Py4JJavaError):  # it does not load, or says so by an exception
        return {"starts": False}
    with opened as real:
        found, turns = real.delivered()
    row: Row = {
        "starts": True,
        "lost": spans([number for number in range(N_MESSAGES) if number not in found]),
        "twice": spans([number for number, count in found.items() if count > 1]),
    }
    return row if turns else row | {"stops": True}


@pytest.mark.interop
@pytest.mark.parametrize("case", tiers.split(CASES, len(SAMPLE)), ids=str)
def test_the_real_wheel_does_what_is_recorded(
    rocketmq: RocketMQ, whole: Path, tmp_path: Path, case: Case
) -> None:
    broken_stores.make(whole, case, tmp_path / "s")
    assert observe(rocketmq, tmp_path / "s") == TRUTH[case]


@pytest.mark.interop
@pytest.mark.parametrize("place", broken_stores.PLACES)
def test_without_its_files_the_real_wheel_is_filled_from_the_log(
    rocketmq: RocketMQ, whole: Path, tmp_path: Path, place: str
) -> None:
    """What `verify` advises: log, wheel and checkpoint of the timer are moved away together."""
    root = tmp_path / "s"
    broken_stores.make(whole, Case("timers", "closed", "timerlog", place, "missing"), root)
    # What was delivered before comes a second time.
    for twice in ([], [[0, N_MESSAGES]]):
        shutil.rmtree(root / "timerlog", ignore_errors=True)
        (root / "timerwheel").unlink()
        (root / "config/timercheck").unlink()
        assert observe(rocketmq, root) == {"starts": True, "lost": [], "twice": twice}
