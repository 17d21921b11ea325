"""The verbs about the brokers of a cluster: assign, routes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from rmqstore.cli.common import ends_clearly, main, with_system_topics
from rmqstore.cli.messages import matching_topics, topics_of_views
from rmqstore.cli.output import Output, gives_rows
from rmqstore.cli.stores import open_stores, store_paths, store_paths_beside_clients
from rmqstore.query.allocation import STRATEGIES
from rmqstore.query.arguments import ViewArguments
from rmqstore.store.cluster import StoreCluster

_ON_THE_LINE = [name for name in STRATEGIES if name != "CONFIG"]


@main.command()
@store_paths_beside_clients
@click.option("-g", "--group", required=True, help="The consumer group.")
@click.option(
    "-c", "--client", "clients", multiple=True, required=True, help="A client id; may be repeated."
)
@matching_topics
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
    chosen: dict[str, object] = {
        "consumer_group": group,
        "clients": clients,
        "strategy": strategy,
        "rooms": rooms or None,
    }
    named = topics_of_views(topics, with_system=False)
    with open_stores(paths, brokers) as stores:
        rows = StoreCluster(stores).view("assignments", **cast("ViewArguments", chosen | named))
        output.write(rows.schema, rows)


@main.command()
@store_paths
@matching_topics
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
    named = topics_of_views(topics, with_system=with_system)
    named["include_system_topics"] = with_system
    with open_stores(paths, brokers) as stores:
        rows = StoreCluster(stores).view("routes", **named)
        output.write(rows.schema, rows)
