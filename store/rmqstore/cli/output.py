"""How verbs give rows: as a table for people, or in a format of files, to stdout or into a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import orjson
import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rmqstore.cli.common import Command, require_new
from rmqstore.errors import OptionError
from rmqstore.exchange.files import FORMATS, format_of, write_file, write_stream
from rmqstore.exchange.json_rows import json_rows
from rmqstore.read.scan.spec import first_rows

EMPTY: Final = 3  # the exit code of --fail-if-empty
_TABLE, _JSON = "table", "json"
_FRAMED_ROWS: Final = 1000  # Rich takes seconds for more
_WIDE: Final = 180  # characters per line of a table that goes to a file or a pipe


class Output(NamedTuple):
    """Where rows go, and in what form."""

    format_name: str
    target: Path | None  # stdout if None
    limit: int | None
    fails_if_empty: bool

    @property
    def is_table(self) -> bool:
        """Whether people read the rows, who may want to know more."""
        return self.format_name == _TABLE

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows; exit with :data:`EMPTY` if there is none and that was to be told.

        Args:
            schema: the columns of the batches.
            batches: the rows.
        """
        n_rows = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal n_rows
            for batch in batches if self.limit is None else first_rows(batches, self.limit):
                n_rows += len(batch)
                yield batch

        if self.target is not None:
            write_file(self.target, self.format_name, schema, counted())
        elif self.format_name == _TABLE:
            _print_table(schema.names, counted())
        elif self.format_name == _JSON:
            rows = [row for batch in counted() for row in json_rows(batch)]
            sys.stdout.buffer.write(orjson.dumps(rows, option=orjson.OPT_INDENT_2) + b"\n")
        else:
            write_stream(sys.stdout.buffer, self.format_name, schema, counted())
        sys.stdout.flush()
        if not n_rows and self.fails_if_empty:
            sys.exit(EMPTY)


def gives_rows(
    default: str = _TABLE, *, limit_help: str = "At most N rows."
) -> Callable[[Command], Command]:
    """Add the options that say where rows go; the command gets ``output``, an :class:`Output`.

    Args:
        default: the format on stdout.
        limit_help: what ``-n N`` does.
    """
    options = (
        click.option(
            "--format",
            "format_name",
            type=click.Choice((_TABLE, _JSON, *FORMATS)),
            help=f"Form of the rows; {default} by default, or what the name of --output tells.",
        ),
        click.option("--json", "as_json", is_flag=True, help="The same as --format jsonl."),
        click.option(
            "--output",
            "target",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write the rows to FILE; .gz or .zst at the end of its name compresses text.",
        ),
        click.option("--overwrite", is_flag=True, help="Replace FILE if it exists."),
        click.option("-n", "--limit", type=click.IntRange(min=1), help=limit_help),
        click.option(
            "--fail-if-empty", is_flag=True, help=f"Exit with {EMPTY} if there is no row."
        ),
    )

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(
            *,
            format_name: str | None,
            as_json: bool,
            target: Path | None,
            overwrite: bool,
            limit: int | None,
            fail_if_empty: bool,
            **others: Any,  # noqa: ANN401 - the command's own
        ) -> None:
            name = "jsonl" if as_json and format_name is None else format_name
            name = _checked(name, target, default, overwrite=overwrite)
            command(output=Output(name, target, limit, fail_if_empty), **others)

        for option in reversed(options):
            run = option(run)
        return run

    return decorate


def _checked(name: str | None, target: Path | None, default: str, *, overwrite: bool) -> str:
    """Return the format, and refuse what cannot be written."""
    if target is None:
        if name == "parquet" and sys.stdout.isatty():
            raise OptionError("--format parquet: give --output FILE, or a pipe")
        return name or default
    require_new(target, overwrite=overwrite)
    if name in (_TABLE, _JSON):
        raise OptionError(f"--format {name}: a file takes one of {', '.join(FORMATS)}")
    return name or format_of(target)


def _print_table(names: list[str], batches: Iterable[pa.RecordBatch]) -> None:
    """Print rows with a frame, or if there are many, plainly and as they come."""
    rows = (_cells(row, names) for batch in batches for row in json_rows(batch))
    first = list(islice(rows, _FRAMED_ROWS + 1))
    if len(first) <= _FRAMED_ROWS:
        table = Table(*names)
        for cells in first:
            table.add_row(*map(escape, cells))
        console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(names, *first, strict=True)]
    for cells in chain([names], first, rows):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def console() -> Console:
    """Return the console for tables, as wide as the terminal if stdout is one."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def _cells(row: dict[str, Any], names: list[str]) -> list[str]:
    return [_cell(row.get(name, row.get(f"{name}Base64"))) for name in names]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return orjson.dumps(value).decode()
    return str(value)
