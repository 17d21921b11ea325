"""Reading a store in tests: batches to rows that compare easily, folders to states that do."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import goldens
import rmqstore
from rmqstore import MessageStore
from rmqstore.format.schema import ALL_COLUMNS

Row = dict[str, Any]
QueuesOfBrokers = dict[tuple[str, str, int], list[Row]]
EVERY_COLUMN: list[str] = ALL_COLUMNS.names
LOG_COLUMNS: list[str] = [name for name in EVERY_COLUMN if name != "tagsCode"]
# Those that RocketMQ's answers show, for reads that are compared with these.
TOLD_COLUMNS = [name for name in EVERY_COLUMN if name in goldens.TOLD]
TOLD_OF_LOG = [name for name in LOG_COLUMNS if name in goldens.TOLD]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return the rows of batches as plain Python values: times as ms, properties as a dict."""
    return [plain(row) for batch in batches for row in batch.to_pylist()]


def plain(row: Row) -> Row:
    """Return a row with times as ms and properties as a dict."""
    for name in ("bornTimestamp", "storeTimestamp"):
        if isinstance(row.get(name), datetime):
            row[name] = (row[name] - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(row.get("properties"), list):
        pairs = row["properties"]
        row["properties"] = dict(pairs)
        assert len(row["properties"]) == len(pairs), "a name twice in a map"
    return row


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """End what hangs by a TimeoutError; for the main thread of a process."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read(store: MessageStore | Path, **options: Any) -> list[Row]:
    """Scan with every column that RocketMQ's answers show unless ``columns`` is given.

    A store that is named by its folder is opened for this read.
    """
    if isinstance(store, Path):
        with rmqstore.open(store) as opened:
            return read(opened, **options)
    default = TOLD_OF_LOG if options.get("scan") == "commitlog" else TOLD_COLUMNS
    return rows(store.scan(**{"columns": default, "include_system_topics": True, **options}))


def column(store: MessageStore | Path, name: str, **options: Any) -> list[Any]:
    """Return one column of a scan, with the options of :func:`read`."""
    return [row[name] for row in read(store, columns=name, **options)]


def offsets(found: Iterable[Row]) -> list[int]:
    return [row["commitLogOffset"] for row in found]


def by_queue(found: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    queues: dict[tuple[str, int], list[Row]] = {}
    for row in found:
        queues.setdefault((row["topic"], row["queueId"]), []).append(row)
    return queues


def by_queue_of_broker(found: Iterable[Row]) -> QueuesOfBrokers:
    queues: QueuesOfBrokers = {}
    for row in found:
        queues.setdefault((row["brokerName"], row["topic"], row["queueId"]), []).append(row)
    return queues


def state(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Return the modification time, size and digest of each file below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status, digest = path.stat(), ""
        if path.is_file():
            hashed = hashlib.blake2b(
                path.read_bytes() if status.st_size < 1 << 24 else _head_and_tail(path)
            )
            digest = hashed.hexdigest()
        found[str(path.relative_to(folder))] = (status.st_mtime_ns, status.st_size, digest)
    return found


def _head_and_tail(path: Path) -> bytes:
    piece = 1 << 20
    with path.open("rb") as file:
        head = file.read(piece)
        file.seek(-piece, 2)
        return head + file.read()


def descriptors_in(folder: Path) -> set[Path]:
    """Return the descriptors of this process that lead to files below a folder, or did."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing
            if descriptor.readlink().is_relative_to(folder):
                found.add(descriptor)
    return found


def differing_columns(left: object, right: object) -> list[str]:
    """Return, in words, which columns of two tables of rows differ, each with its first place.

    A table is a list of rows, or a dictionary of such lists. What else two values differ in is not
    told, and of values that are no tables nothing is.
    """
    tables: list[tuple[str, object, object]] = [("row", left, right)]
    if isinstance(left, dict) and isinstance(right, dict):
        tables = [(f"{key!r}, row", left[key], right[key]) for key in left if key in right]
    found: dict[str, str] = {}
    for place, ours, theirs in tables:
        if not (_is_table(ours) and _is_table(theirs)):
            return []
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):  # type: ignore[call-overload]
            for name in [*one, *(name for name in other if name not in one)]:
                if name not in one or name not in other:
                    side = "right" if name in other else "left"
                    found.setdefault(name, f"column {name} is on the {side} only")
                elif one[name] != other[name]:
                    values = f"{one[name]!r} and {other[name]!r}"
                    found.setdefault(name, f"column {name} differs, at {place} {number}: {values}")
    return [*found.values()]


def _is_table(value: object) -> bool:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        return False
    return all(isinstance(name, str) for row in value for name in row)
