"""The verbs that show what stores are made of, as rows: view, topics, groups, brokers, describe."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import cast

import click
import pyarrow as pa

from rmqstore.cli.common import ends_clearly, main, with_system_topics
from rmqstore.cli.messages import matching_topics, some_columns, topics_of_views
from rmqstore.cli.output import Output, gives_rows
from rmqstore.cli.stores import open_stores, store_paths
from rmqstore.inspect.describe import describe, select_described
from rmqstore.query.arguments import ViewArguments
from rmqstore.read.views.schema import ALLOWED, VIEWS
from rmqstore.store.cluster import StoreCluster
from rmqstore.store.message_store import MessageStore

# Options of views, and the argument of ``MessageStore.view`` for each.
_ARGUMENTS = {
    "--group": "consumer_group",
    "--begin": "starting_timestamp",
    "--end": "ending_timestamp",
}


@main.command()
@click.argument("name", type=click.Choice(list(VIEWS), case_sensitive=False))
@store_paths
@matching_topics
@click.option("-g", "--group", "consumer_group", help="Only this consumer group.")
@click.option(
    "-b",
    "--begin",
    "starting_timestamp",
    metavar="TIME",
    help="Views of messages: stored at or after this time.",
)
@click.option(
    "-e", "--end", "ending_timestamp", metavar="TIME", help="Views of messages: stored before."
)
@with_system_topics
@some_columns
@ends_clearly
@gives_rows()
def view(
    name: str,
    paths: tuple[Path, ...],
    brokers: str | None,
    topics: tuple[str, ...],
    with_system: bool,
    columns: str | None,
    output: Output,
    **chosen: str | None,
) -> None:
    """Show a view of one store, or of the stores of several brokers.

    Damage stops no view: column reason says what is damaged.
    """
    for option, argument in _ARGUMENTS.items():
        if chosen[argument] is not None and name not in ALLOWED[argument]:
            raise click.UsageError(f"{option} does not go with view {name}")
    given = {argument: value for argument, value in chosen.items() if value is not None}
    _show(name, paths, brokers, topics, columns, output, with_system=with_system, **given)


@main.command("topics")
@store_paths
@matching_topics
@with_system_topics
@some_columns
@ends_clearly
@gives_rows()
def show_topics(
    paths: tuple[Path, ...],
    brokers: str | None,
    topics: tuple[str, ...],
    with_system: bool,
    columns: str | None,
    output: Output,
) -> None:
    """Show topics: queues, messages, bytes, first and last store time, numbers of queues, perm."""
    _show("topics", paths, brokers, topics, columns, output, with_system=with_system)


@main.command()
@store_paths
@matching_topics
@some_columns
@ends_clearly
@gives_rows()
def groups(
    paths: tuple[Path, ...],
    brokers: str | None,
    topics: tuple[str, ...],
    columns: str | None,
    output: Output,
) -> None:
    """Show what consumer groups have consumed of each queue, and their lag."""
    _show("groups", paths, brokers, topics, columns, output)


@main.command("brokers")
@store_paths
@some_columns
@ends_clearly
@gives_rows()
def show_brokers(
    paths: tuple[Path, ...], brokers: str | None, columns: str | None, output: Output
) -> None:
    """Show whose stores these are, where their logs begin and end, and which replicas are read."""
    _show("stores", paths, brokers, (), columns, output)


@main.command("describe")
@store_paths
@some_columns
@ends_clearly
@gives_rows()
def describe_stores(
    paths: tuple[Path, ...], brokers: str | None, columns: str | None, output: Output
) -> None:
    """Show what a store is: kind, broker, state, sizes of files, where its log begins and ends.

    A table has a line for each of these and a column for each store, the other formats a row for
    each store.
    """
    with open_stores(paths, brokers) as stores:
        rows = describe(stores)
    if columns is not None:
        rows = rows.select(select_described(columns))
    if output.is_table:
        rows = _turned(rows)
    output.write(rows.schema, rows.to_batches())


def _turned(rows: pa.Table) -> pa.Table:
    """Return a table with a row for each column, and a column for each row."""
    cells = [[_in_words(row[name]) for name in rows.column_names] for row in rows.to_pylist()]
    names = ["what", *(f"store {number}" for number, _ in enumerate(cells, 1))]
    return pa.table([rows.column_names, *cells], ["what", "is"] if len(cells) == 1 else names)


def _in_words(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "\n".join(value) or "-"
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return str(value)


def _show(
    name: str,
    paths: tuple[Path, ...],
    brokers: str | None,
    topics: tuple[str, ...],
    columns: str | None,
    output: Output,
    *,
    with_system: bool = False,
    **arguments: str,
) -> None:
    if topics and name not in ALLOWED["subscribe"]:
        raise click.UsageError(f"-t does not go with view {name}")
    if with_system and name not in ALLOWED["include_system_topics"]:
        raise click.UsageError(f"--all does not go with view {name}")
    is_for_all = name not in ALLOWED["include_system_topics"]
    named = topics_of_views(topics, with_system=with_system or is_for_all)
    chosen = cast("ViewArguments", {**arguments, **named})
    if with_system:
        chosen["include_system_topics"] = True
    with open_stores(paths, brokers) as stores:
        source: MessageStore | StoreCluster = stores[0]
        if len(stores) > 1:
            source = StoreCluster(stores)
        rows = source.view(name, columns=columns, **chosen)
        output.write(rows.schema, rows)
