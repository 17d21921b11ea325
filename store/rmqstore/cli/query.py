"""The verbs that find messages: query, get, trace."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import click
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.cli.common import USAGE, ends_clearly, err_console, progress_bar
from rmqstore.cli.messages import (
    columns_shown,
    columns_to_read,
    in_form,
    some_bodies,
    topic_arguments,
    where_queue,
)
from rmqstore.cli.options import options
from rmqstore.cli.output import Output, columns_of, gives_rows
from rmqstore.cli.stores import each_store, open_as_one, store_paths, store_paths_and_ids
from rmqstore.cli.verbs import main
from rmqstore.errors import MessageNotFoundError
from rmqstore.exchange.bodies import BodyForm
from rmqstore.format.schema import Message, select_columns
from rmqstore.inspect.trace import find_messages, trace
from rmqstore.query.arguments import BoundArguments
from rmqstore.query.selection import (
    LookupKeys,
    Selection,
    choose_topics,
    match_topics,
    parse_lookup_keys,
    parse_selection,
    require_named,
)
from rmqstore.query.times import parse_timestamp
from rmqstore.read.lookup import SMALL_GAPS
from rmqstore.read.reading import find_by_keys
from rmqstore.store.cluster import StoreCluster
from rmqstore.store.message_store import MessageStore

_COLUMNS = "topic,queueId,queueOffset,storeTimestamp,tags,keys,msgId,storeSize,commitLogOffset"
_OFFSETS = pa.schema(
    [
        ("brokerName", pa.string()),  # where there are several
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("queueOffset", pa.int64()),
    ]
)


@main.command()
@store_paths
@options(
    "topics", "queue_ids", "msg_key", "msg_id", "msg_tags", "timestamp", "starting_timestamp",
    "ending_timestamp", "columns", "index_only", "include_system_topics", "quiet",
)  # fmt: skip
@ends_clearly
@gives_rows(limit="the newest")
@some_bodies
def query(
    paths: tuple[Path, ...],
    topics: tuple[str, ...],
    timestamp: str | None,
    columns: str | None,
    output: Output,
    bodies: BodyForm | None,
    **lookup: Any,  # noqa: ANN401
) -> None:
    """Find messages by key, id or tags, through the index; or queue offsets by time.

    All matches are found, however many there are. Parts of the log that the index does not cover
    are read; stderr says so. A table has a few columns, the other formats have all. PATH may be
    several stores, of which one of each broker is searched.

    Examples:
        rmqstore query /data/rocketmq/store -t Orders -k order-17
        rmqstore query /data/rocketmq/store -t Orders --time -1h
    """
    keys = {name: lookup.pop(name) or None for name in ("msg_key", "msg_id", "msg_tags")}
    named = [name for name, words in keys.items() if words is not None]
    if len(named) + (timestamp is not None) != 1:
        raise click.UsageError("give one of -k, -m, --tags and --time")
    with open_as_one(paths) as store:
        if timestamp is not None:
            others = ("starting_timestamp", "ending_timestamp", "index_only", "queue_ids")
            if columns or bodies or any(lookup[name] for name in others):
                raise click.UsageError("--time goes only with -t and the options of the output")
            takes_all = lookup["include_system_topics"]
            offsets = _offsets(store, topics, timestamp, include_system_topics=takes_all)
            output.write_table(offsets)
            return
        names = _COLUMNS if bodies is None else f"{_COLUMNS},body"
        columns = columns_shown(columns, output, names, is_one=isinstance(store, MessageStore))
        found = _messages(store, topics, columns_to_read(columns, bodies), keys, **lookup)
        newest = found.slice(max(0, found.num_rows - (output.limit or found.num_rows)))
        output.write(*in_form(newest.to_reader(), bodies))


def _offsets(
    store: MessageStore | StoreCluster,
    names: tuple[str, ...],
    time: str,
    *,
    include_system_topics: bool,
) -> pa.Table:
    if not names:
        raise click.UsageError("--time needs -t")
    topics = match_topics(names, store.topics(), include_system_topics=include_system_topics)
    stores = each_store(store)
    _require_topics(stores, parse_selection(subscribe=topics))
    timestamp = parse_timestamp("timestamp", time)
    with err_console.status("searching"):
        rows = [
            (member.broker_name, topic, queue_id, timestamp, offset)
            for member in stores
            for topic in topics
            for queue_id, offset in member.offsets_at(topic, time).items()
        ]
    named = [dict(zip(_OFFSETS.names, row, strict=True)) for row in rows]
    offsets = pa.Table.from_pylist(named, schema=_OFFSETS)
    return offsets if len(stores) > 1 else offsets.select(_OFFSETS.names[1:])


def _warn_of_gaps(
    stores: Sequence[MessageStore], lookup: LookupKeys, selection: Selection, *, index_only: bool
) -> None:
    """Say how much of the log the index does not cover, and of which topics it lacks messages."""
    n_uncovered = sum(
        find_by_keys(store.parts, lookup, selection).n_uncovered_bytes for store in stores
    )
    if n_uncovered > SMALL_GAPS:
        consequence = "are not searched" if index_only else "are read"
        text = f"{n_uncovered:,} bytes of the log are not covered by the index: they {consequence}"
        click.echo(text, err=True)
    if lookup.keys:
        example = "keys = 'KEY'"
    elif lookup.msg_ids:
        example = "msgId = 'ID'"
    else:
        return
    batches = {topic for store in stores for topic in store.parts.queues.batch_topics()}
    if topics := choose_topics(selection, sorted(batches)):
        text = f'messages that share a record are in no index: dump --where "{example}" finds them'
        click.echo(f"{', '.join(topics)}: {text}", err=True)


def _require_topics(stores: Sequence[MessageStore], selection: Selection) -> None:
    """Refuse topics that no store knows."""
    known = [store.parts.ranges.named_queues(selection) for store in stores]
    require_named(selection, known, ", ".join(str(store.paths.root) for store in stores))


def _messages(
    store: MessageStore | StoreCluster,
    topics: tuple[str, ...],
    columns: str | None,
    keys: dict[str, Any],
    *,
    queue_ids: tuple[int, ...],
    index_only: bool,
    include_system_topics: bool,
    **times: Unpack[BoundArguments],
) -> pa.Table:
    chosen = topic_arguments(store, topics, queue_ids, include_system_topics)
    selection = parse_selection(**chosen, **times)
    stores = each_store(store)
    _warn_of_gaps(stores, parse_lookup_keys(**keys), selection, index_only=index_only)
    # Stores come one after the other, and so do the queues of tiered storage.
    is_in_order = len(stores) == 1 and not stores[0].parts.is_tiered
    tables = []
    with progress_bar("searching", stays=False) as progress:
        for member in stores:
            found = member.scan(
                **chosen,
                **times,
                where=where_queue(queue_ids, None, chosen),
                **keys,
                index_only=index_only,
                columns=columns if is_in_order else None,
                progress=progress,
            )
            tables.append(found.read_all())
    rows = pa.concat_tables(tables)
    if not len(rows):  # records may name topics that were deleted
        _require_topics(stores, selection)
    if not is_in_order:
        names = rows.column_names
        if columns is not None:
            names = columns_of(columns, names)
        rows = rows.take(pc.sort_indices(rows.column("storeTimestamp"))).select(names)
    return rows


@main.command()
@store_paths_and_ids
@options("topics", "columns", "quiet")
@ends_clearly
@gives_rows("pretty")
@some_bodies
def get(
    paths: tuple[Path, ...],
    ids: tuple[str, ...],
    topics: tuple[str, ...],
    columns: str | None,
    output: Output,
    bodies: BodyForm | None,
) -> None:
    """Show the messages that IDs name: physical offsets, offset message ids or unique keys.

    A unique key is that of a message and of its retries, dead letters and forms before its
    delivery: all of them are shown, oldest first, or those of the topics given. What names no
    message is said on stderr; the exit code is 2 then. PATH may be several stores, each of which
    is searched for all IDs.

    Examples:
        rmqstore get /data/rocketmq/store 496
        rmqstore get /data/rocketmq/store 7F0000010000904D00000000000001F0
    """
    names = columns_to_read(columns or ",".join(Message._fields), bodies)
    schema = select_columns(name.strip() for name in names.split(","))
    with open_as_one(paths) as opened, progress_bar("searching", stays=False) as progress:
        chosen = topic_arguments(opened, topics, (), include_system_topics=True)
        results = [find_messages(store, ids, chosen, progress) for store in each_store(opened)]
    found = pa.concat_tables([result.table(schema) for result in results])
    output.write_any(*in_form(found.to_reader(), bodies))
    missing = [
        name for name in results[0].missing if all(name in result.missing for result in results)
    ]
    for name in missing:
        click.echo(f"not found: {name}: {results[0].missing[name]}", err=True)
    if missing:
        sys.exit(USAGE)


@main.command("trace")
@store_paths
@click.argument("message_id", metavar="ID")
@options("columns", "quiet")
@ends_clearly
@gives_rows()
def trace_message(
    paths: tuple[Path, ...], message_id: str, columns: str | None, output: Output
) -> None:
    """Show what became of a message: its records, and which groups have passed them.

    ID is a unique key, an offset message id or a physical offset, of the message or of any of its
    retries and dead letters. There is a row for each record and each group that consumes its topic.
    PATH may be several stores, because a retry may lie at another broker than its origin.

    Examples:
        rmqstore trace /data/rocketmq/store 496
        rmqstore trace /data/rocketmq/store 7F0000010000904D00000000000001F0 --json
    """
    with open_as_one(paths) as opened, progress_bar("searching", stays=False) as progress:
        stores = each_store(opened)
        tables = []
        not_found: MessageNotFoundError | None = None
        for store in stores:
            try:
                rows = trace(store, message_id, progress)
            except MessageNotFoundError as err:
                not_found = not_found or err
                continue
            if len(stores) > 1:
                names = pa.array([store.broker_name] * len(rows), pa.string())
                rows = rows.add_column(0, "brokerName", names)
            tables.append(rows)
    if not tables and not_found is not None:
        raise not_found
    rows = pa.concat_tables(tables)
    if columns is None and output.is_table:
        rows = rows.drop(["msgId", "offsetMsgId"])
    output.write_table(rows, columns)
