"""The command line: arguments, tables, progress; no logic of its own. Messages go to stdout, everything else to stderr.

Exit codes: 0 clean, 1 damage found, 2 usage or an error that ends the command.
"""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqstore.entry import open_for
from rmqstore.errors import RmqStoreError, StoreFormatError
from rmqstore.store import MessageStore, QueueInfo, open_store
from rmqstore.verify import verify as verify_store

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import click
    from rich.console import Console
    from rich.table import Table
except ImportError as err:  # pragma: no cover - the message is the point
    print(f"the command line needs click and rich: pip install 'pyspark-rmqstore[cli]' ({err})", file=sys.stderr)  # noqa: T201
    raise SystemExit(2) from err

DAMAGE, USAGE = 1, 2

_err = Console(stderr=True)
_WIDE = 180  # columns of a table that goes into a file or a pipe


def _out() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def _ends_clearly(command: Callable[..., None]) -> Callable[..., None]:
    """Turn our errors into a line on stderr and an exit code."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        try:
            command(*args, **kwargs)
        except BrokenPipeError:  # `| head` has seen enough; click ends quietly
            raise
        except StoreFormatError as err:
            click.echo(f"damage: {err}", err=True)
            sys.exit(DAMAGE)
        except (RmqStoreError, OSError) as err:
            click.echo(f"error: {err}", err=True)
            sys.exit(USAGE)

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyspark-rmqstore")
def main() -> None:
    """Look into an Apache RocketMQ store without a broker. Only rebuild changes anything."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)


_path = click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
_as_json = click.option("--json", "as_json", is_flag=True, help="JSON Lines instead of a table.")


@main.command()
@_path
@click.option("-t", "--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--all", "with_system", is_flag=True, help="System topics too.")
@_as_json
@_ends_clearly
def stat(path: Path, topics: tuple[str, ...], with_system: bool, as_json: bool) -> None:
    """Show queues: offsets, messages, bytes, first and last store time."""
    with open_store(path) as store:
        selected = _queues(store, topics, with_system=with_system)
        if as_json:
            for info in selected:
                click.echo(json.dumps({**info._asdict(), "messages": info.max_offset - info.min_offset}))
            return
        table = Table("topic", "queue", "min offset", "max offset", "messages", "bytes", "first stored", "last stored")
        for info in selected:
            times = [_time(at) for at in (info.first_store_timestamp, info.last_store_timestamp)]
            numbers = (info.queue_id, info.min_offset, info.max_offset, info.max_offset - info.min_offset, info.n_bytes)
            table.add_row(info.topic, *(f"{number:,}" for number in numbers), *times)
        _out().print(table)


def _queues(store: MessageStore, topics: tuple[str, ...], *, with_system: bool) -> Iterator[QueueInfo]:
    from rmqstore.selection import parse_selection

    selection = parse_selection(subscribe=topics or None, include_system_topics=with_system)
    store.require_topics(selection)
    chosen = store.chosen_queues(selection)
    with _err.status("reading queues") as status:
        for topic in chosen:
            status.update(f"reading queues of {topic}")
            yield from store.queues(topic)


def _time(timestamp: int | None) -> str:
    if timestamp is None:
        return "-"
    return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


@main.command()
@_path
@click.option("-t", "--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("-i", "--queue", "queue_id", type=int, help="Only this queue of the one topic.")
@click.option("-o", "--offset", type=int, help="From this queue offset on (with -t and -i).")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many messages.")
@click.option("-b", "--begin", help="Stored at or after: epoch ms or ISO-8601.")
@click.option("-e", "--end", help="Stored before: epoch ms or ISO-8601.")
@click.option("-s", "--tags", help="Tags: 'A || B'.")
@click.option("--columns", help="Comma list of columns; all by default.")
@click.option("--scan", type=click.Choice(["queue", "commitlog"]), default="queue", show_default=True)
@click.option("--mode", type=click.Choice(["FAILFAST", "DROPMALFORMED", "PERMISSIVE"]), default="FAILFAST")
@click.option("--all", "with_system", is_flag=True, help="System topics too.")
@_ends_clearly
def dump(
    path: Path,
    topics: tuple[str, ...],
    queue_id: int | None,
    offset: int | None,
    limit: int | None,
    begin: str | None,
    end: str | None,
    tags: str | None,
    columns: str | None,
    scan: str,
    mode: str,
    with_system: bool,
) -> None:
    """Write messages as JSON Lines. A body that is no UTF-8 comes as bodyBase64."""
    chosen = _selection(topics, queue_id, offset)
    with open_store(path) as store:
        reader = store.scan(
            **chosen,
            starting_timestamp=begin,
            ending_timestamp=end,
            include_system_topics=with_system,
            tags=tags,
            columns=columns,
            scan=scan,
            mode=mode,
        )
        damaged = _write_rows(reader, limit)
    if damaged:
        click.echo(f"damage: {damaged} records, see _corrupt_record", err=True)
        sys.exit(DAMAGE)


def _selection(topics: tuple[str, ...], queue_id: int | None, offset: int | None) -> dict[str, Any]:
    if queue_id is None and offset is None:
        return {"subscribe": topics or None}
    if len(topics) != 1 or queue_id is None:
        raise click.UsageError("-i needs one -t, and -o needs both")
    chosen: dict[str, Any] = {"assign": {topics[0]: [queue_id]}}
    if offset is not None:
        chosen["starting_offsets"] = {topics[0]: {queue_id: offset}}
    return chosen


def _write_rows(batches: Iterator[Any], limit: int | None) -> int:
    """Write rows as they come; return how many of them tell of damage."""
    written = damaged = 0
    for batch in batches:
        for row in batch.to_pylist():
            if limit is not None and written >= limit:
                return damaged
            click.echo(json.dumps(jsonable(row), ensure_ascii=False))
            written += 1
            damaged += bool(row.get("_corrupt_record"))
    return damaged


def jsonable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON can hold it: times as ISO-8601, a body as text or base64, properties as a table."""
    found = dict(row)
    for name, value in row.items():
        if isinstance(value, datetime):
            found[name] = value.isoformat(timespec="milliseconds")
        elif name == "properties" and isinstance(value, list):
            found[name] = dict(value)
        elif isinstance(value, bytes):
            try:
                found[name] = value.decode()
            except UnicodeDecodeError:
                del found[name]
                found[f"{name}Base64"] = base64.b64encode(value).decode()
    return found


@main.command()
@_path
@click.argument("place")
@_ends_clearly
def get(path: Path, place: str) -> None:
    """Show one message by PLACE: an offset message id (32 or 56 hex digits), or a physical offset in decimal."""
    with open_store(path) as store:
        message = store.get(int(place) if place.isdecimal() and len(place) < _ID_DIGITS else place)
    click.echo(json.dumps(jsonable(message._asdict()), ensure_ascii=False, indent=2))


_ID_DIGITS = 32


@main.command()
@_path
@_as_json
@_ends_clearly
def verify(path: Path, as_json: bool) -> None:
    """Name every disagreement of CommitLog, ConsumeQueues and IndexFiles; exit 1 if there is one."""
    with open_store(path) as store, _err.status(f"reading all of {path}"):
        findings = list(verify_store(store))
    for finding in findings:
        line = (
            json.dumps(finding._asdict(), ensure_ascii=False)
            if as_json
            else f"{finding.part} {finding.place}: {finding.text}"
        )
        click.echo(line)
    if findings:
        click.echo(f"damage: {len(findings)} findings", err=True)
        sys.exit(DAMAGE)
    click.echo(f"{path}: log, queues and index agree", err=True)


@main.command()
@_path
@click.option("--truncate", is_flag=True, help="Cut a damaged log even where good records follow; a copy is kept.")
@_ends_clearly
def rebuild(path: Path, truncate: bool) -> None:
    """Build ConsumeQueues and IndexFiles anew from the CommitLog. The store is locked meanwhile; no broker may run."""
    with open_for(path, "a", truncate=truncate) as store, _err.status(f"building queues and index of {path}"):
        store.rebuild()
    with open_store(path) as built:
        queues = sum(len(built.queue_ids(topic)) for topic in built.topics())
    click.echo(f"{path}: {queues} queues and the index were built from the CommitLog", err=True)


if __name__ == "__main__":
    main()
