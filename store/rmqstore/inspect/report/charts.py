"""The geometry of a report's charts, in percent of their width and height.

The templates draw them as SVG and HTML that follow the width of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.inspect.report.facts import QueueFacts, Rates, TopicFacts
from rmqstore.inspect.report.rates import OTHER_TOPICS, SYSTEM_TOPICS, WIDTHS_MS
from rmqstore.query.times import current_zone

_SHOWN = 15  # rows of a chart
_TIME_TICKS, _VALUE_TICKS = 5, 5
_MAX_DECADES = 6  # of a logarithmic scale
_BURST = 30  # times the median rate, from which on a logarithmic scale shows more
_DOT_PLACES = 200  # that can be told apart
_DAY_MS, _MINUTE_MS, _SECOND_MS = 86_400_000, 60_000, 1000


class Tick(NamedTuple):
    """A label of an axis."""

    place: float
    label: str
    below: str = ""  # a second line


class Scale(NamedTuple):
    """Values drawn on one scale."""

    paths: list[str]  # the bars of each series, data of an SVG path in a box of 100 by 100
    ticks: list[Tick]


class Bin(NamedTuple):
    """One interval of time, with what a pointer over it shows."""

    place: float
    title: str


class RateChart(NamedTuple):
    """Messages per second over time, with topics stacked."""

    series: list[tuple[str, str]]  # topic, and the name of its colour
    bins: list[Bin]
    bin_width: float
    times: list[Tick]
    linear: Scale
    logarithmic: Scale
    prefers_logarithmic: bool


class Bar(NamedTuple):
    """One row of a bar chart."""

    name: str
    value: int
    length: float
    level: str = ""


class Dots(NamedTuple):
    """The queues of one topic."""

    topic: str
    dots: list[tuple[float, str]]  # place and title


class SkewChart(NamedTuple):
    """How unevenly the queues of topics are filled; 1 is the mean of the topic."""

    rows: list[Dots]
    ticks: list[Tick]


def draw_rates(rates: Rates | None) -> RateChart | None:
    """Return the chart of messages over time, None without messages."""
    if rates is None or not rates.counts:
        return None
    values = np.stack(list(rates.counts.values())) * 1000 / rates.width_ms
    totals = values.sum(axis=0)
    usual = float(np.median(totals[totals > 0])) if totals.any() else 0.0
    width = 100 / len(totals)
    begin, span = int(rates.starts[0]), rates.width_ms * len(rates.starts)
    return RateChart(
        series=_coloured(rates.counts),
        bins=[
            Bin(round(row * width, 3), _bin_title(int(start), list(rates.counts), values[:, row]))
            for row, start in enumerate(rates.starts.tolist())
        ],
        bin_width=round(width, 3),
        times=_time_ticks(begin, span),
        linear=_linear(values, totals),
        logarithmic=_logarithmic(values, totals),
        prefers_logarithmic=bool(totals.max() > _BURST * usual),
    )


def draw_bars(rows: Iterable[tuple[str, int, str]]) -> list[Bar]:
    """Return bars of names, values and levels, the longest first.

    Rows without a value are left out.
    """
    shown = sorted((row for row in rows if row[1] > 0), key=lambda row: (-row[1], row[0]))[:_SHOWN]
    return [Bar(name, value, round(100 * value / shown[0][1], 2), at) for name, value, at in shown]


def draw_skew(topics: Sequence[TopicFacts], queues: Sequence[QueueFacts]) -> SkewChart | None:
    """Return the chart of how the queues of the largest topics are filled, None without any."""
    several = [topic for topic in topics if topic.queues > 1 and topic.messages]
    shown = sorted(several, key=lambda topic: -topic.messages)[:_SHOWN]
    if not shown:
        return None
    means = {topic.topic: topic.messages / topic.queues for topic in shown}
    top = max(topic.skew or 1.0 for topic in shown)
    ticks = _nice_ticks(top)
    places: dict[str, dict[int, list[QueueFacts]]] = {topic.topic: {} for topic in shown}
    for queue in queues:
        if queue.topic in places and queue.messages is not None:
            share = queue.messages / means[queue.topic] / ticks[-1]
            places[queue.topic].setdefault(round(share * _DOT_PLACES), []).append(queue)
    rows = [
        Dots(
            topic,
            [
                (100 * place / _DOT_PLACES, _dot_title(at, means[topic]))
                for place, at in sorted(found.items())
            ],
        )
        for topic, found in places.items()
    ]
    return SkewChart(rows, [Tick(100 * value / ticks[-1], number(value)) for value in ticks])


def number(value: float) -> str:
    """Return a value of an axis as text."""
    if value >= 1:
        return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    return f"{value:.3g}"


def _coloured(topics: Iterable[str]) -> list[tuple[str, str]]:
    special = {OTHER_TOPICS: "other", SYSTEM_TOPICS: "system"}
    return [(topic, special.get(topic, str(row))) for row, topic in enumerate(topics)]


def _bin_title(start: int, topics: list[str], values: NDArray[np.float64]) -> str:
    lines = [_moment(start, "%Y-%m-%d %H:%M:%S")]
    largest = sorted(zip(values.tolist(), topics, strict=True), reverse=True)
    lines += [f"{value:,.4g}/s {topic}" for value, topic in largest if value >= 1e-4]
    return "\n".join(lines)


def _dot_title(queues: Sequence[QueueFacts], mean: float) -> str:
    first = queues[0]
    messages = first.messages or 0
    text = f"queue {first.queue_id}: {messages:,} messages, {messages / mean:.2f} times the mean"
    return text if len(queues) == 1 else f"{text}; {len(queues) - 1:,} more like it"


def _linear(values: NDArray[np.float64], totals: NDArray[np.float64]) -> Scale:
    ticks = _nice_ticks(float(totals.max()))
    heights = values / ticks[-1] * 100
    return Scale(_paths(heights), [Tick(100 * tick / ticks[-1], number(tick)) for tick in ticks])


def _logarithmic(values: NDArray[np.float64], totals: NDArray[np.float64]) -> Scale:
    """Return bars whose total height is the logarithm of the rate.

    Each is divided among the topics by their shares.
    """
    positive = totals[totals > 0]
    if not len(positive):
        return Scale(_paths(values), [])
    top = math.ceil(math.log10(positive.max()))
    bottom = max(math.floor(math.log10(positive.min())), top - _MAX_DECADES)
    bottom = min(bottom, top - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = (np.log10(totals) - bottom) / (top - bottom) * 100
        shares = np.where(totals > 0, values / totals, 0.0)
    # The smallest rate is drawn too, although its logarithm is the bottom of the scale.
    heights = shares * np.where(totals > 0, np.clip(logs, 1.0, 100.0), 0.0)
    ticks = [
        Tick(100 * (power - bottom) / (top - bottom), number(10.0**power))
        for power in range(bottom, top + 1)
    ]
    return Scale(_paths(heights), ticks)


def _paths(heights: NDArray[np.float64]) -> list[str]:
    """Return the bars of each series as one SVG path, stacked upon those before.

    Args:
        heights: in percent, (series, bins).
    """
    width = 100 / heights.shape[1]
    tops = 100 - np.cumsum(heights, axis=0)
    return [
        "".join(
            f"M{column * width:.3f} {top:.2f}h{width:.3f}v{height:.2f}h-{width:.3f}z"
            for column, (top, height) in enumerate(zip(row, of_row, strict=True))
            if height >= 0.01
        )
        for row, of_row in zip(tops.tolist(), heights.tolist(), strict=True)
    ]


def _nice_ticks(top: float) -> list[float]:
    """Return round values from 0 to at least ``top``."""
    if not top > 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(top / _VALUE_TICKS))
    step = next(step * power for step in (1, 2, 5, 10) if top / (step * power) <= _VALUE_TICKS)
    return [row * step for row in range(math.ceil(top / step - 1e-9) + 1)]


def _time_ticks(begin: int, span: int) -> list[Tick]:
    """Return round times, with the date below where the day changes."""
    step = next(
        (width for width in WIDTHS_MS if span / width <= _TIME_TICKS), span // _TIME_TICKS + 1
    )
    ticks, day = [], ""
    for moment in range(-(-begin // step) * step, begin + span + 1, step):
        date = _moment(moment, "%Y-%m-%d")
        label = date if step >= _DAY_MS else _clock(moment, step)
        below = date if step < _DAY_MS and date != day else ""
        ticks.append(Tick(round(100 * (moment - begin) / span, 3), label, below))
        day = date
    return ticks


def _clock(moment: int, step: int) -> str:
    if step >= _MINUTE_MS:
        return _moment(moment, "%H:%M")
    seconds = _moment(moment, "%H:%M:%S")
    return seconds if step >= _SECOND_MS else f"{seconds}.{moment % 1000:03}"


def _moment(millis: int, form: str) -> str:
    """Return a time as text, its ms where it is beyond the years that have a name."""
    try:
        return datetime.fromtimestamp(millis / 1000, current_zone()).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{millis:,} ms"
