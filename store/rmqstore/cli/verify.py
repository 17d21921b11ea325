"""The verbs that check and repair a store: verify, rebuild."""

from __future__ import annotations

from pathlib import Path

import click

from rmqstore.cli.common import (
    asks_first,
    broker_stopped_option,
    confirm,
    ends_clearly,
    err_console,
    main,
    must_ask,
    progress_bar,
    shows_progress,
)
from rmqstore.cli.output import Output, gives_findings, show_findings
from rmqstore.cli.stores import given_options, open_store, store_path
from rmqstore.errors import OptionError
from rmqstore.inspect.changes import planned_rebuild
from rmqstore.inspect.verify import verify as verify_store
from rmqstore.storage.remote.location import is_uri
from rmqstore.storage.rocksdb.queue_tables import are_queues_unreadable, has_unreadable_queues
from rmqstore.store.opening import open_for


@main.command()
@store_path
@shows_progress
@ends_clearly
@gives_findings
def verify(path: Path, output: Output) -> None:
    """List every disagreement between CommitLog, ConsumeQueues and IndexFiles.

    The exit code is 1 if there is one, and 2 if the log holds no record to compare.
    """
    with open_store(path) as store, progress_bar(f"reading all of {path}") as progress:
        findings = list(verify_store(store, progress))
        compared = "log, queues and index agree"
        if are_queues_unreadable(store.paths):
            compared = "log and index agree; queues in RocksDB were not compared"
        elif has_unreadable_queues(store.paths):
            compared += "; queues in RocksDB were not compared"
        if not findings and not store.session.n_written([store.session.log_slice()]):
            raise OptionError(f"{path}: nothing was checked; the log holds no record")
    show_findings(findings, output)
    click.echo(f"{path}: {compared}", err=True)


@main.command()
@store_path
@click.option(
    "--truncate",
    is_flag=True,
    help="Cut a damaged log even if good records follow; a copy is kept.",
)
@broker_stopped_option
@asks_first
@shows_progress
@ends_clearly
@gives_findings
def rebuild(
    path: Path, truncate: bool, broker_stopped: bool, dry_run: bool, yes: bool, output: Output
) -> None:
    """Build ConsumeQueues and IndexFiles again from the CommitLog.

    The store is locked meanwhile, so no broker may run on it. Records that cannot have a unit, and
    other damage that remains, are listed; the exit code is 1 then. On a terminal it says what will
    change, and asks.
    """
    given = given_options()
    if given.tiered is not None:
        raise OptionError("--tiered: rebuild is for the local store; leave it out")
    if given.storage_options and not is_uri(path):  # opening the latter says more
        raise OptionError("--storage-option: only a store on the local disk can be rebuilt")
    if dry_run or must_ask(yes=yes):
        with err_console.status(f"looking for the end of the log of {path}"):
            lines = planned_rebuild(
                path, truncate=truncate, broker_stopped=broker_stopped, **given.folders
            )
        confirm(lines, "Rebuild?", dry_run=dry_run)
    with err_console.status(f"looking for the end of the log of {path}"):
        store = open_for(
            path, "a", truncate=truncate, broker_stopped=broker_stopped, **given.folders
        )
    with store, progress_bar(f"building queues and index of {path}") as progress:
        findings = store.rebuild(progress)
    with open_store(path) as built:
        queues = sum(len(built.queue_ids(topic)) for topic in built.topics())
    click.echo(f"{path}: {queues} queues and the index were built from the CommitLog", err=True)
    show_findings(findings, output)
