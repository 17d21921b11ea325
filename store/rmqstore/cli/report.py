"""The verb that writes a page about stores."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from rmqstore.cli.common import end_if_damaged, ends_clearly, err_console, progress_bar
from rmqstore.cli.options import options
from rmqstore.cli.output import require_new
from rmqstore.cli.stores import open_stores, store_paths
from rmqstore.cli.verbs import main
from rmqstore.errors import OptionError
from rmqstore.inspect.report import gather, render, require_libraries


@main.command()
@store_paths
@options("page", "with_verify", "overwrite", "quiet")
@ends_clearly
def report(paths: tuple[Path, ...], page: Path, with_verify: bool, overwrite: bool) -> None:
    """Write a page about stores: topics, rates, queues, groups, files and findings of verify.

    The page is one HTML file that needs no network. The exit code is 1 if there are findings.

    Examples:
        rmqstore report /data/rocketmq/store -o report.html
        rmqstore report /data/rocketmq/store -o quick.html --no-verify
    """
    require_libraries()
    if page == Path("-"):
        raise OptionError("-o/--output -: a page is written into a file; name one")
    if len({*map(str, paths)}) < len(paths):
        raise OptionError("a store is named twice")
    require_new(page, overwrite=overwrite)
    with open_stores(paths) as stores:
        for store in stores:
            root = store.paths.root
            if isinstance(root, Path) and page.resolve().is_relative_to(root.resolve()):
                raise OptionError(
                    f"{page} lies in the store, into which a report never writes: put it elsewhere"
                )
        facts = []
        for store in stores:
            root = store.paths.root
            if with_verify:
                with progress_bar(f"reading all of {root}") as progress:
                    facts.append(gather(store, progress=progress))
            else:
                with err_console.status(f"reading queues of {root}"):
                    facts.append(gather(store, with_verify=False))
    made = page.with_name(f"{page.name}.tmp")
    made.write_text(render(facts, datetime.now(UTC)), encoding="utf-8")
    made.replace(page)
    for of_store in facts:
        text = f"{of_store.messages:,} messages of {len(of_store.topics):,} topics"
        click.echo(f"{page}: {of_store.broker_name}, {text}", err=True)
    n_findings = sum(len(of_store.findings or ()) for of_store in facts)
    end_if_damaged(n_findings, "finding")
