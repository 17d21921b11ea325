"""The HTML summary of a store that a notebook shows: its folder, its state and its first topics."""

from __future__ import annotations

from html import escape
from typing import Final

from rmqstore.format.topics import is_system_topic
from rmqstore.read.session import StoreSession

_MAX_TOPICS: Final = 20


def as_html(session: StoreSession, line: str) -> str:
    """Return a line about a store and a table of its first topics, users' before the system's, each with its queues.

    It lists folders and opens no queue, so the time hardly depends on the size of the store.
    """
    topics = sorted(session.topics(), key=lambda topic: (is_system_topic(topic), topic))
    rows = [
        f"<tr><td>{escape(topic)}</td><td>{len(session.queue_ids(topic))}</td></tr>"
        for topic in topics[:_MAX_TOPICS]
    ]
    if len(topics) > _MAX_TOPICS:
        rows.append(f'<tr><td colspan="2">and {len(topics) - _MAX_TOPICS} more</td></tr>')
    heading = "<thead><tr><th>topic</th><th>queues</th></tr></thead>"
    return f"<div>{escape(line)}</div><table>{heading}<tbody>{''.join(rows)}</tbody></table>"
