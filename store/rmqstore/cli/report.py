"""The verbs that look at a store and at the computer: report and doctor."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import pyarrow as pa

from rmqstore.cli.common import (
    DAMAGE,
    USAGE,
    ends_clearly,
    err_console,
    main,
    progress_bar,
    shows_progress,
)
from rmqstore.cli.messages import columns_of, some_columns
from rmqstore.cli.output import Output, gives_rows, require_new
from rmqstore.cli.stores import (
    conf_option,
    given_options,
    open_stores,
    storage_option,
    store_paths,
)
from rmqstore.errors import OptionError
from rmqstore.inspect.doctor import WRONG, Check, examine
from rmqstore.inspect.report.facts import StoreFacts
from rmqstore.inspect.report.gathering import gather
from rmqstore.inspect.report.page import render, require_libraries
from rmqstore.store.message_store import MessageStore


@main.command()
@store_paths
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The HTML file.",
)
@click.option(
    "--verify/--no-verify",
    "with_verify",
    default=True,
    help="Also check the stores, which reads all of them.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@shows_progress
@ends_clearly
def report(
    paths: tuple[Path, ...],
    brokers: str | None,
    output: Path,
    with_verify: bool,
    overwrite: bool,
) -> None:
    """Write a page about stores: topics, rates, queues, groups, files and findings of verify.

    The page is one HTML file that needs no network. The exit code is 1 if there are findings.
    """
    require_libraries()
    if output == Path("-"):
        raise OptionError("-o/--output -: a page is written into a file; name one")
    if len({*map(str, paths)}) < len(paths):
        raise OptionError("a store is named twice")
    require_new(output, overwrite=overwrite)
    with open_stores(paths, brokers) as stores:
        for store in stores:
            _require_outside(output, store)
        facts = [_gather(store, with_verify=with_verify) for store in stores]
    made = output.with_name(f"{output.name}.tmp")
    made.write_text(render(facts, datetime.now(UTC)), encoding="utf-8")
    made.replace(output)
    for one in facts:
        text = f"{one.messages:,} messages of {len(one.topics):,} topics"
        click.echo(f"{output}: {one.broker_name}, {text}", err=True)
    n_findings = sum(len(one.findings or ()) for one in facts)
    if n_findings:
        click.echo(f"damage: {n_findings} findings", err=True)
        sys.exit(DAMAGE)


def _require_outside(output: Path, store: MessageStore) -> None:
    root = store.paths.root
    if isinstance(root, Path) and output.resolve().is_relative_to(root.resolve()):
        raise OptionError(
            f"{output} lies in the store, into which a report never writes: put it elsewhere"
        )


def _gather(store: MessageStore, *, with_verify: bool) -> StoreFacts:
    root = store.paths.root
    if not with_verify:
        with err_console.status(f"reading queues of {root}"):
            return gather(store, with_verify=False)
    with progress_bar(f"reading all of {root}") as progress:
        return gather(store, progress=progress)


_COLUMNS = pa.schema([(name, pa.string()) for name in Check._fields])


@main.command()
@click.argument("path", required=False)
@conf_option("-c", "--conf")
@storage_option("PATH if it is a URI")
@some_columns
@ends_clearly
@gives_rows()
def doctor(path: str | None, columns: str | None, output: Output) -> None:
    """Look for what reading and writing takes: Python, packages, Java, Spark, and the store PATH.

    What is wrong or missing has its cure beside it. The exit code is 2 if something is wrong.
    """
    given = given_options()
    checks = list(examine(path, given.conf, given.storage_options))
    rows = [check._asdict() for check in checks]
    output = output._replace(is_cut=False)  # a cure is of no use in part
    shown = pa.Table.from_pylist(rows, schema=_COLUMNS)
    if columns is not None:
        shown = shown.select(columns_of(columns, _COLUMNS.names))
    output.write(shown.schema, shown.to_batches())
    if any(check.state == WRONG for check in checks):
        sys.exit(USAGE)
