"""The verbs that copy messages from a store into files and back: export, import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from click.core import ParameterSource

from kafkalog.migration import migrate
from kafkalog.opening import open_log_dirs
from rmqstore.cli.common import (
    asks_first,
    confirm,
    counted,
    ends_clearly,
    err_console,
    main,
    must_ask,
    progress_bar,
    require_new,
    shows_progress,
)
from rmqstore.cli.messages import (
    SCAN_UNITS,
    columns_to_read,
    in_form,
    scan,
    some_bodies,
    some_messages,
)
from rmqstore.cli.output import EMPTY, Counted
from rmqstore.cli.stores import (
    conf_option,
    each_store,
    given_options,
    open_as_one,
    parts_elsewhere,
    storage_option,
    store_paths,
)
from rmqstore.errors import OptionError
from rmqstore.exchange.bodies import BodyForm
from rmqstore.exchange.files import (
    FORMATS,
    INPUT_FORMATS,
    compression_of,
    format_of,
    write_file,
)
from rmqstore.exchange.json_input import read_json_lines
from rmqstore.exchange.parquet import read_parquet
from rmqstore.inspect.changes import planned_append
from rmqstore.storage.files.storage import path_of
from rmqstore.storage.folders.broker_conf import sizes_of
from rmqstore.store.opening import create, is_store, open_for
from rmqstore.write.messages import SELECTORS, WriteSpec

_STDIO = Path("-")

_format = click.option(
    "--format",
    "named_format",
    type=click.Choice(FORMATS),
    help="Format of the files, if their names do not tell.",
)
_verbatim = click.option(
    "--verbatim",
    is_flag=True,
    help="Contents of records exactly as stored, with times and offsets: for exact copies.",
)


@main.command("export")
@store_paths
@click.argument("target", type=click.Path(path_type=Path))
@some_messages
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most N messages.")
@_format
@_verbatim
@click.option("--overwrite", is_flag=True, help="Replace TARGET if it exists.")
@click.option("--fail-if-empty", is_flag=True, help=f"Exit with {EMPTY} if there is no row.")
@shows_progress
@ends_clearly
@some_bodies
def export_messages(
    paths: tuple[Path, ...],
    brokers: str | None,
    target: Path,
    named_format: str | None,
    verbatim: bool,
    overwrite: bool,
    fail_if_empty: bool,
    ignore_log_end: bool,
    columns: str | None,
    bodies: BodyForm | None,
    **choice: Any,  # noqa: ANN401
) -> None:
    """Write messages to TARGET, a Parquet (.parquet), JSON Lines (.jsonl) or CSV (.csv) file.

    PATH may be several stores, of which one of each broker is read, one after the other. The
    columns are those of a read. .gz or .zst at the end of the name compresses a file of text.
    """
    for name, value in (("--columns", columns), ("--body or --charset", bodies)):
        if verbatim and value is not None:
            raise click.UsageError(f"--verbatim and {name} contradict each other")
    if target == _STDIO:
        raise OptionError("export writes files; rmqstore dump writes JSON Lines to stdout")
    require_new(target, overwrite=overwrite)
    format_name = named_format or format_of(target)
    with (
        open_as_one(paths, brokers, ignore_log_end=ignore_log_end) as store,
        progress_bar(f"exporting to {target}", SCAN_UNITS[choice["scan_by"]]) as progress,
    ):
        for one in each_store(store):
            one.session.progress = progress
        columns = columns_to_read(columns, bodies)
        reader = scan(store, verbatim=verbatim, columns=columns, **choice)
        schema, batches = in_form(reader, bodies)
        rows = Counted(batches)
        write_file(target, format_name, schema, rows)
    if not rows.n_rows:
        click.echo("nothing found", err=True)
        if fail_if_empty:
            sys.exit(EMPTY)


@main.command("import")
@click.argument("path", type=click.Path(file_okay=False, path_type=Path))
@click.argument("sources", type=path_of, nargs=-1, required=True)
@click.option("-t", "--topic", help="Append all rows to this topic, whatever their own topic is.")
@click.option("--from-kafka", is_flag=True, help="SOURCES are log directories of a Kafka broker.")
@click.option(
    "--kafka-topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    help="Only this topic of Kafka, or those that match a pattern; may be repeated.",
)
@click.option(
    "-b",
    "--begin",
    "starting_timestamp",
    help="Kafka's records from this time on: epoch ms, ISO-8601 or -1h.",
)
@click.option("-e", "--end", "ending_timestamp", help="Kafka's records before this time.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Whether records of transactions of Kafka that were aborted or are open are left out.",
)
@click.option(
    "--replace-dots",
    type=click.Choice(["_", "-"]),
    help="What stands for dots in names of Kafka's topics, which RocketMQ does not allow.",
)
@click.option(
    "--columns", help="Columns to import, separated by commas; all by default. Parquet only."
)
@_format
@_verbatim
@click.option(
    "--queue-nums",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Queues of a new topic.",
)
@click.option(
    "--queue-selector",
    type=click.Choice(SELECTORS),
    default=SELECTORS[0],
    show_default=True,
    help="How rows without a queueId are spread over the queues of their topic.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "zlib", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="How bodies of 4 KiB and more are compressed, as producers do.",
)
@click.option(
    "--uniq-key",
    type=click.Choice(["make", "keep"]),
    default="make",
    show_default=True,
    help="Make a new unique key for each message, or keep those that the rows have.",
)
@click.option(
    "--allow-system-topics", is_flag=True, help="Also append to topics that belong to the broker."
)
@storage_option("log directories of Kafka that are URIs")
@conf_option("-c", "--conf", "--config", beside_path=True)
@parts_elsewhere
@asks_first
@shows_progress
@ends_clearly
def import_messages(
    path: Path,
    sources: tuple[Path, ...],
    topic: str | None,
    columns: str | None,
    named_format: str | None,
    verbatim: bool,
    queue_nums: int,
    queue_selector: str,
    compression: str,
    uniq_key: str,
    allow_system_topics: bool,
    dry_run: bool,
    yes: bool,
    from_kafka: bool,
    **kafka_choice: Any,  # noqa: ANN401 - arguments of migrate
) -> None:
    """Append all rows of SOURCES to the store at PATH, or after an error none of them.

    A source is a Parquet or JSON Lines file (also .jsonl.gz and .jsonl.zst), a folder of Parquet
    files, or - for JSON Lines from stdin. With --from-kafka sources are the log directories of one
    Kafka broker, and partitions become queues. Rows keep their order. The store is made if it does
    not exist. No broker may run on it meanwhile. On a terminal it says what will change, and asks.
    """
    _require_consistent(_OF_FILES if from_kafka else _OF_KAFKA, from_kafka=from_kafka)
    given = given_options()
    folders, sizes = given.folders, sizes_of(given.conf)
    spec = WriteSpec(
        topic=topic,
        default_queue_nums=queue_nums,
        queue_selector=queue_selector,
        compression=compression,
        make_uniq_key=uniq_key == "make",
        allow_system_topics=allow_system_topics,
        max_message_size=sizes.max_message_size,
    )
    total: int | None
    if from_kafka:
        log_dirs = open_log_dirs(*sources, storage_options=given.storage_options)
        records = migrate(log_dirs, topic=topic, **kafka_choice)
        batches, total = records.batches, records.count
        spec = replace(spec, topic=None, queue_nums=records.queue_nums, default_queue_nums=1)
    else:
        names = [name.strip() for name in columns.split(",")] if columns else None
        parts = [_read(source, named_format, names, verbatim=verbatim) for source in sources]
        batches = chain.from_iterable(rows for _, rows in parts)
        counts = [count for count, _ in parts if count is not None]
        total = sum(counts) if len(counts) == len(parts) else None
    is_there = is_store(path, **folders)
    if dry_run:
        planned = planned_append(path, batches, spec, verbatim=verbatim, **folders)
        confirm(planned, "", dry_run=True)
    if _STDIO not in sources and must_ask(yes=yes):
        kind = "the store" if is_there else "a new store"
        text = f"{path}: all rows of {', '.join(map(str, sources))} are appended to {kind}"
        rows = "at most " if from_kafka else ""
        text = text if total is None else f"{text}; rows: {rows}{total:,}"
        confirm([text], "Import?", dry_run=False)
    with err_console.status(f"opening {path}"):
        if is_there:
            store = open_for(path, "a", spec=spec, **folders)
        else:
            store = create(path, spec=spec, conf=given.conf)
    with store as writer:
        first_row = 0
        for batch in counted(batches, f"importing into {path}", total):
            writer.append(batch, verbatim=verbatim, first_row=first_row)
            first_row += len(batch)
        with err_console.status("building queues and index"):
            writer.flush()


_OF_KAFKA = (
    "topics", "starting_timestamp", "ending_timestamp", "isolation_level", "replace_dots",
    "storage_options",
)  # fmt: skip
_OF_FILES = ("columns", "named_format", "verbatim", "queue_nums", "queue_selector")


def _require_consistent(others: tuple[str, ...], *, from_kafka: bool) -> None:
    """Refuse options that are for the other kind of sources."""
    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(option.name) if option.name in others else None
        if source is ParameterSource.COMMANDLINE:
            name = max(option.opts, key=len)
            needs = "is for files, not for --from-kafka" if from_kafka else "needs --from-kafka"
            raise click.UsageError(f"{name} {needs}")


def _read(
    source: Path, named_format: str | None, columns: list[str] | None, *, verbatim: bool
) -> tuple[int | None, Iterator[pa.RecordBatch]]:
    """Return the number of rows of a source, None if it is not known, and the rows."""
    if source != _STDIO and not source.exists():
        raise OptionError(f"{source}: there is no such file or folder")
    format_name = named_format or ("jsonl" if source == _STDIO else format_of(source))
    if format_name not in INPUT_FORMATS:
        raise OptionError(f"{source}: {format_name} is written only; import takes JSON Lines")
    if format_name == "parquet":
        return read_parquet(source, columns)
    if columns:
        raise click.UsageError("--columns is for Parquet")
    if source == _STDIO:
        return None, read_json_lines(sys.stdin, "stdin", verbatim=verbatim)
    return None, _lines(source, verbatim=verbatim)


def _lines(source: Path, *, verbatim: bool) -> Iterator[pa.RecordBatch]:
    compression = compression_of(source)
    with (
        pa.input_stream(str(source), compression=compression) as stream,
        TextIOWrapper(stream, encoding="utf-8") as file,
    ):
        yield from read_json_lines(file, str(source), verbatim=verbatim)
