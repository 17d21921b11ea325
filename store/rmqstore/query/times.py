"""Times as people write them: epoch ms, ISO-8601, as mqadmin has it, or relative to now.

Times without a zone are in UTC, or in the zone of :func:`time_zone`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from rmqstore.errors import OptionError

# A smaller number is hardly ever meant as ms: as such it lies before 3 March 1973.
_FIRST_PLAIN_MS: Final = 100_000_000_000
_CERTAIN_MS: Final = "ms:"
# Times are numbers of 64 bits; the least of these means "not a time" in numpy.
_LAST_MS: Final = (1 << 63) - 1
_HOURS: Final = 24
_FORMS: Final = (
    "must be epoch milliseconds, an ISO-8601 time, one as mqadmin has it, now, today, yesterday, "
    "or a time relative to now such as -1h, now-30m or now-7d"
)
_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_WORDS: Final = ("now", "today", "yesterday")
_LOCAL: Final = "local"
_LOCAL_FILE: Final = Path("/etc/localtime")
_OFFSET: Final = re.compile(r"([+-])(\d\d):([0-5]\d)", re.ASCII)
# Source: UtilAll.java#YYYY_MM_DD_HH_MM_SS_SSS, with which mqadmin reads times.
_OF_MQADMIN: Final = "%Y-%m-%d#%H:%M:%S:%f"
_zone: ContextVar[tzinfo | None] = ContextVar("time zone", default=None)
_RELATIVE: Final = re.compile(r"(?:now\s*)?([+-])\s*(\d{1,18})\s*(ms|[smhdw])", re.IGNORECASE)


@contextmanager
def time_zone(name: str) -> Iterator[None]:
    """Take times without a zone for those of another zone than UTC, and write times in it.

    Args:
        name: of the IANA database such as ``Asia/Shanghai``, ``+08:00``, ``UTC``, or ``local``.

    Raises:
        OptionError: there is no such zone.
    """
    token = _zone.set(_named_zone(name))
    try:
        yield
    finally:
        _zone.reset(token)


def current_zone() -> tzinfo:
    """Return the zone of times without one, in which times are written too."""
    return _zone.get() or UTC


def in_current_zone(moment: datetime) -> datetime:
    """Return a time in the current zone, or as it is at the edge of the calendar."""
    try:
        return moment.astimezone(current_zone())
    except OverflowError:
        return moment


def zone_name() -> str:
    """Return the name of the current zone, or its offset such as ``+08:00``, as Arrow takes it."""
    zone = current_zone()
    if zone is UTC:
        return "UTC"
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key
    digits = f"{datetime.now(zone):%z}"
    return f"{digits[:3]}:{digits[3:5]}"


def _named_zone(name: str) -> tzinfo:
    text = name.strip()
    match = _OFFSET.fullmatch(text)
    if match is not None and int(match[2]) < _HOURS:
        span = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(-span if match[1] == "-" else span)
    if text.lower() == _LOCAL:
        return _local_zone()
    if text.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(text)
    except (ValueError, OSError, KeyError) as err:  # of no such name, or of none at all
        rule = "must be a name such as Asia/Shanghai, an offset such as +08:00, UTC or local"
        raise OptionError(f"`time_zone` {name!r}: {rule}") from err


def _local_zone() -> tzinfo:
    """Return the zone of this computer; its offset of today if it has no name."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name and _LOCAL_FILE.is_symlink():
        name = str(_LOCAL_FILE.resolve()).rpartition("zoneinfo/")[2]
    with suppress(ValueError, OSError, KeyError):
        return ZoneInfo(name)
    return datetime.now().astimezone().tzinfo or UTC


def parse_timestamp(name: str, value: str | float | datetime) -> int:
    """Return a time as epoch ms.

    A number from 1 to 99,999,999,999 is refused, because it is hardly ever meant as milliseconds:
    20261121 is a date, and 1700000000 counts seconds. ``ms:NUMBER`` takes any number as it is.

    Args:
        name: of the argument, for errors.
        value: epoch ms, ISO-8601, ``now``, ``today``, ``yesterday``, a time relative to now
            (``-1h``, ``now-30m``; units ms, s, m, h, d, w), or a datetime. Days begin in UTC, and
            a time is in UTC unless it names another zone, or :func:`time_zone` does. A time as
            mqadmin has it, ``2026-11-21#02:17:03:000``, is local as it is there.

    Raises:
        OptionError: the value is none of these, a number that is hardly meant as milliseconds, or
            one that does not fit into 64 bits.
    """
    if isinstance(value, datetime):
        return _millis(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    number = text.removeprefix(_CERTAIN_MS)
    if re.fullmatch(r"-?\d{1,40}", number):
        millis = int(number)
        if number == text and (meant := misread(millis)):
            raise OptionError(f"`{name}` {text!r}: {meant}, or {_CERTAIN_MS}{text} to insist")
        if abs(millis) > _LAST_MS:
            span = f"-{_LAST_MS} to {_LAST_MS}"
            raise OptionError(f"`{name}` {text!r}: epoch milliseconds go from {span}")
        return millis
    try:
        return _millis(parse_time(text))
    except (ValueError, OverflowError) as err:
        raise OptionError(f"`{name}` {text!r}: {_FORMS}") from err


def optional_timestamp(name: str, value: str | float | datetime | None) -> int | None:
    """Return epoch milliseconds of a time that may be left out; see :func:`parse_timestamp`."""
    return None if value is None else parse_timestamp(name, value)


def is_relative(value: object) -> bool:
    """Return whether a time is relative to now, and another one each time that it is parsed."""
    text = value.strip() if isinstance(value, str) else ""
    return text.lower() in _WORDS or _RELATIVE.fullmatch(text) is not None


def parse_time(text: str) -> datetime:
    """Return a time that is not a number: ISO-8601, a word, or relative to now; with a time zone.

    Raises:
        ValueError: the text is none of these.
        OverflowError: the time is beyond the calendar.
    """
    moment = _near_now(text)
    if moment is None and "#" in text:
        # The form of mqadmin, which has a time in the zone of the computer.
        without_zone = datetime.strptime(text, _OF_MQADMIN)  # noqa: DTZ007 - the zone follows
        moment = without_zone.replace(tzinfo=_zone.get() or _local_zone())
    elif moment is None:
        moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=current_zone())


def misread(number: int) -> str:
    """Return the probable unit of a number that was given as epoch ms; "" if ms is likely.

    Args:
        number: as it was given.
    """
    if not 0 < number < _FIRST_PLAIN_MS:
        return ""
    text, meant = str(number), ""
    with suppress(ValueError):
        if len(text) == len("20261121"):
            meant = f"'{date.fromisoformat(text)}' for the day"
        elif len(text) == len("2026"):
            meant = f"'{date(number, 1, 1)}' for the year"
    if not meant:
        time = datetime.fromtimestamp(number, UTC)
        meant = f"{text}000 for {time:%Y-%m-%dT%H:%M:%SZ} if these are seconds"
    return f"as epoch milliseconds this is before 1973-03-04; write {meant}"


def _millis(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


def _near_now(text: str) -> datetime | None:
    """Return the time of a word, or of an amount before or after now; None for other text."""
    now = datetime.now(current_zone())
    today = now.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    words = dict(zip(_WORDS, (now, today, today - timedelta(days=1)), strict=True))
    if text.lower() in words:
        return words[text.lower()]
    match = _RELATIVE.fullmatch(text)
    if match is None:
        return None
    sign, amount, unit = match.groups()
    span = int(amount) * _UNITS[unit.lower()]
    moment = now.astimezone(UTC)
    return moment - span if sign == "-" else moment + span
