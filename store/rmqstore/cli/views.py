"""The verbs that show views of stores and of clusters, as rows.

These are view, topics, groups, brokers, describe, assign and routes.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import click
import pyarrow as pa

from rmqstore.cli.common import ends_clearly
from rmqstore.cli.messages import topics_of_views, where_queue
from rmqstore.cli.options import options
from rmqstore.cli.output import Output, gives_rows
from rmqstore.cli.stores import open_as_one, open_stores, store_paths
from rmqstore.cli.verbs import main
from rmqstore.errors import OptionError
from rmqstore.inspect.describe import describe, select_described
from rmqstore.query.arguments import ViewArguments
from rmqstore.query.selection import nearest_topics
from rmqstore.query.times import in_current_zone
from rmqstore.query.where import literally
from rmqstore.read.views.schema import ALLOWED, VIEWS
from rmqstore.storage.files.local import LOCAL
from rmqstore.store.cluster import StoreCluster

# Options of views, and the argument of ``MessageStore.view`` for each.
_ARGUMENTS = {
    "--group": "consumer_group",
    "--begin": "starting_timestamp",
    "--end": "ending_timestamp",
}


class _ViewName(click.Choice):  # type: ignore[type-arg]  # not generic before click 8.2
    """The name of a view in any case; help and errors show it as it is documented."""

    def __init__(self) -> None:
        super().__init__(list(VIEWS))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401
        """Return the name."""
        by_lower_case = {name.lower(): name for name in VIEWS}
        if str(value).lower() not in by_lower_case and LOCAL.exists(value):
            self.fail(f"{value} is a path: the name of a view comes before it", param, ctx)
        name: str = super().convert(by_lower_case.get(str(value).lower(), value), param, ctx)
        return name


@main.command()
@click.argument("name", metavar="NAME", type=_ViewName())
@store_paths
@options(
    "topics", "consumer_group", "starting_timestamp", "ending_timestamp", "queue_ids",
    "least_offset", "unique_key", "ignore_log_end", "word_of_keys", "where",
    "include_system_topics", "columns", where='"lag > 0 AND queueId = 1"',
)  # fmt: skip
@ends_clearly
@gives_rows()
def view(
    name: str,
    queue_ids: tuple[int, ...],
    least_offset: int | None,
    unique_key: str | None,
    word_of_keys: str | None,
    where: str | None,
    output: Output,
    **chosen: Any,  # noqa: ANN401 - arguments of _show
) -> None:
    """Show a view of one store, or of the stores of several brokers.

    NAME is queues, topics, commitlog, consumequeue, index, groups, epochs, stores, routes, files,
    deadLetters, traces or consumed.

    Damage stops no view: column reason says what is damaged.

    Examples:
        rmqstore view files /data/rocketmq/store
        rmqstore view commitlog /data/rocketmq/store --columns commitLogOffset,storeSize -n 5
    """
    for option, argument in _ARGUMENTS.items():
        if chosen[argument] is not None and name not in ALLOWED[argument]:
            raise click.UsageError(f"{option} does not go with view {name}")
    has_key = None
    if word_of_keys is not None:
        word = literally(word_of_keys)
        patterns = (f"{word} %", f"% {word}", f"% {word} %")
        others = [f"keys LIKE {_quoted(pattern)}" for pattern in patterns]
        has_key = " OR ".join([f"keys = {_quoted(word_of_keys)}", *others])
    conditions = []
    for option, column, condition in (
        ("-i", "queueId", where_queue(queue_ids, None, {})),
        ("-o", "queueOffset", None if least_offset is None else f"queueOffset >= {least_offset}"),
        ("-m", "msgId", _equals("msgId", unique_key)),
        ("-k", "keys", has_key),
    ):
        if condition is None:
            continue
        if column not in VIEWS[name].names:
            raise click.UsageError(f"{option} does not go with view {name}")
        conditions.append(condition)
    if where is not None and conditions:
        conditions.insert(0, where)
    joined = " AND ".join(f"({condition})" for condition in conditions) or where
    _show(name, output, where=joined, **chosen)


def _equals(column: str, value: str | None) -> str | None:
    return None if value is None else f"{column} = {_quoted(value)}"


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


@main.command("topics")
@store_paths
@options("topics", "include_system_topics", "where", "columns", where='"messages > 1000"')
@ends_clearly
@gives_rows()
def show_topics(output: Output, **chosen: Any) -> None:  # noqa: ANN401 - arguments of _show
    """Show topics: queues, messages, bytes, first and last store time, numbers of queues, perm.

    Examples:
        rmqstore topics /data/rocketmq/store
        rmqstore topics /data/rocketmq/store --columns topic,messages --format csv
    """
    _show("topics", output, **chosen)


@main.command()
@store_paths
@options("topics", "consumer_group", "where", "columns", where='"lag > 1000"')
@ends_clearly
@gives_rows()
def groups(
    paths: tuple[Path, ...],
    consumer_group: str | None,
    where: str | None,
    output: Output,
    **chosen: Any,  # noqa: ANN401 - arguments of _show
) -> None:
    """Show what consumer groups have consumed of each queue, and their lag.

    Examples:
        rmqstore groups /data/rocketmq/store
        rmqstore groups /data/rocketmq/store -t LivePlain --format csv
    """
    if consumer_group is not None:
        known: set[str] = set()
        with open_stores(paths) as stores:
            for store in stores:
                rows = store.view("groups", columns="consumerGroup").read_all()
                known.update(rows.column("consumerGroup").to_pylist())
        if consumer_group not in known:
            nearest = nearest_topics([consumer_group], known, "consumer groups")
            raise OptionError(f"`consumer_group` {consumer_group}: no store knows it; {nearest}")
        of_group = _equals("consumerGroup", consumer_group)
        where = of_group if where is None else f"{of_group} AND ({where})"
    _show("groups", output, paths=paths, where=where, **chosen)


@main.command("brokers")
@store_paths
@options("columns")
@ends_clearly
@gives_rows()
def show_brokers(output: Output, **chosen: Any) -> None:  # noqa: ANN401 - arguments of _show
    """Show whose stores these are, where their logs begin and end, and which replicas are read.

    Examples:
        rmqstore brokers /data/rocketmq/store /data/rocketmq/crashed
        rmqstore brokers -c /data/rocketmq/broker.conf --json
    """
    _show("stores", output, **chosen)


@main.command("describe")
@store_paths
@options("columns")
@ends_clearly
@gives_rows()
def describe_stores(paths: tuple[Path, ...], columns: str | None, output: Output) -> None:
    """Show what a store is: kind, broker, state, sizes of files, where its log begins and ends.

    A table has a line for each of these and a column for each store, the other formats a row for
    each store.

    Examples:
        rmqstore describe /data/rocketmq/store
        rmqstore describe -c /data/rocketmq/broker.conf --columns state,maxOffset --json
    """
    with open_stores(paths) as stores:
        rows = describe(stores)
    if columns is not None:
        rows = rows.select(select_described(columns))
    if output.is_table:
        rows = _turned(rows)
        output = output._replace(is_cut=False)
    output.write_table(rows)


def _turned(rows: pa.Table) -> pa.Table:
    """Return a table with a row for each column, and a column for each row."""
    columns = []
    for row in rows.to_pylist():
        words = []
        for name in rows.column_names:
            value = row[name]
            if isinstance(value, list):
                words.append("\n".join(value) or "-")
            elif isinstance(value, datetime):
                words.append(in_current_zone(value).isoformat(timespec="milliseconds"))
            else:
                words.append("-" if value is None else str(value))
        columns.append(words)
    names = ["what", "is"]
    if len(columns) != 1:
        names = ["what", *(f"store {number}" for number, _ in enumerate(columns, 1))]
    return pa.table([rows.column_names, *columns], names)


def _show(
    name: str,
    output: Output,
    *,
    paths: tuple[Path, ...],
    columns: str | None,
    topics: tuple[str, ...] = (),
    include_system_topics: bool = False,
    ignore_log_end: bool = False,
    where: str | None = None,
    **arguments: str | None,
) -> None:
    if topics and name not in ALLOWED["subscribe"]:
        raise click.UsageError(f"-t does not go with view {name}")
    is_for_all = name not in ALLOWED["include_system_topics"]
    if include_system_topics and is_for_all:
        raise click.UsageError(f"--all does not go with view {name}")
    named = topics_of_views(topics, include_system_topics=include_system_topics or is_for_all)
    given = {argument: value for argument, value in arguments.items() if value is not None}
    chosen = cast("ViewArguments", {**given, **named})
    if include_system_topics:
        chosen["include_system_topics"] = True
    with open_as_one(paths, ignore_log_end=ignore_log_end) as source:
        rows = source.view(name, columns=columns, where=where, **chosen)
        output.write(rows.schema, rows)


@main.command()
@partial(store_paths, confs="confs_beside_clients")  # its -c names clients
@options("group_of_clients", "clients", "topics", "strategy", "rooms", "columns")
@ends_clearly
@gives_rows()
def assign(
    paths: tuple[Path, ...],
    group_of_clients: str,
    clients: tuple[str, ...],
    topics: tuple[str, ...],
    strategy: str,
    rooms: tuple[str, ...],
    columns: str | None,
    output: Output,
) -> None:
    """Show which client of a group would own which queue, and with what backlog.

    PATH... are the stores of all brokers of a cluster; of a master and its replicas one is read.
    The shares are those that clients of RocketMQ compute, by the same strategy. Without --topic
    they are of the topics that the group has committed offsets of.

    Examples:
        rmqstore assign /data/rocketmq/store -g CG_part -c host-1@17 -c host-2@23
        rmqstore assign /data/rocketmq/store -g billing -t Orders -c c1 --strategy AVG_BY_CIRCLE
    """
    chosen: dict[str, object] = {
        "consumer_group": group_of_clients,
        "clients": clients,
        "strategy": strategy,
        "rooms": rooms or None,
    }
    named = topics_of_views(topics, include_system_topics=False)
    with open_stores(paths) as stores:
        arguments = cast("ViewArguments", chosen | named)
        rows = StoreCluster(stores).view("assignments", columns=columns, **arguments)
        output.write(rows.schema, rows)


@main.command()
@store_paths
@options("topics", "include_system_topics", "columns")
@ends_clearly
@gives_rows()
def routes(output: Output, **chosen: Any) -> None:  # noqa: ANN401 - arguments of _show
    """Show what a name server answers for each topic, as far as its brokers' stores show it.

    PATH... are the stores of all brokers of a cluster, also of replicas.

    Examples:
        rmqstore routes /data/rocketmq/store
        rmqstore routes -c /data/rocketmq/broker.conf -t Orders --json
    """
    _show("routes", output, **chosen)
