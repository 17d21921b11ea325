"""The verb that shares the queues of a consumer group among its clients: assign."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import click

from rmqstore.cli.common import (
    as_json_lines,
    ends_clearly,
    main,
    open_store,
    out_console,
    some_topics,
    table_of,
)
from rmqstore.inspect.allocation import STRATEGIES, Allocation
from rmqstore.inspect.assignments import Assignment
from rmqstore.inspect.assignments import assign as share_queues

_ON_THE_LINE = [name for name in STRATEGIES if name != "CONFIG"]


@main.command()
@click.argument(
    "paths",
    metavar="PATH...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("-g", "--group", required=True, help="The consumer group.")
@click.option(
    "-c", "--client", "clients", multiple=True, required=True, help="A client id; may be repeated."
)
@some_topics
@click.option("--strategy", type=click.Choice(_ON_THE_LINE), default="AVG", show_default=True)
@click.option(
    "--room",
    "rooms",
    multiple=True,
    help="With MACHINE_ROOM: a room whose brokers, ROOM@NAME, are consumed; may be repeated.",
)
@as_json_lines
@ends_clearly
def assign(
    paths: tuple[Path, ...],
    group: str,
    clients: tuple[str, ...],
    topics: tuple[str, ...],
    strategy: str,
    rooms: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show which client of a group would own which queue, and with what backlog.

    PATH... are the stores of all brokers of a cluster, one of each. The shares are those that
    clients of RocketMQ compute, by the same strategy. Without --topic they are of the topics that
    the group has committed offsets of.
    """
    allocation = Allocation(strategy, frozenset(rooms))
    with ExitStack() as stack:
        stores = [stack.enter_context(open_store(path)) for path in paths]
        rows = [
            row._asdict()
            for row in share_queues(
                stores, group, clients, topics=topics or None, allocation=allocation
            )
        ]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    else:
        out_console().print(table_of(rows, Assignment._fields))
