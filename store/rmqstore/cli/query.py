"""The verb that finds messages: query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.cli.common import (
    as_json_lines,
    ends_clearly,
    err_console,
    main,
    open_store,
    out_console,
    store_path,
    table_of,
    with_system_topics,
    write_rows,
)
from rmqstore.query.keys import parse_wanted
from rmqstore.query.selection import parse_selection
from rmqstore.query.times import parse_timestamp
from rmqstore.read.lookup.candidates import SMALL_GAPS
from rmqstore.store import MessageStore

_COLUMNS = "topic,queueId,queueOffset,storeTimestamp,tags,keys,msgId,storeSize,commitLogOffset"


@main.command()
@store_path
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    help="Only this topic; may be repeated. All user topics if not given.",
)
@click.option(
    "-k",
    "--key",
    "keys",
    multiple=True,
    help="Messages with this key: UNIQ_KEY or a word of KEYS; may be repeated.",
)
@click.option(
    "-m",
    "--msg-id",
    "ids",
    multiple=True,
    help="Messages with this id, the client's or the broker's; may be repeated.",
)
@click.option("--tags", multiple=True, help="Messages with these tags; may be repeated.")
@click.option(
    "--time",
    help="Instead, with -t: the queue offsets at this store time.",
)
@click.option("-b", "--begin", help="Stored at or after: epoch ms, ISO-8601 or -1h.")
@click.option("-e", "--end", help="Stored before: epoch ms, ISO-8601 or -1h.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Only the newest N messages.")
@click.option(
    "--index-only",
    is_flag=True,
    help="Do not read the parts of the log that the index does not cover.",
)
@with_system_topics
@as_json_lines
@ends_clearly
def query(
    path: Path,
    topics: tuple[str, ...],
    time: str | None,
    as_json: bool,
    **lookup: Any,  # noqa: ANN401
) -> None:
    """Find messages by key, id or tags, through the index; or queue offsets by time.

    All matches are found, however many there are. Parts of the log that the index does not cover
    are read; stderr says so.
    """
    named = [name for name in ("keys", "ids", "tags") if lookup[name]]
    if len(named) + (time is not None) != 1:
        raise click.UsageError("give one of -k, -m, --tags and --time")
    with open_store(path) as store:
        if time is not None:
            if any(lookup[name] for name in ("begin", "end", "limit", "index_only")):
                raise click.UsageError("--time goes only with -t and --json")
            _show_offsets(store, topics, time, as_json=as_json)
        else:
            _show_messages(store, topics, as_json=as_json, **lookup)


def _show_offsets(
    store: MessageStore, topics: tuple[str, ...], time: str, *, as_json: bool
) -> None:
    if not topics:
        raise click.UsageError("--time needs -t")
    store.session.require_topics(parse_selection(subscribe=topics))
    with err_console.status("searching"):
        rows = [
            {
                "topic": topic,
                "queueId": queue_id,
                "timestamp": parse_timestamp("--time", time),
                "queueOffset": offset,
            }
            for topic in topics
            for queue_id, offset in store.offsets_at(topic, time).items()
        ]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    else:
        out_console().print(table_of(rows))


def _show_messages(
    store: MessageStore,
    topics: tuple[str, ...],
    *,
    keys: tuple[str, ...],
    ids: tuple[str, ...],
    tags: tuple[str, ...],
    begin: str | None,
    end: str | None,
    limit: int | None,
    index_only: bool,
    with_system: bool,
    as_json: bool,
) -> None:
    selection: dict[str, Any] = {
        "subscribe": topics or None,
        "include_system_topics": with_system,
        "starting_timestamp": begin,
        "ending_timestamp": end,
    }
    wanted = parse_wanted(keys or None, ids or None, tags or None)
    n_uncovered = store.session.find(wanted, parse_selection(**selection)).n_uncovered_bytes
    if n_uncovered > SMALL_GAPS:
        consequence = "are not searched" if index_only else "are read"
        text = f"{n_uncovered:,} bytes of the log are not covered by the index: they {consequence}"
        click.echo(text, err=True)
    with err_console.status("searching"):
        batches = store.scan(
            **selection,
            msg_key=keys or None,
            msg_id=ids or None,
            msg_tags=tags or None,
            index_only=index_only,
            columns=None if as_json else _COLUMNS,
        )
        rows = pa.Table.from_batches(batches, batches.schema)
    if store.session.is_tiered:  # its queues come one after the other
        rows = rows.take(pc.sort_indices(rows.column("storeTimestamp")))
    newest = rows.slice(max(0, rows.num_rows - limit)) if limit else rows
    if as_json:
        write_rows(newest.to_batches(), None)
    else:
        out_console().print(table_of(newest.to_pylist(), _COLUMNS.split(",")))
    if not rows.num_rows:
        click.echo("no messages found", err=True)
