"""The verbs about the brokers of a cluster: assign, routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from rmqstore.cli.common import (
    HOW_TO_OPEN,
    Command,
    StoreFolder,
    ends_clearly,
    given_options,
    main,
    open_store,
    some_topics,
    with_system_topics,
)
from rmqstore.cli.output import Output, gives_rows
from rmqstore.query.allocation import STRATEGIES
from rmqstore.query.arguments import ViewArguments
from rmqstore.storage.broker.brokers_file import names_by_path, read_brokers
from rmqstore.storage.files.storage import path_of
from rmqstore.store.cluster import StoreCluster
from rmqstore.store.message_store import MessageStore

_ON_THE_LINE = [name for name in STRATEGIES if name != "CONFIG"]


def store_paths(command: Command) -> Command:
    """Add the arguments that name the stores of a cluster, for :func:`open_stores`."""
    for parameter in (
        *HOW_TO_OPEN,
        click.option(
            "--brokers",
            metavar="FILE",
            help="A .json or .toml file, or a JSON object, with stores by broker name.",
        ),
        click.argument("paths", metavar="[PATH]...", nargs=-1, type=StoreFolder()),
    ):
        command = parameter(command)
    return command


@contextmanager
def open_stores(paths: Sequence[Path], brokers: str | None) -> Iterator[list[MessageStore]]:
    """Open the stores of a cluster, which the arguments of a command name."""
    names = {} if brokers is None else names_by_path(read_brokers(brokers))
    if bool(paths) == bool(names):
        raise click.UsageError("name stores by PATH..., or by --brokers")
    each: list[tuple[Path, str | None]] = [(path, None) for path in paths]
    each += [(path_of(path), name) for path, name in names.items()]
    given = given_options()
    if len(each) > 1 and (given.tiered or given.dledger_self_id):
        raise click.UsageError("--tiered and --dledger-self-id are for one store only")
    with ExitStack() as stack:
        yield [stack.enter_context(open_store(path, broker_name=name)) for path, name in each]


@main.command()
@store_paths
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
@ends_clearly
@gives_rows()
def assign(
    paths: tuple[Path, ...],
    brokers: str | None,
    group: str,
    clients: tuple[str, ...],
    topics: tuple[str, ...],
    strategy: str,
    rooms: tuple[str, ...],
    output: Output,
) -> None:
    """Show which client of a group would own which queue, and with what backlog.

    PATH... are the stores of all brokers of a cluster; of a master and its replicas one is read.
    The shares are those that clients of RocketMQ compute, by the same strategy. Without --topic
    they are of the topics that the group has committed offsets of.
    """
    chosen: ViewArguments = {
        "consumer_group": group,
        "clients": clients,
        "strategy": strategy,
        "rooms": rooms or None,
        "subscribe": topics or None,
    }
    with open_stores(paths, brokers) as stores:
        rows = StoreCluster(stores).view("assignments", **chosen)
        output.write(rows.schema, rows)


@main.command()
@store_paths
@some_topics
@with_system_topics
@ends_clearly
@gives_rows()
def routes(
    paths: tuple[Path, ...],
    brokers: str | None,
    topics: tuple[str, ...],
    with_system: bool,
    output: Output,
) -> None:
    """Show what a name server answers for each topic, as far as the stores of its brokers tell.

    PATH... are the stores of all brokers of a cluster, also of replicas.
    """
    chosen: ViewArguments = {"subscribe": topics or None, "include_system_topics": with_system}
    with open_stores(paths, brokers) as stores:
        rows = StoreCluster(stores).view("routes", **chosen)
        output.write(rows.schema, rows)
