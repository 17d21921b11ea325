"""Times without a zone, in UTC or in the zone that was asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from rmqstore.errors import OptionError
from rmqstore.exchange.json_rows import json_values
from rmqstore.query.times import current_zone, parse_timestamp, time_zone

NOON = 1_763_683_200_000  # 2025-11-21T00:00:00Z, 08:00 in Shanghai
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "zone", "millis"),
    [
        ("2025-11-21T08:00:00", "Asia/Shanghai", NOON),
        ("2025-11-21 08:00", "+08:00", NOON),
        ("2025-11-21", "UTC", NOON),
        ("2025-11-21T00:00:00Z", "Asia/Shanghai", NOON),
        ("2025-11-21T02:00:00+02:00", "Asia/Shanghai", NOON),
        ("2025-11-20T19:00:00", "America/New_York", NOON),
        ("2025-07-01T00:00:00", "America/New_York", 1_751_342_400_000),
        ("2025-11-21#08:00:00:000", "Asia/Shanghai", NOON),
        ("2025-11-20#18:30:00:250", "-05:30", NOON + 250),
        (str(NOON), "Asia/Shanghai", NOON),
    ],
)
def test_a_time_without_a_zone_is_in_the_one_that_was_named(
    text: str, zone: str, millis: int
) -> None:
    with time_zone(zone):
        assert parse_timestamp("t", text) == millis
    assert current_zone() is UTC


def test_days_begin_in_the_zone() -> None:
    with time_zone("Asia/Shanghai"):
        today, yesterday = (parse_timestamp("t", word) for word in ("today", "yesterday"))
    assert today - yesterday == 24 * HOUR
    assert (today + 8 * HOUR) % (24 * HOUR) == 0


def test_a_span_before_now_is_no_matter_of_zones() -> None:
    with time_zone("America/New_York"):
        here = parse_timestamp("t", "-30d")
    assert abs(here - parse_timestamp("t", "-30d")) < 60_000


def test_the_form_of_mqadmin_is_local_without_a_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    assert parse_timestamp("t", "2025-11-21#08:00:00:000") == NOON
    assert parse_timestamp("t", "2025-11-21T00:00:00") == NOON
    with time_zone("local"):
        assert parse_timestamp("t", "2025-11-21T08:00:00") == NOON


@pytest.mark.parametrize("text", ["2025-11-21#08:00", "2025-11-21#25:00:00:000", "#"])
def test_what_only_looks_like_it_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="as mqadmin has it"):
        parse_timestamp("t", text)


@pytest.mark.parametrize("name", ["", "Mars", "../etc/passwd", "+25:00", "GMT+8 ", "\0", "x" * 999])
def test_a_zone_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="Asia/Shanghai"), time_zone(name):
        pass


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_times_are_written_in_the_zone_with_its_offset_of_then(unit: str) -> None:
    winter = datetime(2025, 1, 1, 12, tzinfo=UTC)
    times = [winter, None, winter + timedelta(days=180, milliseconds=5)]
    column = pa.array(times, pa.timestamp(unit, "UTC"))
    with time_zone("Europe/Berlin"):
        assert json_values(column) == [
            "2025-01-01T13:00:00.000+01:00", None, "2025-06-30T14:00:00.005+02:00",
        ]  # fmt: skip
    with time_zone("-03:30"):
        assert json_values(column)[0] == "2025-01-01T08:30:00.000-03:30"
    assert json_values(column)[0] == "2025-01-01T12:00:00.000+00:00"


@pytest.mark.parametrize("zone", ["+08:00", "-08:00", "Asia/Shanghai", "America/New_York"])
def test_every_time_that_is_written_can_be_read_again(zone: str) -> None:
    times = [-62_135_596_800_000, -2_240_524_800_000, 0, 253_402_300_799_999]
    column = pa.array(times, pa.timestamp("ms", "UTC"))
    with time_zone(zone):
        texts = json_values(column)
        assert [parse_timestamp("t", text) for text in texts] == times
