"""The charts of a report as HTML, drawn by plotly.

Plotly interprets text as markup, so text from a store is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final

import numpy as np

from rmqstore.inspect.report.facts import OTHER_TOPICS, Rates, StoreFacts, TopicFacts

_SHOWN = 15
_LABEL_CHARS = 36
_BAR_HEIGHT, _MARGINS = 24, 70
_COLOURS: Final = (
    "#3366cc", "#e07b39", "#3a9c6b", "#b8518f", "#8064a2", "#c9a227", "#4bacc6", "#7a8b99",
    "#b3b9c0",  # of all topics that have no colour of their own
)  # fmt: skip
_ACCENT, _GRID, _INK = "#3366cc", "#e6e9ed", "#1f2933"


def draw_charts(facts: StoreFacts) -> dict[str, str]:
    """Return the charts by name, each a ``div`` with the script that draws it.

    A chart without data is left out.
    """
    by_bytes = _ranked(facts.topics, lambda topic: topic.n_bytes)
    by_messages = _ranked(facts.topics, lambda topic: topic.messages)
    lags = [
        (f"{group.group} · {group.topic}", group.lag)
        for group in facts.groups
        if group.lag and group.lag > 0
    ]
    figures: dict[str, dict[str, Any] | None] = {
        "rate": _rate(facts.rates),
        "bytes": _bars(by_bytes, "bytes", "~s"),
        "messages": _bars(by_messages, "messages", "~s"),
        "skew": _skew(facts),
        "lag": _bars(lags, "messages", "~s"),
    }
    return {name: _to_html(name, figure) for name, figure in figures.items() if figure is not None}


def script() -> str:
    """Return plotly's JavaScript library, to be inlined in the page."""
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return source


def _to_html(name: str, figure: dict[str, Any]) -> str:
    from plotly.io import to_html

    html: str = to_html(
        figure,
        config={"displayModeBar": False},  # the page itself follows the size of its cards
        include_plotlyjs=False,
        full_html=False,
        div_id=f"chart-{name}",
    )
    return html


def label(text: str) -> str:
    """Return text from a store as a label of a chart: shortened and escaped."""
    short = text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"
    return escape(short)


def _ranked(
    topics: Sequence[TopicFacts], value: Callable[[TopicFacts], int]
) -> list[tuple[str, int]]:
    ranked = sorted(topics, key=lambda topic: (-value(topic), topic.topic))
    return [(topic.topic, value(topic)) for topic in ranked if value(topic)]


def _layout(height: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plotly's own
    return {
        "height": height,
        "margin": {"l": 10, "r": 20, "t": 10, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": _INK},
        "hoverlabel": {"align": "left", "namelength": -1},
        **more,
    }


def _axis(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - plotly's own
    return {"gridcolor": _GRID, "zerolinecolor": _GRID, "automargin": True, **more}


def _names(texts: list[str]) -> dict[str, Any]:
    """Return an axis with names at 0, 1 and so on from the top.

    The names stand beside numbers because two of them may be the same once they are shortened.
    """
    return _axis(
        tickmode="array",
        tickvals=list(range(len(texts))),
        ticktext=[label(text) for text in texts],
        range=[len(texts) - 0.4, -0.6],
        ticks="outside",
        ticklen=6,
        tickcolor="rgba(0,0,0,0)",
        showgrid=False,
        zeroline=False,
    )


def _bars(rows: Sequence[tuple[str, int]], unit: str, number: str) -> dict[str, Any] | None:
    """Return a chart of horizontal bars, the first row on top; None without rows."""
    if not rows:
        return None
    shown = rows[:_SHOWN]
    places = list(range(len(shown)))
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": [value for _, value in shown],
                "y": places,
                "customdata": [escape(name) for name, _ in shown],
                "hovertemplate": f"%{{customdata}}<br>%{{x:,}} {unit}<extra></extra>",
                "marker": {"color": _ACCENT},
            }
        ],
        "layout": _layout(
            _BAR_HEIGHT * len(shown) + _MARGINS,
            bargap=0.35,
            xaxis=_axis(
                tickformat=number, title={"text": unit}, rangemode="tozero", nticks=5, tickangle=0
            ),
            yaxis=_names([name for name, _ in shown]),
        ),
    }


def _rate(rates: Rates | None) -> dict[str, Any] | None:
    """Return a chart of messages per second over time, with topics stacked."""
    if rates is None or not rates.counts:
        return None
    middles = (rates.starts + rates.width_ms // 2).astype("datetime64[ms]")
    times = np.datetime_as_string(middles, unit="ms").tolist()
    traces = []
    for number, (topic, counts) in enumerate(rates.counts.items()):
        colour = _COLOURS[-1] if topic == OTHER_TOPICS else _COLOURS[number % (len(_COLOURS) - 1)]
        traces.append(
            {
                "type": "bar",
                "name": label(topic),
                "x": times,
                "y": np.round(counts * 1000 / rates.width_ms, 4).tolist(),
                "width": rates.width_ms,
                "marker": {"color": colour, "line": {"width": 0}},
                "hovertemplate": "%{x}<br>%{y:,.3~g} per second<extra>" + label(topic) + "</extra>",
            }
        )
    return {
        "data": traces,
        "layout": _layout(
            360,
            barmode="stack",
            bargap=0,
            showlegend=True,
            legend={"orientation": "h", "y": -0.18, "traceorder": "normal"},
            xaxis=_axis(type="date", showgrid=False, nticks=6, tickangle=0),
            yaxis=_axis(title={"text": "messages per second"}, rangemode="tozero"),
        ),
    }


def _skew(facts: StoreFacts) -> dict[str, Any] | None:
    """Return a chart of how unevenly queues are filled.

    It has one point for each queue; 1 is the mean of its topic.
    """
    topics = [topic for topic in facts.topics if topic.queues > 1 and topic.messages]
    shown = sorted(topics, key=lambda topic: -topic.messages)[:_SHOWN]
    if not shown:
        return None
    places = {topic.topic: number for number, topic in enumerate(shown)}
    means = {topic.topic: topic.messages / topic.queues for topic in shown}
    queues = [
        queue for queue in facts.queues if queue.topic in places and queue.messages is not None
    ]
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "markers",
                "x": [round((queue.messages or 0) / means[queue.topic], 4) for queue in queues],
                "y": [places[queue.topic] for queue in queues],
                "customdata": [
                    f"{escape(queue.topic)} queue {queue.queue_id}: {queue.messages:,}"
                    for queue in queues
                ],
                "hovertemplate": "%{customdata}<br>%{x:.2f} times the mean<extra></extra>",
                "marker": {"color": _ACCENT, "size": 9, "opacity": 0.55},
            }
        ],
        "layout": _layout(
            _BAR_HEIGHT * len(shown) + _MARGINS,
            xaxis=_axis(
                title={"text": "times the mean"}, rangemode="tozero", nticks=5, tickangle=0
            ),
            yaxis=_names(list(places)),
        ),
    }
