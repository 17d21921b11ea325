"""The verbs that look at a whole store: verify, rebuild and doctor."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pyarrow as pa

from rmqstore.cli.common import USAGE, confirm, ends_clearly, err_console, must_ask, progress_bar
from rmqstore.cli.options import options
from rmqstore.cli.output import Output, gives_findings, gives_rows, show_findings
from rmqstore.cli.stores import given_options, open_store, store_path
from rmqstore.cli.verbs import main
from rmqstore.errors import OptionError
from rmqstore.inspect.broker_start import misplaced_files
from rmqstore.inspect.changes import planned_rebuild
from rmqstore.inspect.doctor import WRONG, Check, examine
from rmqstore.inspect.remedies import CheckedStore, by_kind
from rmqstore.inspect.verify import verify as verify_store
from rmqstore.inspect.verify_index import may_have_index
from rmqstore.read.store_parts import StoreParts
from rmqstore.storage.files.remote_location import is_uri
from rmqstore.storage.index_search import may_have_index_table
from rmqstore.storage.recovery.log_end import n_written
from rmqstore.store.opening import open_for
from rmqstore.write.repairer import files_of_queues

_COLUMNS = pa.schema([(name, pa.string()) for name in Check._fields])


@main.command()
@click.argument("path", required=False)
@options("conf", "storage_options", "columns")
@ends_clearly
@gives_rows()
def doctor(path: str | None, columns: str | None, output: Output) -> None:
    """Look for what reading and writing takes: Python, packages, Java, Spark, and the store PATH.

    Column cure says how to repair each problem. The exit code is 2 if something is wrong.

    Examples:
        rmqstore doctor
        rmqstore doctor /data/rocketmq/store --json
    """
    given = given_options()
    checks = list(examine(path, given.conf, given.storage_options))
    rows = [check._asdict() for check in checks]
    output = output._replace(is_cut=False)  # a part of what to do is of no use
    output.write_table(pa.Table.from_pylist(rows, schema=_COLUMNS), columns)
    if any(check.state == WRONG for check in checks):
        sys.exit(USAGE)


@main.command()
@store_path
@options("quiet")
@ends_clearly
@gives_findings
def verify(path: Path, output: Output) -> None:
    """List every disagreement between CommitLog, ConsumeQueues and IndexFiles.

    The exit code is 1 if there is one, and 2 if the log holds no record to compare.

    Examples:
        rmqstore verify /data/rocketmq/store
        rmqstore verify /data/rocketmq/store --json
    """
    with open_store(path) as store, progress_bar(f"reading all of {path}") as progress:
        findings = list(verify_store(store, progress))
        compared = _compared(store.parts)
        tiered = given_options().tiered
        if store.parts.is_tiered:
            of_tier = "all messages in tiered storage are whole"
            compared = f"{compared}, and {of_tier}" if store.parts.has_store else of_tier
        elif not findings and not any(n_written(store.parts.log, [store.parts.ends.log_slice()])):
            raise OptionError(f"{path}: nothing was checked; the log holds no record")
        if findings:
            named = None if tiered is None else str(tiered)
            checked = CheckedStore.of(store.paths, str(path), named)
        for kind, remedy, of_kind in by_kind(findings):
            click.echo(f"{kind} ({remedy.severity}, {len(of_kind)}):", err=True)
            for line in remedy.lines(checked):
                click.echo(f"  {line}", err=True)
    show_findings(findings, output)
    click.echo(f"{path}: {compared}", err=True)


def _compared(store: StoreParts) -> str:
    """Say which parts of a store agree if nothing was found, and which were not compared."""
    parts = ["log"]
    others = []
    if not store.ends.are_queues_unread:
        parts.append("queues")
    if store.ends.why_unread is not None:
        others.append("queues in RocksDB were not compared")
    if may_have_index(store.paths):
        parts.append("index")
    if may_have_index_table(store.paths):
        others.append("index in RocksDB was not compared")
    elif "index" not in parts:
        others.append("there is no index")
    agreed = f"{', '.join(parts[:-1])} and {parts[-1]} agree" if parts[1:] else "the log is whole"
    return "; ".join([agreed, *others])


@main.command()
@store_path
@options("truncate", "broker_stopped", "dry_run", "yes", "quiet", truncate="a copy is kept")
@ends_clearly
@gives_findings
def rebuild(
    path: Path, truncate: bool, broker_stopped: bool, dry_run: bool, yes: bool, output: Output
) -> None:
    """Build ConsumeQueues and IndexFiles again from the CommitLog.

    The store is locked meanwhile, so no broker may run on it. Records that cannot have a unit, and
    other damage that remains, are listed; the exit code is 1 then. On a terminal it says what will
    change, and asks.

    Examples:
        rmqstore rebuild /data/rocketmq/store --dry-run
        rmqstore rebuild /data/rocketmq/crashed --truncate --yes
    """
    given = given_options()
    if given.tiered is not None:
        raise OptionError("--tiered: rebuild is for the local store; leave it out")
    if given.storage_options and not is_uri(path):  # opening the latter says more
        raise OptionError("--storage-option: only a store on the local disk can be rebuilt")
    with err_console.status(f"looking for the end of the log of {path}"):
        lines = planned_rebuild(
            path, truncate=truncate, broker_stopped=broker_stopped, **given.folders
        )
    if dry_run or must_ask(yes=yes):
        confirm(lines, "Rebuild?", dry_run=dry_run)
    with err_console.status(f"looking for the end of the log of {path}"):
        store = open_for(
            path, "a", truncate=truncate, broker_stopped=broker_stopped, **given.folders
        )
    with store, progress_bar(f"building queues and index of {path}") as progress:
        findings = store.rebuild(progress)
    with open_store(path) as built:
        findings += misplaced_files(built.paths)
        has_records = any(n_written(built.parts.log, [built.parts.ends.log_slice()]))
        n_queues = len({file.parent for file in files_of_queues(built.paths)})
    text = "nothing was built, as the CommitLog has no record"
    if has_records:
        text = f"{n_queues} queues and the index were built from the CommitLog"
    click.echo(f"{path}: {text}", err=True)
    show_findings(findings, output)
