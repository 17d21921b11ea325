"""The verbs that show what a store holds, or write it into files: stat, dump, export."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.cli.common import USAGE, counted, end_if_damaged, ends_clearly, progress_bar
from rmqstore.cli.messages import (
    MESSAGES,
    SCAN_UNITS,
    ValidRows,
    columns_shown,
    columns_to_read,
    followed,
    in_form,
    scan_chosen,
    some_bodies,
    source_to_follow,
    topic_arguments,
    where_queue,
)
from rmqstore.cli.options import NEW_FILE, options
from rmqstore.cli.output import Output, gives_rows
from rmqstore.cli.stores import each_store, open_any, open_as_one, store_paths
from rmqstore.cli.verbs import main
from rmqstore.errors import (
    NOT_PERMITTED,
    OptionError,
    RmqStoreError,
    number_of,
)
from rmqstore.exchange.bodies import BodyForm
from rmqstore.inspect.counts import count_by_time
from rmqstore.progress import Progress, ignore_progress
from rmqstore.query.damage import CORRUPT_RECORD, FAILFAST
from rmqstore.query.selection import Selection, parse_selection
from rmqstore.store.cluster import StoreCluster
from rmqstore.store.message_store import MessageStore
from rmqstore.store.scan import Messages, Scan

_COLUMNS = "topic,queueId,queueOffset,storeTimestamp,tags,keys,body"  # of a table


@main.command()
@store_paths
@options(
    "topics", "queue_ids", "include_system_topics", "where", "per", "columns", "quiet",
    where='"messages > 1000"',
)  # fmt: skip
@ends_clearly
@gives_rows()
def stat(
    paths: tuple[Path, ...],
    topics: tuple[str, ...],
    queue_ids: tuple[int, ...],
    include_system_topics: bool,
    where: str | None,
    per: str | None,
    columns: str | None,
    output: Output,
) -> None:
    """Show queues: offsets, number of messages, bytes, first and last store time.

    The table is followed by the kind of the store and by what of it is not read. For a broker
    in controller mode the epochs of its log follow. The exit code is 1 if a queue is damaged.
    PATH may be several stores, of which one of each broker is shown.

    Examples:
        rmqstore stat /data/rocketmq/store -t Orders
        rmqstore stat -c /data/rocketmq/broker.conf --all --json
    """
    with open_as_one(paths) as store:
        stores = each_store(store)
        chosen = topic_arguments(store, topics, queue_ids, include_system_topics)
        if per is not None:
            if where_queue(queue_ids, where, chosen) is not None:
                text = "--per counts messages of topics: leave --where out, and name topics for -i"
                raise OptionError(text)
            output.write_table(count_by_time(stores, per, chosen), columns)
            return
        view = store.view("queues", where=where_queue(queue_ids, where, chosen), **chosen)
        total = _n_queues(stores, parse_selection(**chosen))
        batches = counted(view, f"reading {_names(stores)}", total, unit="queues", stays=False)
        queues = pa.Table.from_batches(batches, view.schema)
        reasons = queues.column("reason").drop_null()
        if columns is None and output.is_table:
            if len(stores) == 1:
                queues = queues.drop(["brokerName"])
            if not len(reasons):
                queues = queues.drop(["reason"])
        output.write_table(queues, columns)
        if output.is_table:
            _show_kinds(stores)
    _end_by(reasons)


def _end_by(reasons: pa.ChunkedArray) -> None:
    """End the process with the exit code for queues that cannot be read, if there are some."""
    n_denied = pc.sum(pc.match_substring(reasons, NOT_PERMITTED)).as_py() or 0
    n_damaged = len(reasons) - n_denied
    end_if_damaged(n_damaged, "queue", "; see reason")
    if n_denied:
        count = number_of(n_denied, "queue")
        click.echo(f"error: files of {count} {NOT_PERMITTED}; see reason", err=True)
        sys.exit(USAGE)


def _names(stores: Sequence[MessageStore]) -> str:
    return str(stores[0].paths.root) if len(stores) == 1 else f"{len(stores)} stores"


def _n_queues(stores: Iterable[MessageStore], selection: Selection) -> int | None:
    """Return the number of queues of a selection; None if damage hides it."""
    try:
        chosen = [store.parts.ranges.choose(selection) for store in stores]
        return sum(len(queue_ids) for queues in chosen for queue_ids in queues.values())
    except RmqStoreError:
        return None


def _show_kinds(stores: Sequence[MessageStore]) -> None:
    for store in stores:
        if len(stores) > 1:
            click.echo(f"{store.broker_name} ({store.paths.root}):")
        for text in store.parts.kind().lines():
            click.echo(text)
        if store.parts.is_tiered:
            continue
        for epoch in store.view("epochs").read_all().to_pylist():
            start = epoch["startOffset"]
            end = epoch["endOffset"]
            if epoch["epoch"] is None:
                click.echo(f"epochs: {epoch['reason']}")
            else:
                click.echo(f"epoch {epoch['epoch']}: physical offsets {start:,} to {end:,}")


@main.command()
@store_paths
@options(*MESSAGES, "follow", "quiet")
@ends_clearly
@gives_rows("jsonl")
@some_bodies
def dump(
    paths: tuple[Path, ...],
    ignore_log_end: bool,
    columns: str | None,
    follow: bool,
    output: Output,
    bodies: BodyForm | None,
    **choice: Any,  # noqa: ANN401 - see MESSAGES
) -> None:
    """Write messages as JSON Lines. A body that is not UTF-8 is written as bodyBase64.

    PATH may be several stores, of which one of each broker is read, one after the other, or the
    address of name servers, rocketmq://HOST:9876, whose running brokers are read.

    Examples:
        rmqstore dump /data/rocketmq/store -t Orders --tags paid -n 10
        rmqstore dump /data/rocketmq/store -t Orders -b -7d --columns keys,body
    """
    damaged = _DamagedRows()
    if follow:
        output.require_live()
        source = source_to_follow(paths, ignore_log_end=ignore_log_end)
        columns = columns_shown(columns, output, _COLUMNS, is_one=len(source.stores) == 1)
        columns = columns_to_read(columns, bodies)
        with followed(source, columns=columns, **choice) as reader:
            schema, messages = in_form(reader, bodies)
            output.write_live(schema, damaged.counted(messages))
        end_if_damaged(damaged.count, "record", f"; see {CORRUPT_RECORD}")
        return
    with open_any(paths, ignore_log_end=ignore_log_end) as store, ExitStack() as stack:
        is_one = isinstance(store, MessageStore)
        columns = columns_shown(columns, output, _COLUMNS, is_one=is_one)
        choice["columns"] = columns_to_read(columns, bodies)
        progress: Progress = ignore_progress
        if not output.is_on_terminal:
            if isinstance(store, MessageStore | StoreCluster):
                name = _names(each_store(store))
            else:
                name = str(paths[0])
            unit = SCAN_UNITS[choice["scan"]] if output.limit is None else "messages"
            progress = stack.enter_context(progress_bar(f"reading {name}", unit))
            if output.limit is None:
                choice["progress"] = progress
                if choice["last"]:  # the total grows while messages are read backwards
                    choice["progress"] = lambda done, _total: progress(done, 0)
        _show_all(store, output, bodies, choice, damaged, progress)
    end_if_damaged(damaged.count, "record", f"; see {CORRUPT_RECORD}")


class _DamagedRows:
    """Counts the rows that stand for damage."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches and count."""
        for batch in batches:
            if CORRUPT_RECORD in batch.schema.names:
                self.count += len(batch) - batch.column(CORRUPT_RECORD).null_count
            yield batch


def _show_all(
    store: Messages,
    output: Output,
    bodies: BodyForm | None,
    choice: dict[str, Any],
    damaged: _DamagedRows,
    progress: Progress,
) -> None:
    """Write the messages of a scan.

    Where few are asked for, damage in mode FAILFAST is an error after all others.

    Args:
        store: the store, or several.
        output: where they go.
        bodies: the form of bodies.
        choice: the arguments of the scan.
        damaged: counts damaged rows.
        progress: called with the number of messages if that is limited.
    """
    rows: Scan | ValidRows
    if choice["mode"] == FAILFAST and (output.limit is not None or choice["last"] is not None):
        rows = ValidRows(lambda mode: scan_chosen(store, **choice | {"mode": mode}))
    else:
        rows = scan_chosen(store, **choice)
    schema, messages = in_form(rows, bodies)
    if output.limit is not None:
        messages = _with_progress(messages, output.limit, progress)
    output.write(schema, damaged.counted(messages))
    if isinstance(rows, ValidRows) and rows.damage is not None:
        raise rows.damage


def _with_progress(
    batches: Iterable[pa.RecordBatch], limit: int, progress: Progress
) -> Iterator[pa.RecordBatch]:
    """Yield batches, and report how many of the first ``limit`` rows are there."""
    n_rows = 0
    for batch in batches:
        n_rows = min(n_rows + len(batch), limit)
        progress(n_rows, limit)
        yield batch


@main.command("export")
@store_paths
@click.argument("target", type=NEW_FILE)
@options(*MESSAGES, "limit", "file_format", "verbatim", "overwrite", "fail_if_empty", "quiet")
@ends_clearly
@some_bodies
def export_messages(
    paths: tuple[Path, ...],
    target: Path,
    file_format: str | None,
    verbatim: bool,
    overwrite: bool,
    fail_if_empty: bool,
    ignore_log_end: bool,
    columns: str | None,
    bodies: BodyForm | None,
    **choice: Any,  # noqa: ANN401
) -> None:
    """Write messages to TARGET, a file whose name ends in .parquet, .jsonl, .json or .csv.

    PATH may be several stores, of which one of each broker is read, one after the other, or the
    address of name servers, rocketmq://HOST:9876, whose running brokers are read. The columns are
    those of a read. .gz or .zst at the end of the name compresses a file of text.

    Examples:
        rmqstore export /data/rocketmq/store /lake/orders.parquet -t Orders
        rmqstore export /data/rocketmq/store /lake/orders.jsonl.gz -t Orders -b -7d
    """
    for name, value in (("--columns", columns), ("--body or --charset", bodies)):
        if verbatim and value is not None:
            raise click.UsageError(f"--verbatim and {name} contradict each other")
    if target == Path("-"):
        raise OptionError("export writes files; rmqstore dump writes JSON Lines to stdout")
    output = Output.checked(file_format, target, overwrite=overwrite)
    output = output._replace(fails_if_empty=fail_if_empty)
    with (
        open_any(paths, ignore_log_end=ignore_log_end) as store,
        progress_bar(f"exporting to {target}", SCAN_UNITS[choice["scan"]]) as progress,
    ):
        columns = columns_to_read(columns, bodies)
        reader = scan_chosen(store, verbatim=verbatim, columns=columns, progress=progress, **choice)
        n_rows = output.write(*in_form(reader, bodies))
    if n_rows:
        click.echo(f"{target}: {n_rows:,} messages", err=True)
