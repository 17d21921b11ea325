"""The verb that appends messages from files to a store: import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from io import TextIOWrapper
from itertools import chain
from os import PathLike, fsdecode, fspath
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from rmqstore.cli.common import confirm, counted, ends_clearly, err_console, must_ask, say
from rmqstore.cli.options import options
from rmqstore.cli.stores import PARTS_ELSEWHERE, given_options
from rmqstore.cli.verbs import main
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.exchange.files import (
    INPUT_FORMATS,
    RowOrigins,
    compression_of,
    format_of,
    has_known_suffix,
    read_parquet,
)
from rmqstore.exchange.json_input import read_json_lines
from rmqstore.inspect.changes import NO_ROWS, done_append, planned_append
from rmqstore.storage.broker.store_config import ROOT_KEY, root_of, sizes_of
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.remote_location import is_uri
from rmqstore.storage.files.storage import is_folder, path_of
from rmqstore.store.opening import created, is_store, open_for
from rmqstore.write.messages import WriteSpec

_STDIO = Path("-")


def _path_and_sources(
    context: click.Context, argument: click.Parameter, words: tuple[str, ...]
) -> tuple[Path, ...]:
    """Return the sources, and keep the path, which ``--conf`` may stand for.

    Raises:
        click.UsageError: one of them is missing, or the path is a file.
    """
    if context.resilient_parsing:
        context.params["path"] = words[0] if words else None
        return ()
    conf = given_options().conf
    root = None
    if conf is not None and conf.values.get(ROOT_KEY):
        root = root_of(None, conf)
    if words and (root is None or (len(words) > 1 and _is_target(words[0], root))):
        kind = click.Path(file_okay=False)
        root = fsdecode(kind.convert(words[0], click.Argument(["path"]), context))
        words = words[1:]
    if root is None:
        raise click.MissingParameter("Give it, or --conf.", context, argument, param_hint="'PATH'")
    if not words:
        text = "Give at least one."
        raise click.MissingParameter(text, context, argument, param_hint="'SOURCES...'")
    context.params["path"] = path_of(fspath(root))
    return tuple(map(path_of, words))


def _is_target(word: str, root: str | PathLike[str]) -> bool:
    """Return whether the first of several words is a store, or may become one, and not a source."""
    if Path(word) == _STDIO or is_uri(word):
        return False
    path = Path(word)
    if not LOCAL.exists(path):
        return not has_known_suffix(path)
    return (
        path == Path(root)
        or is_store(path)
        or (is_folder(LOCAL, path) and not LOCAL.list_folder(path))
    )


@main.command("import")
@click.argument("sources", metavar="[PATH] SOURCES...", nargs=-1, callback=_path_and_sources)
@options(
    "topic", "columns", "source_format", "verbatim", "default_queue_nums", "queue_selector",
    "compression", "make_uniq_key", "allow_system_topics", "broker_stopped", "broker_version",
    "conf", *PARTS_ELSEWHERE, "dry_run", "yes", "quiet", columns="all by default; for Parquet only",
)  # fmt: skip
@ends_clearly
def import_messages(
    path: Path,
    sources: tuple[Path, ...],
    columns: str | None,
    source_format: str | None,
    verbatim: bool,
    broker_stopped: bool,
    dry_run: bool,
    yes: bool,
    make_uniq_key: str,
    **how: Any,  # noqa: ANN401 - other fields of WriteSpec
) -> None:
    """Append all rows of SOURCES to the store at PATH, or after an error none of them.

    A source is a Parquet or JSON Lines file (also .jsonl.gz and .jsonl.zst), a folder of Parquet
    files, or - for JSON Lines from stdin. Rows keep their order. The store is made if it does not
    exist. No broker may run on it meanwhile. On a terminal it says what will change, and asks. What
    was appended, and which queue offsets it got, is said on stderr.

    Examples:
        rmqstore import /data/rocketmq/other rows.jsonl
        rmqstore import /data/rocketmq/other rows.jsonl -t OrdersReplay --dry-run
    """
    given = given_options()
    folders = given.folders
    sizes = sizes_of(given.conf)
    spec = WriteSpec(
        make_uniq_key=make_uniq_key == "make", max_message_size=sizes.max_message_size, **how
    )
    origins = RowOrigins()
    total, batches = _rows_of(sources, source_format, columns, origins, verbatim=verbatim)
    is_there = is_store(path, **folders)
    if dry_run:
        with origins.in_errors():
            planned = planned_append(
                path, batches, spec, verbatim=verbatim, broker_stopped=broker_stopped, **folders
            )
        confirm(planned, "", dry_run=True)
    if _STDIO not in sources and must_ask(yes=yes):
        text = _question(path, sources, total, is_there=is_there)
        confirm([text], "Import?", dry_run=False)
    with origins.in_errors():
        first = next(batches, None)
    if first is None:
        click.echo(f"{path}: {NO_ROWS}", err=True)
        return
    with origins.in_errors(), ExitStack() as stack:
        with err_console.status(f"opening {path}"):
            if is_there:
                writer = open_for(path, "a", spec=spec, broker_stopped=broker_stopped, **folders)
                stack.enter_context(writer)
            else:
                writer = stack.enter_context(created(path, spec=spec, conf=given.conf))
        n_rows = 0
        for batch in counted(chain([first], batches), f"importing into {path}", total):
            writer.append(batch, verbatim=verbatim, first_row=n_rows + 1)
            n_rows += len(batch)
        with err_console.status("building queues and index"):
            writer.flush()
        say("\n".join(done_append(path, n_rows, writer.taken_offsets())))


def _question(path: Path, sources: tuple[Path, ...], total: int | None, *, is_there: bool) -> str:
    """Return what an import would do, as a question to the user."""
    kind = "the store" if is_there else "a new store"
    text = f"{path}: all rows of {', '.join(map(str, sources))} are appended to {kind}"
    return text if total is None else f"{text}; rows: {total:,}"


def _rows_of(
    sources: tuple[Path, ...],
    source_format: str | None,
    columns: str | None,
    origins: RowOrigins,
    *,
    verbatim: bool,
) -> tuple[int | None, Iterator[pa.RecordBatch]]:
    """Return the number of rows of all sources, None if it is not known, and the rows."""
    names = [name.strip() for name in columns.split(",")] if columns else None
    parts = [_read(source, source_format, names, origins, verbatim=verbatim) for source in sources]
    counts = [count for count, _ in parts if count is not None]
    total = sum(counts) if len(counts) == len(parts) else None
    rows = chain.from_iterable(rows for _, rows in parts)
    return total, (batch for batch in rows if len(batch))


def _read(
    source: Path,
    source_format: str | None,
    columns: list[str] | None,
    origins: RowOrigins,
    *,
    verbatim: bool,
) -> tuple[int | None, Iterator[pa.RecordBatch]]:
    """Return the number of rows of a source, None if it is not known, and the rows."""
    if is_uri(source):
        raise UnsupportedFeatureError(f"{source}: import reads local files; copy it here")
    if source != _STDIO and not source.exists():
        raise OptionError(f"{source}: there is no such file or folder")
    if source_format:
        format_name = source_format
    elif source == _STDIO:
        format_name = "jsonl"
    elif source.is_dir() or has_known_suffix(source):
        format_name = format_of(source)
    else:
        format_name = "a name that gives no format"
    if format_name not in INPUT_FORMATS:
        raise OptionError(
            f"{source}: {format_name} is not read; import takes Parquet (.parquet) and JSON Lines "
            "(.jsonl, .ndjson), and --format says which one if the name does not"
        )
    if format_name == "parquet":
        return read_parquet(source, columns, origins)
    if columns:
        raise click.UsageError("--columns is for Parquet")
    if source == _STDIO:
        return None, read_json_lines(sys.stdin, "stdin", verbatim=verbatim, origins=origins)
    return None, _lines(source, origins, verbatim=verbatim)


def _lines(source: Path, origins: RowOrigins, *, verbatim: bool) -> Iterator[pa.RecordBatch]:
    compression = compression_of(source)
    with (
        pa.input_stream(str(source), compression=compression) as stream,
        TextIOWrapper(stream, encoding="utf-8") as file,
    ):
        yield from read_json_lines(file, str(source), verbatim=verbatim, origins=origins)
