"""Messages by hour and day, counted by the units of queues."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import rmqstore
import store_builder as build
from command_line import refusal, rows
from rmqstore.inspect.counts import count_by_time
from rmqstore.query.times import time_zone

HOUR_MS = 3_600_000
TIMES = [0, 1, HOUR_MS - 1, HOUR_MS, 5 * HOUR_MS, 30 * HOUR_MS, 30 * HOUR_MS, 31 * HOUR_MS]
TIMES += [5 * HOUR_MS + 1]  # the clock is set back


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a store of two queues of T, whose messages were stored at ``TIMES`` after midnight."""
    made = build.Store()
    midnight = build.T0 - build.T0 % (24 * HOUR_MS)
    for time in TIMES:
        for queue_id in (0, 1):
            made.append(build.Record(queue_id=queue_id, store_timestamp=midnight + time))
    made.append(build.Record(topic="U", store_timestamp=midnight + 31 * HOUR_MS))
    return made.write(tmp_path / "s")


@pytest.mark.parametrize("zone", ["UTC", "+05:30", "Asia/Shanghai", "America/New_York"])
@pytest.mark.parametrize("unit", ["hour", "day"])
def test_counts_are_those_of_the_store_times(root: Path, unit: str, zone: str) -> None:
    with rmqstore.open(root) as store, time_zone(zone):
        counts = count_by_time([store], unit, {})
        rows = store.scan(columns=["topic", "storeTimestamp"]).read_all().to_pylist()
    expected: Counter[tuple[str, datetime]] = Counter()
    named = "Etc/UTC" if zone.startswith("+") else zone
    shift = timedelta(hours=5, minutes=30) if zone.startswith("+") else timedelta()
    for row in rows:
        local = (row["storeTimestamp"] + shift).astimezone(ZoneInfo(named))
        start = local.replace(minute=0, second=0, microsecond=0)
        start = start if unit == "hour" else start.replace(hour=0)
        expected[row["topic"], start.astimezone(UTC) - shift] += 1
    found = {(row["topic"], row["time"]): row["messages"] for row in counts.to_pylist()}
    assert found == expected
    assert [*found] == sorted(found)


@pytest.mark.parametrize(("day", "n_hours"), [("2024-03-10", 23), ("2024-11-03", 25)])
def test_a_day_ends_where_the_next_one_begins(tmp_path: Path, day: str, n_hours: int) -> None:
    """Clocks are put forward on one of these days, and back on the other."""
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("America/New_York"))
    first, made = round(midnight.timestamp() * 1000), build.Store()
    for hours in (0, n_hours - 1, n_hours, n_hours + 1):
        made.append(build.Record(store_timestamp=first + hours * HOUR_MS))
    with rmqstore.open(made.write(tmp_path / "s")) as store, time_zone("America/New_York"):
        days = count_by_time([store], "day", {}).to_pylist()
    assert [row["messages"] for row in days] == [2, 2]
    assert days[1]["time"] - days[0]["time"] == timedelta(hours=n_hours)


def test_a_message_whose_time_cannot_be_read_has_none(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with rmqstore.open(root) as store:
        place = store.scan(columns=["commitLogOffset"], subscribe="T").read_all()[0][0].as_py()
    file = root / "commitlog" / f"{0:020d}"
    with file.open("r+b") as log:
        log.seek(place + 4)
        log.write(b"\0\0\0\0")
    with rmqstore.open(root) as store:
        rows = count_by_time([store], "hour", {"subscribe": "T"}).to_pylist()
    assert sum(row["messages"] for row in rows) == 2 * len(TIMES)
    assert [row["messages"] for row in rows if row["time"] is None] == [1]
    assert "T: the store time of 1 messages cannot be read" in caplog.text


def test_the_edge_of_the_calendar_has_an_hour_and_a_day(tmp_path: Path) -> None:
    made = build.filled([build.Record(store_timestamp=253_402_300_799_999)])
    with rmqstore.open(made.write(tmp_path / "s")) as store, time_zone("+08:00"):
        for unit in ("hour", "day"):
            assert count_by_time([store], unit, {}).column("messages").to_pylist() == [1]


def test_stat_counts_what_is_chosen(live: Path) -> None:
    stat = partial(rows, "stat", live)
    assert stat("--per", "hour", "-t", "LivePlain") == [
        {"topic": "LivePlain", "time": "2026-11-21T02:00:00.000+00:00", "messages": 210}
    ]
    (row,) = stat("--per", "day", "-t", "LivePlain", "-i", "0", "--tz", "Asia/Shanghai")
    assert (row["time"], row["messages"]) == ("2026-11-21T00:00:00.000+08:00", 53)
    assert len(stat("--where", "messages > 50 AND topic = 'LivePlain'")) == 4
    assert refusal("stat", live, "--per", "day", "--where", "messages > 1")
