"""How verbs give rows: as a table for people, or in a format of files, to stdout or into a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TextIO

import click
import orjson
import pyarrow as pa
from rich.console import Console

from rmqstore.cli.common import end_if_damaged, say
from rmqstore.cli.options import EMPTY, ISO, JSON, PRETTY, TABLE, Command, options
from rmqstore.errors import Finding, OptionError, RmqStoreError
from rmqstore.exchange.files import WRITERS, compression_of, format_of, has_known_suffix, new_file
from rmqstore.exchange.json_rows import BASE64, json_rows, numbered_times
from rmqstore.exchange.text_table import Shown, fitted, framed, harmless, one_line, padded
from rmqstore.query.arrow_rows import first_rows
from rmqstore.storage.broker.folders import root_around
from rmqstore.storage.files.local import LOCAL

_LIVE: Final = (TABLE, "jsonl", "csv")  # forms for rows of which nobody knows the last
_LIVE_WIDTH: Final = 12  # characters of a cell, at least, if the widest is not known
_FRAMED_ROWS: Final = 1000  # a longer table is written row by row, without a frame
_FINDING: Final = pa.schema([(name, pa.string()) for name in ("part", "place", "text")])


def require_new(target: Path, *, overwrite: bool) -> None:
    """Refuse an output file that exists, or cannot be made there, before any long work begins.

    A broker does not start where a file that is not its own lies among its files.
    """
    if target.exists() and not overwrite:
        raise OptionError(f"{target} exists already; --overwrite replaces it")
    folder = target.absolute().parent
    if not folder.is_dir():
        raise OptionError(f"{target}: there is no folder {folder}")
    root = root_around(target, LOCAL)
    if root is not None:
        raise OptionError(f"{target} lies in the store {root}: put it elsewhere")


class _UntilAnError:
    """Batches up to an error, which is kept until the output is complete; counts rows."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.n_rows = 0
        self.error: RmqStoreError | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches:
                self.n_rows += len(batch)
                yield batch
        except RmqStoreError as err:
            self.error = err


class Output(NamedTuple):
    """The form and the target of printed rows."""

    format_name: str
    target: Path | None  # stdout if None
    limit: int | None = None
    fails_if_empty: bool = False
    is_cut: bool = True  # whether a terminal shows one line of each row, of the columns that fit
    times: str = ISO

    @classmethod
    def checked(
        cls, name: str | None, target: Path | None, default: str = TABLE, *, overwrite: bool
    ) -> Self:
        """Return an output, and refuse what cannot be written.

        Args:
            name: the format; None for that of the name of the file, or the default.
            target: the file; None for stdout.
            default: the format on stdout.
            overwrite: whether a file may be replaced.

        Raises:
            OptionError: the file exists, or its name gives no format or another one.
        """
        if target is None:
            if name == "parquet" and sys.stdout.isatty():
                raise OptionError("--format parquet: give --output FILE, or a pipe")
            return cls(name or default, None)
        require_new(target, overwrite=overwrite)
        known = None
        if (target.stem if compression_of(target) else target.name).endswith(".json"):
            known = JSON
        elif has_known_suffix(target):
            known = format_of(target)
        if name is None:
            return cls(known or format_of(target), target)
        if known is not None and known != (JSON if name == PRETTY else name):
            raise OptionError(f"{target}: the name says {known}, but --format {name} is given")
        return cls(name, target)

    @property
    def is_table(self) -> bool:
        """Whether people read the rows, who may want to know more."""
        return self.format_name == TABLE

    @property
    def is_on_terminal(self) -> bool:
        """Whether rows appear where progress would be shown."""
        return self.target is None and sys.stdout.isatty()

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
        """Write rows, and return how many there are.

        If there is none, say so, and exit with :data:`EMPTY` where that was asked.

        Args:
            schema: the columns of the batches.
            batches: the rows.
        """
        n_rows = self.write_any(schema, batches)
        if not n_rows:
            say("nothing found")
            if self.fails_if_empty:
                sys.exit(EMPTY)
        return n_rows

    def write_table(self, table: pa.Table, columns: str | None = None) -> None:
        """Write the rows of a table, or those of its columns that a text names, as ``write``."""
        if columns is not None:
            table = table.select(columns_of(columns, table.column_names))
        self.write(table.schema, table.to_batches())

    def write_any(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
        """Write rows as :meth:`write` does, and return how many there are."""
        schema, batches = self._timed(schema, batches)
        rows = _UntilAnError(first_rows(batches, self.limit))
        if self.target is None:
            self._write(sys.stdout, schema, rows)
        else:
            with new_file(self.target, self.format_name) as file:
                text = TextIOWrapper(file, "utf-8")
                self._write(text, schema, rows)
                text.detach()
        return rows.n_rows

    def _write(self, text: Any, schema: pa.Schema, batches: _UntilAnError) -> None:  # noqa: ANN401 - a file of text above a binary one
        """Write rows; raises the error that ends them once a form with an end has it."""
        sink = _sink(text)
        if self.format_name == TABLE:
            _print_table(text, schema.names, batches, is_cut=self.is_cut)
        elif self.format_name == JSON:
            rows = [row for batch in batches for row in json_rows(batch)]
            sink.write(orjson.dumps(rows, option=orjson.OPT_INDENT_2) + b"\n")
        elif self.format_name == PRETTY:
            for batch in batches:
                for row in json_rows(batch):
                    line = orjson.dumps(row, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
                    sink.write(line)
        else:
            WRITERS[self.format_name](sink, schema, batches)
        text.flush()
        if batches.error is not None:
            raise batches.error

    def _timed(
        self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        """Return rows with times as numbers if the user asked for numbers."""
        if self.times == ISO or self.format_name == "parquet":
            return schema, batches
        return numbered_times(schema, batches)

    def require_live(self) -> None:
        """Refuse forms in which rows cannot be given as they come."""
        if self.target is not None:
            raise OptionError("--output: a file appears when it is complete; use > FILE instead")
        if self.format_name not in _LIVE:
            raise OptionError(
                f"--format {self.format_name} has an end: rows without an end come as "
                f"{', '.join(_LIVE)}"
            )

    def write_live(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows that come now and then, each batch at once."""
        schema, batches = self._timed(schema, batches)
        batches = first_rows(batches, self.limit)
        if self.format_name != TABLE:
            WRITERS[self.format_name](_sink(sys.stdout), schema, batches)
            return
        names = _shown(schema.names)
        widths = [max(len(name), _LIVE_WIDTH) for name in names]
        click.echo(padded(names, widths))
        for batch in batches:
            for row in json_rows(batch):
                click.echo(padded([*map(harmless, _cells(row, names))], widths))
            sys.stdout.flush()


def columns_of(columns: str, known: Sequence[str]) -> list[str]:
    """Return the names of columns, and refuse those that there are not."""
    names = [name.strip() for name in columns.split(",")]
    for name in names:
        if name not in known:
            raise OptionError(f"`columns`: unknown column {name}; there are {', '.join(known)}")
    return names


def _sink(text: Any) -> Any:  # noqa: ANN401 - a file of text above a binary one
    """Return the file of bytes below a file of text."""
    return Shown(text) if text.isatty() else text.buffer


def show_findings(findings: Sequence[Finding], output: Output) -> None:
    """Write findings, a line for each in place of a table; exit with ``DAMAGE`` if there are any.

    Args:
        findings: what a check or a rebuild found.
        output: where they go.
    """
    if output.is_table:
        for finding in findings:
            click.echo(f"{finding.part} {finding.place}: {finding.text}")
    else:
        rows = [finding._asdict() for finding in findings]
        output.write_any(_FINDING, pa.Table.from_pylist(rows, _FINDING).to_batches())
    end_if_damaged(len(findings), "finding")


def gives_rows(default: str = TABLE, *, limit: str = "") -> Callable[[Command], Command]:
    """Add the options of printed rows; the command gets ``output``, an :class:`Output`.

    Args:
        default: the format on stdout.
        limit: which rows ``-n N`` gives, if not the first.
    """
    amount = options("times", "wide", "limit", "fail_if_empty", limit=limit)
    return lambda command: _with_output(amount(command), default)


def gives_findings(command: Command) -> Command:
    """Add the options of :func:`gives_rows` but for those that count rows: all findings matter."""
    return _with_output(command, TABLE)


def _with_output(command: Command, default: str) -> Command:
    """Add the options of printed findings; the command gets ``output``.

    Args:
        default: the format on stdout.
    """

    @wraps(command)
    def with_output(
        *,
        format_name: str | None,
        as_json: bool,
        output_file: Path | None,
        overwrite: bool,
        limit: int | None = None,
        fail_if_empty: bool = False,
        wide: bool = False,
        times: str = ISO,
        **others: Any,  # noqa: ANN401 - the command's own
    ) -> None:
        name = "jsonl" if as_json else format_name
        if name != (format_name or name):
            raise OptionError(f"--json is --format jsonl, but --format {format_name} is given")
        output = Output.checked(name, output_file, default, overwrite=overwrite)
        output = output._replace(
            limit=limit, fails_if_empty=fail_if_empty, is_cut=not wide, times=times
        )
        command(output=output, **others)

    add = options(
        "format_name",
        "as_json",
        "output_file",
        "overwrite",
        format_name=f"{default} by default, or what the name of --output gives",
    )
    return add(with_output)


def _print_table(
    text: TextIO, names: list[str], batches: Iterable[pa.RecordBatch], *, is_cut: bool
) -> None:
    """Print rows with a frame, or if there are many, plainly and as they come."""
    names = _shown(names)
    rows = ([*map(harmless, _cells(row, names))] for batch in batches for row in json_rows(batch))
    first = list(islice(rows, _FRAMED_ROWS + 1))
    if not first:
        return
    fit = None
    shown = [names, *first]
    widths = None
    if is_cut and text.isatty():
        context = click.get_current_context(silent=True)
        are_chosen = context is not None and context.params.get("columns") is not None
        fit = fitted(names, first, Console().width, keeps_all=are_chosen)
        shown = [fit.cells(row) for row in shown]
        widths = fit.widths
    if len(first) <= _FRAMED_ROWS:
        lines = framed(shown[0], shown[1:], widths)
        click.echo("\n".join(lines), file=text)
    elif fit is None:
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        for cells in chain(shown, rows):
            click.echo(padded(cells, widths), file=text)
    else:
        for cells in chain(shown, map(fit.cells, rows)):
            click.echo(padded(one_line(cells, fit.widths), fit.widths), file=text)
    if fit is not None and (left_out := fit.left_out(names)):
        n_columns = f"{len(left_out)} of {len(names)} columns"
        click.echo(f"{n_columns} are left out ({', '.join(left_out)}); --wide shows all", err=True)


def _shown(names: list[str]) -> list[str]:
    """Return the columns of a table, in which text and its bytes in base64 share one."""
    return [name for name in names if name.removesuffix(BASE64) not in {*names} - {name}]


def _cells(row: dict[str, Any], names: list[str]) -> list[str]:
    cells = []
    for name in names:
        value = row.get(name, row.get(f"{name}Base64"))
        if value is None:
            cells.append("-")
        elif isinstance(value, bool):
            cells.append("yes" if value else "no")
        elif isinstance(value, (dict, list)):
            cells.append(orjson.dumps(value).decode())
        else:
            cells.append(str(value))
    return cells
