"""The verb that writes an HTML page about a store: report."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from rmqstore.cli.common import (
    DAMAGE,
    ends_clearly,
    err_console,
    main,
    open_store,
    progress_bar,
    require_folder,
    store_path,
)
from rmqstore.errors import OptionError
from rmqstore.inspect.report.facts import StoreFacts, gather
from rmqstore.inspect.report.page import render, require_libraries
from rmqstore.store import MessageStore


@main.command()
@store_path
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
    help="Also check the store, which reads all of it.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@ends_clearly
def report(path: Path, output: Path, with_verify: bool, overwrite: bool) -> None:
    """Write a page about a store: topics, rates, queues, groups, files and findings of verify.

    The page is one HTML file that needs no network. The exit code is 1 if there are findings.
    """
    require_libraries()
    if output.exists() and not overwrite:
        raise OptionError(f"{output} exists already; --overwrite replaces it")
    if output.resolve().is_relative_to(path.resolve()):
        raise OptionError(
            f"{output} lies in the store, into which a report never writes: put it elsewhere"
        )
    require_folder(output)
    with open_store(path) as store:
        facts = _gather(store, path, with_verify=with_verify)
    made = output.with_name(f"{output.name}.tmp")
    made.write_text(render(facts, datetime.now(UTC)), encoding="utf-8")
    made.replace(output)
    click.echo(f"{output}: {facts.messages:,} messages of {len(facts.topics):,} topics", err=True)
    if facts.findings:
        click.echo(f"damage: {len(facts.findings)} findings", err=True)
        sys.exit(DAMAGE)


def _gather(store: MessageStore, path: Path, *, with_verify: bool) -> StoreFacts:
    if not with_verify:
        with err_console.status(f"reading queues of {path}"):
            return gather(store, with_verify=False)
    with progress_bar(f"reading all of {path}") as progress:
        return gather(store, progress=progress)
