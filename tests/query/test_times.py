"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rmqstore.errors import OptionError
from rmqstore.query.times import parse_timestamp

DAY_MS = 24 * 60 * 60 * 1000


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


def test_days_begin_in_utc() -> None:
    today, yesterday = (parse_timestamp("begin", word) for word in ("today", "Yesterday"))
    assert today % DAY_MS == 0
    assert today - yesterday == DAY_MS


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
