"""The page of a report: one HTML file that needs no other file and no network."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import resources

from rmqstore.errors import UnsupportedFeatureError
from rmqstore.inspect.report.charts import draw_charts, script
from rmqstore.inspect.report.facts import StoreFacts

_TEMPLATE = "report.html.j2"
_SHOWN_ROWS = 500
_STEP = 1024
_UNKNOWN = "\N{EN DASH}"


def require_libraries() -> None:
    """Check that the libraries for drawing are installed, before any long work begins.

    Raises:
        UnsupportedFeatureError: a library is missing; the text says what to install.
    """
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as err:
        raise UnsupportedFeatureError(
            f"a report needs plotly and jinja2: pip install plotly jinja2 ({err})"
        ) from err


def render(facts: StoreFacts, made_at: datetime) -> str:
    """Return the page as HTML. All text from the store is escaped.

    Raises:
        UnsupportedFeatureError: a library for drawing is missing.
    """
    require_libraries()
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"count": count, "size": size, "time": time, "span": span}
    source = (
        resources.files("rmqstore.inspect.report")
        .joinpath("templates", _TEMPLATE)
        .read_text(encoding="utf-8")
    )
    charts = {name: Markup(chart) for name, chart in draw_charts(facts).items()}  # noqa: S704 - charts escape it
    return environment.from_string(source).render(
        facts=facts,
        charts=charts,
        script=Markup(script()),  # noqa: S704 - plotly's own
        made_at=made_at,
        limit=_SHOWN_ROWS,
        worst=max((group.lag for group in facts.groups if group.lag is not None), default=None),
        log=next((kind for kind in facts.files if kind.kind == "commitlog"), None),
    )


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
    """Return a time in ms as text, in UTC."""
    if millis is None:
        return _UNKNOWN
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


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
