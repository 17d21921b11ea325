"""Times as people write them, in UTC or in the zone that was asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from rmqstore.errors import OptionError
from rmqstore.exchange.json_rows import json_values
from rmqstore.query.times import current_zone, parse_timestamp, time_zone


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        ("0", 0),
        (-1, -1),
        (100_000_000_000, 100_000_000_000),
        ("1700000000000", 1_700_000_000_000),
        (1.7e12, 1_700_000_000_000),
        ("ms:1700000000", 1_700_000_000),
        ("ms:5", 5),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-15T00:13:20.007+02:00", 1_700_000_000_007),
        ("2023-11-14", 1_699_920_000_000),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), 1_700_000_000_000),
        (datetime(2023, 11, 14, 22, 13, 20), 1_700_000_000_000),  # noqa: DTZ001 - as the users give it
        (
            datetime(2023, 11, 14, 17, 13, 20, 1000, timezone(timedelta(hours=-5))),
            1_700_000_000_001,
        ),
    ],
)
def test_times_are_epoch_ms_or_iso_and_utc_by_default(value: Any, expected: int) -> None:
    assert parse_timestamp("starting_timestamp", value) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", 0), ("-1h", -3600), ("now-90m", -5400), ("now - 2 d", -2 * 86400),
        ("-1W", -7 * 86400), ("now+30s", 30), ("-1500ms", -1.5),
    ],
)  # fmt: skip
def test_times_relative_to_now(text: str, seconds: float) -> None:
    now = datetime.now(UTC).timestamp()
    assert parse_timestamp("begin", text) / 1000 - now == pytest.approx(seconds, abs=5)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("20261121", "'2026-11-21' for the day"),
        (20261121, "'2026-11-21' for the day"),
        ("2026", "'2026-01-01' for the year"),
        ("1700000000", "1700000000000 for 2023-11-14T22:13:20Z if these are seconds"),
        ("20261341", "20261341000 for .* if these are seconds"),
        (1, "1000 for 1970-01-01T00:00:01Z"),
        (99_999_999_999, "99999999999000 for 5138-11-16"),
    ],
)
def test_a_number_that_is_hardly_ever_meant_as_ms_is_refused(value: Any, hint: str) -> None:
    with pytest.raises(OptionError, match=rf"^begin '{value}': .*{hint}.*, or ms:{value} to"):
        parse_timestamp("begin", value)


@pytest.mark.parametrize(
    "text",
    [
        "", "soon", "-1y", "now-", "-99999999999999999w", "2024-13-01", "1.5", "ms:", "ms:x",
        "9" * 50,
    ],
)  # fmt: skip
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"^begin .*: must be epoch milliseconds, an ISO-8601 time"
    ):
        parse_timestamp("begin", text)


@pytest.mark.parametrize("value", [10**20, "99999999999999999999", -(1 << 63), f"ms:-{1 << 63}"])
def test_a_number_that_is_too_large_for_a_time_is_refused(value: Any) -> None:
    with pytest.raises(
        OptionError, match=rf"^begin '{value}': epoch milliseconds go from -9\d+ to"
    ):
        parse_timestamp("begin", value)


@pytest.mark.parametrize("value", [(1 << 63) - 1, 1 - (1 << 63)])
def test_the_largest_times_are_taken(value: int) -> None:
    assert parse_timestamp("begin", value) == value


@pytest.mark.parametrize("day", ["2004-05-01", "2023-11-14", "2038-07-01"])
def test_every_millisecond_is_itself(day: str) -> None:
    """The products of 1000 and seconds of some years, as floats, lie just below whole numbers."""
    first = parse_timestamp("begin", day)
    texts = [f"{day}T00:00:00.{number:03d}Z" for number in range(1000)]
    assert [parse_timestamp("begin", text) - first for text in texts] == [*range(1000)]


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


@pytest.mark.parametrize(("zone", "hours"), [("UTC", 0), ("Asia/Shanghai", 8)])
def test_days_begin_in_the_zone(zone: str, hours: int) -> None:
    with time_zone(zone):
        today, yesterday = (parse_timestamp("t", word) for word in ("today", "Yesterday"))
    assert today - yesterday == 24 * HOUR
    assert (today + hours * HOUR) % (24 * HOUR) == 0


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
