"""The verbs that show what a store holds: stat, dump, get."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from rich.table import Table

from rmqstore.cli.common import (
    DAMAGE,
    as_json_lines,
    counted,
    ends_clearly,
    err_console,
    main,
    open_store,
    out_console,
    scan,
    some_messages,
    some_topics,
    store_path,
    time_text,
    with_system_topics,
    write_rows,
)
from rmqstore.exchange.json_rows import jsonable
from rmqstore.query.selection import parse_selection
from rmqstore.read.open_store import QueueInfo
from rmqstore.store import MessageStore

_ID_DIGITS = 32
_MOST_TABLE_ROWS = 1000  # with a frame
_STAT_COLUMNS = (
    "topic",
    "queue",
    "min offset",
    "max offset",
    "messages",
    "bytes",
    "first stored",
    "last stored",
)


@main.command()
@store_path
@some_topics
@with_system_topics
@as_json_lines
@ends_clearly
def stat(path: Path, topics: tuple[str, ...], with_system: bool, as_json: bool) -> None:
    """Show queues: offsets, number of messages, bytes, first and last store time.

    The table is followed by the kind of the store and by what of it is not read. For a broker
    in controller mode the epochs of its log follow.
    """
    with open_store(path) as store:
        selected = _queues(store, topics, with_system=with_system)
        if as_json:
            for info in selected:
                row = {**info._asdict(), "messages": info.max_offset - info.min_offset}
                click.echo(json.dumps(row))
            return
        rows = [_stat_cells(info) for info in selected]
        epochs = [] if store.session.is_tiered else store.view("epochs").read_all().to_pylist()
        kind = store.session.kind().lines()
    _show_table(rows)
    for text in kind:
        click.echo(text)
    for epoch in epochs:
        click.echo(_epoch_text(epoch))


def _epoch_text(epoch: dict[str, Any]) -> str:
    if epoch["epoch"] is None:
        return f"epochs: {epoch['reason']}"
    start, end = epoch["startOffset"], epoch["endOffset"]
    return f"epoch {epoch['epoch']}: physical offsets {start:,} to {end:,}"


def _show_table(rows: list[tuple[str, ...]]) -> None:
    if len(rows) <= _MOST_TABLE_ROWS:
        table = Table(*_STAT_COLUMNS)
        for cells in rows:
            table.add_row(*cells)
        out_console().print(table)
        return
    # Rich takes seconds for thousands of rows.
    widths = [max(map(len, column)) for column in zip(_STAT_COLUMNS, *rows, strict=True)]
    for cells in (_STAT_COLUMNS, *rows):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _stat_cells(info: QueueInfo) -> tuple[str, ...]:
    numbers = (
        info.queue_id,
        info.min_offset,
        info.max_offset,
        info.max_offset - info.min_offset,
        info.n_bytes,
    )
    stored = (info.first_store_timestamp, info.last_store_timestamp)
    return (
        info.topic,
        *(f"{number:,}" for number in numbers),
        *(time_text(timestamp) for timestamp in stored),
    )


def _queues(
    store: MessageStore, topics: tuple[str, ...], *, with_system: bool
) -> Iterator[QueueInfo]:
    selection = parse_selection(subscribe=topics or None, include_system_topics=with_system)
    store.session.require_topics(selection)
    chosen = store.session.chosen_queues(selection)
    with err_console.status("reading queues") as status:
        for topic in chosen:
            status.update(f"reading queues of {topic}")
            yield from store.queues(topic)


@main.command()
@store_path
@some_messages
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most N messages.")
@ends_clearly
def dump(path: Path, limit: int | None, ignore_log_end: bool, **choice: Any) -> None:  # noqa: ANN401 - see some_messages
    """Write messages as JSON Lines. A body that is not UTF-8 is written as bodyBase64."""
    with open_store(path, ignore_log_end=ignore_log_end) as store:
        batches: Iterable[pa.RecordBatch] = scan(store, **choice)
        if err_console.is_terminal and not sys.stdout.isatty():
            batches = counted(batches, f"reading {path}")
        damaged = write_rows(batches, limit)
    if damaged:
        click.echo(f"damage: {damaged} records; see _corrupt_record", err=True)
        sys.exit(DAMAGE)


@main.command()
@store_path
@click.argument("place")
@ends_clearly
def get(path: Path, place: str) -> None:
    """Show one message by its PLACE.

    PLACE is an offset message id (32 or 56 hex digits), or a physical offset in decimal.
    """
    is_offset = place.isdecimal() and len(place) < _ID_DIGITS
    with open_store(path) as store:
        message = store.get(int(place) if is_offset else place)
    click.echo(json.dumps(jsonable(message._asdict()), ensure_ascii=False, indent=2))
