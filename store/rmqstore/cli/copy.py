"""The verb that copies stores."""

from __future__ import annotations

from pathlib import Path

import click

from rmqstore.cli.common import ends_clearly, progress_bar
from rmqstore.cli.options import REPEATED, options
from rmqstore.cli.output import Output, gives_findings, show_findings
from rmqstore.cli.stores import given_options, store_path
from rmqstore.cli.verbs import main
from rmqstore.copying.copier import copy
from rmqstore.errors import OptionError


@main.command("copy")
@store_path
@click.argument("target")
@options(
    "target_options", "since", "topics", "truncate", "verify", "quiet", topics=REPEATED,
    truncate="these are left out of the copy",
)  # fmt: skip
@ends_clearly
@gives_findings
def copy_store(
    path: Path,
    target: str,
    target_options: dict[str, str],
    since: str | None,
    topics: tuple[str, ...],
    truncate: bool,
    verify: bool,
    output: Output,
) -> None:
    """Copy the store at PATH, which may be in use, to the new folder TARGET.

    The copy is a valid store that was closed. It grows in TARGET.partial; after an interruption the
    same command continues. If TARGET is a URI, the store must be closed. --since and --topic leave
    out whole files and whole queues, never a part of the log. The exit code is 1 if the check of
    the copy finds damage.

    Examples:
        rmqstore copy /data/rocketmq/store /lake/store-copy
        rmqstore copy /data/rocketmq/store /lake/orders-store --since -30d -t Orders
    """
    given = given_options()
    if given.tiered is not None:
        raise OptionError("--tiered: tiered storage is not copied; leave it out")
    with progress_bar(f"copying {path}") as progress:
        copied = copy(
            path,
            target,
            since=since,
            topics=list(topics) or None,
            truncate=truncate,
            verify=verify,
            progress=progress,
            storage_options=given.storage_options,
            target_options=target_options,
            **given.folders,
        )
    for text in copied.left_out:
        click.echo(f"left out: {text}", err=True)
    checked = f", {len(copied.findings)} findings" if verify else ""
    click.echo(f"{target}: {copied.n_files} files, {copied.n_bytes} bytes{checked}", err=True)
    show_findings(copied.findings, output)
