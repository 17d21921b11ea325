"""The core on one thread: decoding all or some columns, and walking the log.

Costs are given in units of G, the time to gather the bodies (200 bytes) of the same rows. That is
the least that any reader has to do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pyarrow as pa
from measure import Case, measure, ratio, report

import rmqstore
from rmqstore.exchange.json_input import read_json_lines
from rmqstore.exchange.json_rows import json_lines, write_json_lines
from rmqstore.format.columns.decode import stored_bodies
from rmqstore.format.columns.record_headers import RecordHeaders, read_headers
from rmqstore.format.columns.walk import walk
from rmqstore.format.layout import BATCH_ROWS, Bytes
from rmqstore.format.schema import MESSAGE
from rmqstore.storage.files.local import MappedFile

_FRAME = struct.Struct(">ii")
GOALS = {
    "full": 12.0,
    "full, queue order": 15.0,
    "queueOffset, tags, body": 6.5,
    "all but properties": 4.8,
}


def first_segment(path: Path) -> Bytes:
    """Return the bytes of the first CommitLog file."""
    return MappedFile(min((path / "commitlog").iterdir())).data


def gather(data: Bytes, headers: RecordHeaders) -> Case:
    """Gather the bodies batch by batch."""
    parts = [
        headers.take(slice(start, start + BATCH_ROWS))
        for start in range(0, len(headers), BATCH_ROWS)
    ]

    def run() -> int:
        for part in parts:
            stored_bodies(data, part)
        return len(headers.starts)

    return run


def scan(path: Path, **options: object) -> Case:
    """Read through the public API."""

    def run() -> int:
        with rmqstore.open(path) as store:
            return sum(batch.num_rows for batch in store.scan(check_crc=False, **options))  # type: ignore[arg-type]

    return run


def queue_by_queue(path: Path, topic: str, queues: int) -> Case:
    """Read queue by queue, in the order of each ConsumeQueue."""

    def run() -> int:
        rows = 0
        with rmqstore.open(path) as store:
            for queue in range(queues):
                rows += sum(
                    batch.num_rows for batch in store.scan(assign={topic: [queue]}, check_crc=False)
                )
        return rows

    return run


def json_lines_out(path: Path) -> Case:
    """Write all columns as JSON Lines to a file that keeps nothing."""

    def run() -> int:
        with rmqstore.open(path) as store, Path(os.devnull).open("wb") as sink:
            messages = store.scan(check_crc=False)
            write_json_lines(sink, messages.schema, messages)
            return store.count()

    return run


def json_lines_in(path: Path) -> Case:
    """Read what :func:`json_lines_out` writes, of the first rows."""
    with rmqstore.open(path) as store:
        text = b"".join(line for batch in store.scan(limit=100_000) for line in json_lines(batch))

    def run() -> int:
        with TextIOWrapper(BytesIO(text), encoding="utf-8") as file:
            return sum(batch.num_rows for batch in read_json_lines(file, "memory"))

    return run


def plain_walk(data: Bytes) -> Case:
    """Follow the chain of sizes with a struct loop."""

    def run() -> int:
        view = memoryview(data)
        end = len(data) - _FRAME.size
        position = rows = 0
        unpack = _FRAME.unpack_from
        while position < end:
            size, magic = unpack(view, position)
            if magic not in (-626843481, -626843477):
                break
            position += size
            rows += 1
        return rows

    return run


def main() -> None:
    """Run the cases and print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path, help="a uniform store of generate.py")
    parser.add_argument("--mixed", type=Path, help="a mixed one")
    parser.add_argument("--passes", type=int, default=5)
    arguments = parser.parse_args()
    data = first_segment(arguments.store)
    headers, whole = read_headers(data, walk(data, 0, len(data), 0).starts)
    assert whole.all()
    without = [
        name for name in MESSAGE.names if name not in ("properties", "tags", "keys", "msgId")
    ]
    cases: dict[str, Case] = {
        "G": gather(data, headers),
        "full": scan(arguments.store),
        "full, by log": scan(arguments.store, scan="commitlog"),
        "full, queue order": queue_by_queue(arguments.store, "bench", 8),
        "queueOffset, tags, body": scan(arguments.store, columns="queueOffset,tags,body"),
        "all but properties": scan(arguments.store, columns=",".join(without)),
        "walk": lambda: len(walk(data, 0, len(data), 0).starts),
        "walk, struct loop": plain_walk(data),
        "full, CRC checked": lambda: _checked(arguments.store),
        "JSON Lines out": json_lines_out(arguments.store),
        "JSON Lines in": json_lines_in(arguments.store),
    }
    if arguments.mixed:
        cases["full, mixed data"] = scan(arguments.mixed, include_system_topics=True)
    measured = measure(cases, arguments.passes)
    for name, costs in measured.items():
        cost = ratio(measured, name, "G")
        goal = {"goal_g": GOALS[name]} if name in GOALS else {}
        report("core", name, ns_per_row=statistics.median(costs), g=cost, **goal)
    report(
        "core",
        "walk against struct loop",
        times_faster=ratio(measured, "walk, struct loop", "walk"),
        goal=6.0,
    )
    crc = [a - b for a, b in zip(measured["full, CRC checked"], measured["full"], strict=True)]
    in_g = statistics.median(a / b for a, b in zip(crc, measured["G"], strict=True))
    report("core", "CRC on top", g=in_g, goal_g=7.0)
    if arguments.mixed:
        report(
            "core",
            "mixed against uniform",
            times=ratio(measured, "full, mixed data", "full"),
            goal=1.6,
        )
    pa.default_memory_pool().release_unused()


def _checked(path: Path) -> int:
    with rmqstore.open(path) as store:
        return sum(batch.num_rows for batch in store.scan())


if __name__ == "__main__":
    main()
