"""The geometry of a report's charts, in percent of their width and height.

The templates draw them as SVG and HTML that follow the width of the page.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import RmqStoreError
from rmqstore.inspect.facts import GroupFacts, QueueFacts, Rates, StoreFacts, TopicFacts
from rmqstore.query.times import current_zone
from rmqstore.spans import QueueSlice
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_TIME_SAMPLES = 40_000  # records that are read for their store time, over all queues
_MIN_TIME_SAMPLES = 4  # for one queue
_MAX_TIME_SAMPLES = 256
_SMALL_QUEUE = 16  # messages; with at most this many, the time of each is read
_MAX_BINS = 120
_SHOWN_TOPICS = 8
OTHER_TOPICS: Final = "other topics"
SYSTEM_TOPICS: Final = "system topics"

_SECOND = 1000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
WIDTHS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 30, 90, 365)),
)

_SHOWN = 15  # rows of a chart
_TIME_TICKS = 5
_VALUE_TICKS = 5
_MAX_DECADES = 6  # of a logarithmic scale
_DOT_STEPS = 200  # of a share that can be distinguished


def estimate_rates(store: MessageStore, facts: StoreFacts) -> Rates | None:
    """Estimate how many messages were stored when; None if there is none with a time.

    The store times of some messages are read; between them the estimate is interpolated. The
    largest topics come apart, the others together, and those of the system together.
    """
    if facts.first is None or facts.last is None:
        return None
    first, last = sorted((facts.first, facts.last))  # a damaged time may reverse them
    width = next(
        (width for width in WIDTHS_MS if (last - first) // width < _MAX_BINS),
        (last - first) // _MAX_BINS + 1,
    )
    begin = first // width * width
    edges = np.arange(begin, last + width + 1, width, dtype=np.int64)
    of_users = [topic for topic in facts.topics if topic.messages and not topic.is_system]
    of_users.sort(key=lambda topic: -topic.messages)
    names = [topic.topic for topic in of_users[:_SHOWN_TOPICS]]
    counts = {name: np.zeros(len(edges) - 1) for name in [*names, OTHER_TOPICS, SYSTEM_TOPICS]}
    share = _TIME_SAMPLES // max(len(facts.queues), 1)
    # Of very many queues, the times of the first message and the last one have to do.
    n_samples = min(share, _MAX_TIME_SAMPLES) if share >= _MIN_TIME_SAMPLES else 0
    for queue in facts.queues:
        if queue.messages:
            other = SYSTEM_TOPICS if queue.is_system else OTHER_TOPICS
            name = queue.topic if queue.topic in names else other
            counts[name] += np.diff(_stored_before(store, queue, edges, n_samples))
    shown = {name: of_topic for name, of_topic in counts.items() if of_topic.any()}
    return Rates(edges[:-1], width, shown)


def _stored_before(
    store: MessageStore, queue: QueueFacts, edges: NDArray[np.int64], n_samples: int
) -> NDArray[np.float64]:
    """Return the number of messages of a queue that were stored before each time, (n,)."""
    assert queue.min_offset is not None
    assert queue.max_offset is not None
    start = queue.min_offset
    end = queue.max_offset
    known = {start: queue.first, end - 1: queue.last}
    slices = [QueueSlice(queue.topic, queue.queue_id, start, end)]
    if not n_samples:
        slices = []
    elif end - start <= _SMALL_QUEUE:
        # A sample of several messages would not give the time of each.
        slices = [
            QueueSlice(queue.topic, queue.queue_id, offset, offset + 1)
            for offset in range(start, end)
        ]
    for queue_slice in slices:
        # a damaged record; the times of the others suffice
        with suppress(RmqStoreError, OSError):
            for sample in store.parts.retry(
                partial(store.parts.sampler.sample, queue_slice, n_samples)
            ):
                known[sample.queue_offset] = _time_of(store, sample.physical_offset)
    points = [(time, offset - start) for offset, time in sorted(known.items()) if time is not None]
    if not points:
        return np.zeros(len(edges))
    times = np.maximum.accumulate(np.array([time for time, _ in points], np.int64))
    before = np.array([count for _, count in points], np.float64)
    # A sampled message was stored at its time, not gradually before it. So two points that are a
    # millisecond apart stand for it.
    _, oldest = np.unique(times, return_index=True)
    newest = np.append(oldest[1:], len(times)) - 1
    times = np.stack((times[oldest] - 1, times[oldest]), axis=1).ravel()
    counts = np.stack((before[oldest], before[newest] + 1), axis=1).ravel()
    at_edges: NDArray[np.float64] = np.interp(
        edges - 1, times, counts, left=0.0, right=float(counts[-1])
    )
    return at_edges


def _time_of(store: MessageStore, physical_offset: int) -> int | None:
    try:
        return store.parts.log.store_timestamp(physical_offset)
    except (RmqStoreError, OSError) as err:
        logger.info("%s", err)
        return None


class Tick(NamedTuple):
    """A label of an axis."""

    position: float
    label: str
    below: str = ""  # a second line


class Scale(NamedTuple):
    """Values drawn on one scale."""

    paths: list[str]  # the bars of each series, data of an SVG path in a box of 100 by 100
    ticks: list[Tick]


class Bin(NamedTuple):
    """One interval of time, with what a pointer over it shows."""

    position: float
    title: str


class RateChart(NamedTuple):
    """Messages per second over time, with topics stacked."""

    series: list[tuple[str, str]]  # topic, and the name of its colour
    bins: list[Bin]
    bin_width: float
    times: list[Tick]
    linear: Scale
    logarithmic: Scale


class Bar(NamedTuple):
    """One row of a bar chart."""

    name: str
    value: int
    length: float
    level: str = ""


class Dots(NamedTuple):
    """The queues of one topic."""

    topic: str
    dots: list[tuple[float, str]]  # position and title


class SkewChart(NamedTuple):
    """How unevenly the queues of topics are filled; 1 is the mean of the topic."""

    rows: list[Dots]
    ticks: list[Tick]


def draw_rates(rates: Rates | None) -> RateChart | None:
    """Return the chart of messages over time, None without messages."""
    if rates is None or not rates.counts:
        return None
    topics = list(rates.counts)
    values = np.stack(list(rates.counts.values())) * 1000 / rates.width_ms
    totals = values.sum(axis=0)
    width = 100 / len(totals)
    bins = []
    for row, start in enumerate(rates.starts.tolist()):
        largest = sorted(zip(values[:, row].tolist(), topics, strict=True), reverse=True)
        lines = [_moment(start, "%Y-%m-%d %H:%M:%S")]
        lines += [f"{value:,.4g}/s {topic}" for value, topic in largest if value >= 1e-4]
        bins.append(Bin(round(row * width, 3), "\n".join(lines)))
    colours = {OTHER_TOPICS: "other", SYSTEM_TOPICS: "system"}
    ticks = _nice_ticks(float(totals.max()))
    return RateChart(
        series=[(topic, colours.get(topic, str(row))) for row, topic in enumerate(topics)],
        bins=bins,
        bin_width=round(width, 3),
        times=_time_ticks(int(rates.starts[0]), rates.width_ms * len(rates.starts)),
        linear=Scale(
            _paths(values / ticks[-1] * 100),
            [Tick(100 * tick / ticks[-1], number(tick)) for tick in ticks],
        ),
        logarithmic=_logarithmic(values, totals),
    )


def draw_topics(topics: Sequence[TopicFacts], attribute: str) -> list[Bar]:
    """Return bars of the topics with the largest values of an attribute."""
    return _bars((topic.topic, getattr(topic, attribute), "") for topic in topics)


def draw_groups(groups: Sequence[GroupFacts]) -> list[Bar]:
    """Return bars of the groups that lag the most."""
    return _bars(
        (f"{group.group} · {group.topic}", group.lag or 0, group.level) for group in groups
    )


def _bars(rows: Iterable[tuple[str, int, str]]) -> list[Bar]:
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
    by_topic: dict[str, dict[int, list[QueueFacts]]] = {topic.topic: {} for topic in shown}
    for queue in queues:
        if queue.topic in by_topic and queue.messages is not None:
            share = queue.messages / means[queue.topic] / ticks[-1]
            by_topic[queue.topic].setdefault(round(share * _DOT_STEPS), []).append(queue)
    rows = []
    for topic, by_step in by_topic.items():
        dots = []
        for step, alike in sorted(by_step.items()):
            messages = alike[0].messages or 0
            times = f"{messages / means[topic]:.2f} times the mean"
            title = f"queue {alike[0].queue_id}: {messages:,} messages, {times}"
            if len(alike) > 1:
                title += f"; {len(alike) - 1:,} more like it"
            dots.append((100 * step / _DOT_STEPS, title))
        rows.append(Dots(topic, dots))
    return SkewChart(rows, [Tick(100 * value / ticks[-1], number(value)) for value in ticks])


def number(value: float) -> str:
    """Return a value of an axis as text."""
    if value < 1:
        return f"{value:.3g}"
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}"


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
    ticks = []
    day = ""
    for moment in range(-(-begin // step) * step, begin + span + 1, step):
        date = _moment(moment, "%Y-%m-%d")
        below = ""
        if step >= _DAY:
            label = date
        else:
            label = _moment(moment, "%H:%M" if step >= _MINUTE else "%H:%M:%S")
            if step < _SECOND:
                label += f".{moment % 1000:03}"
            if date != day:
                below = date
        ticks.append(Tick(round(100 * (moment - begin) / span, 3), label, below))
        day = date
    return ticks


def _moment(millis: int, form: str) -> str:
    """Return a time as text, its ms where it is beyond the years that have a name."""
    try:
        return datetime.fromtimestamp(millis / 1000, current_zone()).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{millis:,} ms"
