"""The page of a report: one HTML file that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from shlex import quote

from rmqstore.errors import Finding, UnsupportedFeatureError
from rmqstore.inspect.cures import Cure, cures_of
from rmqstore.inspect.report.charts import draw_bars, draw_rates, draw_skew
from rmqstore.inspect.report.facts import GroupFacts, StoreFacts, TopicFacts
from rmqstore.query.times import in_current_zone, zone_name

_SHOWN_ROWS = 2000
_STEP = 1024
_UNKNOWN = "\N{EN DASH}"
_SEVERITIES = ("high", "medium", "low")


def require_libraries() -> None:
    """Check that the libraries for drawing are installed, before any long work begins.

    Raises:
        UnsupportedFeatureError: a library is missing; the text says what to install.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError as err:
        raise UnsupportedFeatureError(
            f"a report needs jinja2: pip install jinja2, extra report ({err})"
        ) from err


def render(stores: Sequence[StoreFacts], made_at: datetime) -> str:
    """Return the page as HTML. All text from the stores is escaped.

    Raises:
        UnsupportedFeatureError: a library for drawing is missing.
    """
    require_libraries()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("rmqstore.inspect.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": count,
        "size": size,
        "time": time,
        "span": span,
        "quote": quote,
    }
    return environment.get_template("page.html.j2").render(
        stores=stores,
        made_at=in_current_zone(made_at),
        zone=zone_name(),
        limit=_SHOWN_ROWS,
        findings_by_part=findings_by_part,
        draw_bars=draw_bars,
        topic_rows=_topic_rows,
        group_rows=_group_rows,
        draw_rates=draw_rates,
        draw_skew=draw_skew,
    )


def findings_by_part(findings: Sequence[Finding]) -> list[tuple[str, Cure, list[Finding]]]:
    """Return findings with what cures them, by the part of the store, the worst part first."""
    cures = cures_of({one.part for one in findings})
    parts = [
        (part, cure, [one for one in findings if one.part == part])
        for part, cure in sorted(cures.items())
        if any(one.part == part for one in findings)
    ]
    # What a start of the broker would lose comes first.
    return sorted(
        parts, key=lambda one: (one[0] != "end", _SEVERITIES.index(one[1].severity), one[0])
    )


def _topic_rows(topics: Sequence[TopicFacts], attribute: str) -> list[tuple[str, int, str]]:
    return [(topic.topic, getattr(topic, attribute), "") for topic in topics]


def _group_rows(groups: Sequence[GroupFacts]) -> list[tuple[str, int, str]]:
    return [(f"{one.group} · {one.topic}", one.lag or 0, one.level) for one in groups]


def count(number: float | None) -> str:
    """Return a number with thousands separators."""
    return _UNKNOWN if number is None else f"{number:,}"


def size(n_bytes: int | None) -> str:
    """Return a number of bytes in the largest unit that fits."""
    if n_bytes is None:
        return _UNKNOWN
    amount, unit = float(n_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < _STEP:
            break
        amount, unit = amount / _STEP, larger
    return f"{n_bytes:,} B" if unit == "B" else f"{amount:,.1f} {unit}"


def time(millis: int | None) -> str:
    """Return a time in ms as text, in the current time zone."""
    if millis is None:
        return _UNKNOWN
    return in_current_zone(datetime.fromtimestamp(millis / 1000, UTC)).strftime("%Y-%m-%d %H:%M:%S")


def span(millis: int | None) -> str:
    """Return a duration in ms as text, in its two largest units."""
    if millis is None:
        return _UNKNOWN
    if millis < 1000:
        return f"{millis} ms"
    left, parts = millis // 1000, []
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= seconds:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
    return " ".join(parts[:2])
