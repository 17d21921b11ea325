"""The write path of the core on one thread: encoding, indexing, appending.

Some costs are given in units of G, the time to gather the bodies of the same rows; see
bench_core.py.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
from bench_core import first_segment
from measure import Case, measure, ratio, report

import rmqstore
from rmqstore.format.columns import encode as records
from rmqstore.format.columns.decode import stored_bodies
from rmqstore.format.columns.dispatch_requests import read_requests
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.format.columns.walk import walk
from rmqstore.format.layout import BATCH_ROWS
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index_appender import IndexFileAppender, IndexKeys
from rmqstore.storage.index_files import IndexSizes
from rmqstore.write.verbatim import verbatim_columns

_WRITTEN = (
    "topic",
    "queueId",
    "body",
    "tags",
    "keys",
    "msgId",
    "properties",
    "flag",
    "bornTimestamp",
    "bornHost",
)
_SIZES = IndexSizes(5_000_000, 20_000_000)


class NoFlush(Disk):
    """Does not flush, so that the figures do not depend on the speed of the disk."""

    def flush(self, path: Path) -> None:
        del path

    def flush_folder(self, path: Path) -> None:
        del path

    def flush_all(self, paths: Collection[Path]) -> None:
        del paths


def encoding(batches: Sequence[pa.RecordBatch], *, crc: bool) -> Case:
    """Encode batches as stored."""
    columns = [verbatim_columns(batch) for batch in batches]
    body_crcs = records.body_crcs if crc else lambda bodies: np.zeros(len(bodies), np.int32)

    def run() -> int:
        with mock.patch.object(records, "body_crcs", body_crcs):
            return sum(
                len(records.encode_records(part.take(rows)).starts) - 1
                for part in columns
                for rows in records.row_batches(part.sizes())
            )

    return run


def gathering(root: Path, n_rows: int) -> Case:
    """Gather the bodies of the same number of rows."""
    data = first_segment(root)
    starts = walk(data, 0, len(data), 0).starts[:n_rows]
    parts = [
        read_headers(data, starts[start : start + BATCH_ROWS])[0]
        for start in range(0, len(starts), BATCH_ROWS)
    ]

    def run() -> int:
        for part in parts:
            stored_bodies(data, part)
        return len(starts)

    return run


def indexing(root: Path, n_rows: int, scratch: Path) -> Case:
    """Put the keys of rows into an index file; the costs are per key."""
    data = first_segment(root)
    starts = walk(data, 0, len(data), 0).starts[:n_rows]
    headers = [
        read_headers(data, starts[start : start + BATCH_ROWS])[0]
        for start in range(0, len(starts), BATCH_ROWS)
    ]
    requests = [read_requests(data, part) for part in headers]

    def run() -> int:
        shutil.rmtree(scratch, ignore_errors=True)
        path = scratch / "20260101000000000"
        file = IndexFileAppender.create(NoFlush(), path, _SIZES, None)
        keys = []
        total = 0
        for batch in requests:
            rows = batch.key_rows
            offsets = batch.units.units["physical_offset"].astype(np.int64)[rows]
            keys.append(IndexKeys(batch.key_hashes, offsets, batch.units.store_timestamps[rows]))
            total += len(rows)
        file.put(IndexKeys(*(np.concatenate(column) for column in zip(*keys, strict=True))))
        file.commit()
        return total

    return run


def appending(batches: Sequence[pa.RecordBatch], scratch: Path) -> Case:
    """Append batches to a store until they are committed, with queues and index."""

    def run() -> int:
        shutil.rmtree(scratch, ignore_errors=True)
        with rmqstore.create(scratch) as writer:
            for batch in batches:
                writer.append(batch)
        return sum(map(len, batches))

    return run


def main() -> None:
    """Run the cases and print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--passes", type=int, default=5)
    arguments = parser.parse_args()
    with rmqstore.open(arguments.store, broker_name="bench") as store:
        verbatim = first_rows(store.scan(scan="commitlog", verbatim=True), arguments.messages)
        messages = first_rows(store.scan(columns=_WRITTEN), arguments.messages)
    with tempfile.TemporaryDirectory(dir=arguments.store.parent) as folder:
        cases = {
            "G": gathering(arguments.store, arguments.messages),
            "encode": encoding(verbatim, crc=False),
            "encode with CRC": encoding(verbatim, crc=True),
            "index, an entry": indexing(
                arguments.store, arguments.messages, Path(folder) / "index"
            ),
            "append": appending(messages, Path(folder) / "store"),
        }
        measured = measure(cases, arguments.passes)
    for name, costs in measured.items():
        goal = {"encode": 14.0, "index, an entry": 2.8}.get(name)
        extra = {} if goal is None else {"goal_g": goal}
        report(
            "write",
            name,
            ns_per_row=statistics.median(costs),
            g=ratio(measured, name, "G"),
            **extra,
        )


def first_rows(reader: pa.RecordBatchReader, count: int) -> list[pa.RecordBatch]:
    """Return the first batches, with at least ``count`` rows."""
    batches: list[pa.RecordBatch] = []
    for batch in reader:
        batches.append(batch)
        count -= len(batch)
        if count <= 0:
            break
    return batches


if __name__ == "__main__":
    main()
