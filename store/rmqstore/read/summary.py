"""The summaries of a store: a line of text, and HTML that a notebook shows."""

from __future__ import annotations

from contextlib import suppress
from html import escape
from typing import Final

import pyarrow as pa

from rmqstore.errors import RmqStoreError, StoreStateError
from rmqstore.format.topics import is_system_topic
from rmqstore.read.session import StoreSession

_MAX_TOPICS: Final = 20
_MAX_CHARACTERS: Final = 60  # of a cell


def as_text(session: StoreSession) -> str:
    """Return the folder, the broker, the number of topics and the state of a store, as one line.

    Only the folder is named if the store is too damaged to tell the rest.
    """
    folder = repr(str(session.paths.root))
    try:
        session.require_open()
    except StoreStateError:
        return f"MessageStore({folder}, closed: open it again to read it)"
    with suppress(RmqStoreError, OSError):
        topics = f"{len(session.topics())} topics"
        kind = "is open, or was not closed" if session.paths.has_abort else "was closed properly"
        state = f"opened to read, the store {kind}"
        state += ", with tiered storage" if session.is_tiered else ""
        return f"MessageStore({folder}, broker {session.broker_name!r}, {topics}, {state})"
    return f"MessageStore({folder})"


def as_html(session: StoreSession) -> str:
    """Return the same line, and a table of the first topics with their numbers of queues."""
    line = f"<div>{escape(as_text(session))}</div>"
    with suppress(RmqStoreError, OSError):
        return line + _topic_table(session)
    return line


def scan_as_html(schema: pa.Schema, first: pa.Table | None, note: str) -> str:
    """Return the columns of a scan with their types, and its first rows.

    Args:
        schema: the columns.
        first: the first rows, None if they are not read.
        note: stands above the table.
    """
    heads = "".join(
        f"<th>{escape(field.name)}<br><small>{escape(str(field.type))}</small></th>"
        for field in schema
    )
    rows = () if first is None else first.to_pylist()
    cells = (
        "".join(f"<td>{escape(_shortened(value))}</td>" for value in row.values()) for row in rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div>Scan: {escape(note)}</div>{table}"


def _shortened(value: object) -> str:
    text = value[:_MAX_CHARACTERS].decode(errors="replace") if isinstance(value, bytes) else value
    text = str(text)
    return (
        text if len(text) < _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}\N{HORIZONTAL ELLIPSIS}"
    )


def _topic_table(session: StoreSession) -> str:
    """Return the table; topics of users come before those of the system.

    Folders are listed and no queue is opened, so the time hardly depends on the size of the store.
    """
    topics = sorted(session.topics(), key=lambda topic: (is_system_topic(topic), topic))
    rows = [
        f"<tr><td>{escape(topic)}</td><td>{len(session.queue_ids(topic))}</td></tr>"
        for topic in topics[:_MAX_TOPICS]
    ]
    if len(topics) > _MAX_TOPICS:
        rows.append(f'<tr><td colspan="2">and {len(topics) - _MAX_TOPICS} more</td></tr>')
    heading = "<thead><tr><th>topic</th><th>queues</th></tr></thead>"
    return f"<table>{heading}<tbody>{''.join(rows)}</tbody></table>"
