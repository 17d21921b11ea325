"""A read whose window of time leaves nothing says which times there are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import goldens
import rmqstore
from goldens import Golden
from rmqstore.query.times import time_zone

TOPIC = "LivePlain"
ROWS = goldens.lines("live", "expected")
TIMES = [row["storeTimestamp"] for row in ROWS if row["topic"] == TOPIC]
FIRST, LAST = min(TIMES), max(TIMES)


def _iso(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")


@pytest.mark.parametrize(
    "window",
    [
        {"ending_timestamp": FIRST},
        {"starting_timestamp": LAST + 1},
        {"starting_timestamp": LAST + 1, "where": "queueOffset >= 0"},
        {"ending_offsets_by_timestamp": {TOPIC: {"0": FIRST}}, "assign": {TOPIC: [0]}},
    ],
    ids=str,
)
def test_the_times_of_the_topic_are_told(
    golden_store: Golden, caplog: pytest.LogCaptureFixture, window: dict[str, Any]
) -> None:
    chosen = window if "assign" in window else {"subscribe": TOPIC, **window}
    with rmqstore.open(golden_store("live")) as store, time_zone("UTC"):
        assert store.scan(**chosen).read_all().num_rows == 0
    (text,) = caplog.messages
    assert f"those of {TOPIC} were stored from " in text
    if "assign" not in window:
        assert text.endswith(f"from {_iso(FIRST)} to {_iso(LAST)}")


@pytest.mark.parametrize(
    "chosen",
    [
        {"subscribe": TOPIC, "starting_timestamp": FIRST},
        {"subscribe": TOPIC, "starting_timestamp": LAST + 1, "where": "topic = 'Other'"},
        {"subscribe": TOPIC, "starting_timestamp": FIRST, "where": "body = 'no message has it'"},
        {"subscribe": TOPIC, "ending_offsets": {TOPIC: {str(queue): 0 for queue in range(4)}}},
    ],
    ids=str,
)
def test_nothing_is_said_where_the_window_is_not_the_reason(
    golden_store: Golden, caplog: pytest.LogCaptureFixture, chosen: dict[str, Any]
) -> None:
    with rmqstore.open(golden_store("live")) as store:
        store.scan(**chosen).read_all()
    assert caplog.messages == []
