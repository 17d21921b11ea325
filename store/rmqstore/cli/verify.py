"""The verbs that check and repair a store: verify, rebuild."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from rmqstore.cli.common import (
    DAMAGE,
    as_json_lines,
    ends_clearly,
    err_console,
    given_options,
    main,
    open_store,
    progress_bar,
    store_path,
)
from rmqstore.errors import Finding, OptionError
from rmqstore.inspect.verify import verify as verify_store
from rmqstore.storage.remote.location import is_uri
from rmqstore.storage.rocksdb.queue_tables import are_queues_unreadable, has_unreadable_queues
from rmqstore.store.opening import open_for


@main.command()
@store_path
@as_json_lines
@ends_clearly
def verify(path: Path, as_json: bool) -> None:
    """List every disagreement between CommitLog, ConsumeQueues and IndexFiles.

    The exit code is 1 if there is one.
    """
    with open_store(path) as store, progress_bar(f"reading all of {path}") as progress:
        findings = list(verify_store(store, progress))
        compared = "log, queues and index agree"
        if are_queues_unreadable(store.paths):
            compared = "log and index agree; queues in RocksDB were not compared"
        elif has_unreadable_queues(store.paths):
            compared += "; queues in RocksDB were not compared"
    _exit_if_any(findings, as_json=as_json)
    click.echo(f"{path}: {compared}", err=True)


def _exit_if_any(findings: list[Finding], *, as_json: bool = False) -> None:
    for finding in findings:
        line = f"{finding.part} {finding.place}: {finding.text}"
        click.echo(json.dumps(finding._asdict(), ensure_ascii=False) if as_json else line)
    if findings:
        click.echo(f"damage: {len(findings)} findings", err=True)
        sys.exit(DAMAGE)


@main.command()
@store_path
@click.option(
    "--truncate",
    is_flag=True,
    help="Cut a damaged log even if good records follow; a copy is kept.",
)
@ends_clearly
def rebuild(path: Path, truncate: bool) -> None:
    """Build ConsumeQueues and IndexFiles again from the CommitLog.

    The store is locked meanwhile, so no broker may run on it. Records that cannot have a unit, and
    other damage that remains, are listed; the exit code is 1 then.
    """
    given = given_options()
    if given.tiered is not None:
        raise OptionError("--tiered: rebuild is for the local store; leave it out")
    if given.storage_options and not is_uri(path):  # opening the latter says more
        raise OptionError("--storage-option: only a store on the local disk can be rebuilt")
    with err_console.status(f"looking for the end of the log of {path}"):
        store = open_for(path, "a", truncate=truncate, dledger_self_id=given.dledger_self_id)
    with store, progress_bar(f"building queues and index of {path}") as progress:
        findings = store.rebuild(progress)
    with open_store(path) as built:
        queues = sum(len(built.queue_ids(topic)) for topic in built.topics())
    click.echo(f"{path}: {queues} queues and the index were built from the CommitLog", err=True)
    _exit_if_any(findings)
