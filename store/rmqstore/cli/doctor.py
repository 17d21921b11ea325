"""The verb that looks at the computer: doctor."""

from __future__ import annotations

import sys

import click
import pyarrow as pa

from rmqstore.cli.common import USAGE, ends_clearly, main
from rmqstore.cli.output import Output, gives_rows
from rmqstore.cli.stores import conf_option, given_options
from rmqstore.inspect.doctor import WRONG, Check, examine

_COLUMNS = pa.schema([(name, pa.string()) for name in Check._fields])


@main.command()
@click.argument("path", required=False)
@conf_option("-c", "--conf")
@ends_clearly
@gives_rows()
def doctor(path: str | None, output: Output) -> None:
    """Look for what reading and writing takes: Python, packages, Java, Spark, and the store PATH.

    What is wrong or missing has its cure beside it. The exit code is 2 if something is wrong.
    """
    checks = list(examine(path, given_options().conf))
    rows = [check._asdict() for check in checks]
    output.write(_COLUMNS, pa.Table.from_pylist(rows, schema=_COLUMNS).to_batches())
    if any(check.state == WRONG for check in checks):
        sys.exit(USAGE)
