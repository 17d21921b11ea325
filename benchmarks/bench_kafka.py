"""Kafka's batches on one thread: walking, checksums, and decoding all or some columns.

Costs are nanoseconds of CPU time a row, for records with a key and a value of 200 bytes.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
from functools import partial
from pathlib import Path

import numpy as np
from measure import Case, measure, report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kafka_batches import Row, batch
from kafkalog.format.batch_headers import BatchHeaders, walk_batches
from kafkalog.format.layout import RECORD
from kafkalog.format.records import decode_chunks

_NO_HEADERS = [name for name in RECORD.names if name != "headers"]
_HEADERS = ((b"trace-id", b"0123456789abcdef"), (b"source", b"orders"), (b"v", b"17"))
_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def segment(rows: int, batch_rows: int, codec: int, *, with_headers: bool) -> np.ndarray:
    """Return a segment of batches that differ in their values; each is used several times."""
    random = np.random.default_rng(1)
    templates = []
    for number in range(16):
        texts = random.integers(97, 105, (batch_rows, 200), np.uint8)
        records = [
            Row(
                key=b"order-%d" % (number * batch_rows + at),
                value=texts[at].tobytes(),
                headers=_HEADERS if with_headers else (),
                time_delta=at,
            )
            for at in range(batch_rows)
        ]
        templates.append(batch(0, records, attributes=codec))
    parts = []
    for number in range(max(rows // batch_rows, 1)):
        part = bytearray(templates[number % len(templates)])
        struct.pack_into(">q", part, 0, number * batch_rows)
        parts.append(part)
    return np.frombuffer(b"".join(parts), np.uint8)


def walk(data: np.ndarray, rows: int) -> int:
    """Walk the heads; return the number of rows."""
    walk_batches(data)
    return rows


def check(data: np.ndarray, batch_headers: BatchHeaders, rows: int) -> int:
    """Compare the checksums; return the number of rows."""
    assert batch_headers.check_crcs(data).all()
    return rows


def read(data: np.ndarray, batch_headers: BatchHeaders, columns: list[str], piece: int) -> int:
    """Decode columns, so many batches at a time; return the number of rows."""
    return sum(
        chunk.num_rows
        for at in range(0, len(batch_headers), piece)
        for _, chunk in decode_chunks(data, batch_headers[at : at + piece], columns)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--passes", type=int, default=5)
    arguments = parser.parse_args()
    cases: dict[str, Case] = {}
    for codec, number in _CODECS.items():
        for batch_rows in (70, 2_000):
            data = segment(arguments.rows, batch_rows, number, with_headers=False)
            batch_headers = walk_batches(data)
            rows = int(batch_headers.record_count.sum())
            name = f"{codec}, {batch_rows} rows a batch"
            piece = max(20_000 // batch_rows, 1)
            cases[name] = partial(read, data, batch_headers, _NO_HEADERS, piece)
            if not number:
                cases[f"{name}, walk"] = partial(walk, data, rows)
                cases[f"{name}, checksums"] = partial(check, data, batch_headers, rows)
                cases[f"{name}, value"] = partial(read, data, batch_headers, ["value"], piece)
                with_headers = segment(arguments.rows, batch_rows, number, with_headers=True)
                batch_headers = walk_batches(with_headers)
                names = list(RECORD.names)
                cases[f"{name}, 3 headers"] = partial(
                    read, with_headers, batch_headers, names, piece
                )
    for name, costs in measure(cases, arguments.passes).items():
        cost = statistics.median(costs)
        report("kafka", name, nanoseconds_a_row=cost, million_rows_a_second=1000 / cost)


if __name__ == "__main__":
    main()
