"""Messages in Parquet files, the input of bench_spark_write.py.

Equal arguments give equal files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rmqstore

TOPIC = "Orders"
TAGS = ("created", "paid", "packed", "shipped", "returned")
REGIONS = ("eu-central", "eu-west", "us-east", "us-west", "ap-south", "ap-east")
MIN_BODY, MAX_BODY = 190, 290
COLUMNS = ("topic", "keys", "tags", "properties", "body")
_CHUNK_ROWS = 50_000
_SEED = 1
_COUNTS = "counts.json"
_REPEATING = ["topic", "tags"]


def write_messages(folder: Path, n_rows: int, n_files: int) -> int:
    """Generate messages whose records have some 455 bytes; return their number."""
    rng = np.random.default_rng(_SEED)
    chunks = (_draw(rng, min(_CHUNK_ROWS, n_rows - done)) for done in range(0, n_rows, _CHUNK_ROWS))
    return _write(folder, chunks, n_rows, n_files)


def copy_messages(store: Path, folder: Path, n_rows: int, n_files: int) -> int:
    """Take messages, at most ``n_rows``, from a store; return their number."""
    with rmqstore.open(store) as reader:
        n_rows = min(n_rows, reader.count(check_crc=False))
        return _write(folder, reader.scan(columns=COLUMNS, check_crc=False), n_rows, n_files)


def _write(folder: Path, chunks: Iterator[pa.RecordBatch], n_rows: int, n_files: int) -> int:
    """Write rows to files of equally many rows, unless an earlier run has done so."""
    counts = [n_rows, n_files]
    if (folder / _COUNTS).exists() and json.loads((folder / _COUNTS).read_text()) == counts:
        return n_rows
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "rows").mkdir(parents=True)
    bounds = [n_rows * number // n_files for number in range(n_files + 1)]
    done, number, file = 0, 0, None
    for chunk in chunks:
        start, stop = 0, min(len(chunk), n_rows - done)
        while start < stop:
            if file is None:
                path = folder / "rows" / f"{number:05d}.parquet"
                file = pq.ParquetWriter(path, chunk.schema, use_dictionary=_REPEATING)
            part = chunk.slice(start, min(stop - start, bounds[number + 1] - done))
            file.write_batch(part)
            start += len(part)
            done += len(part)
            if done == bounds[number + 1]:
                file.close()
                file = None
                number += 1
    (folder / _COUNTS).write_text(json.dumps(counts))
    return n_rows


def _draw(rng: np.random.Generator, n: int) -> pa.RecordBatch:
    """Return messages with keys, tags, three properties and a body of random bytes."""
    codes = {
        "topic": np.zeros(n, np.int32),
        "tags": rng.integers(len(TAGS), size=n, dtype=np.int32),
        "region": rng.integers(len(REGIONS), size=n, dtype=np.int32),
        "attempt": rng.integers(3, size=n, dtype=np.int32),
    }
    texts = {
        name: pa.DictionaryArray.from_arrays(codes[name], values).dictionary_decode()
        for name, values in (
            ("topic", pa.array([TOPIC])),
            ("tags", pa.array(TAGS)),
            ("region", pa.array(REGIONS)),
            ("attempt", pa.array(["1", "2", "3"])),
        )
    }
    names = pa.array(["region", "attempt", "trace"])
    values = pa.concat_arrays([texts["region"], texts["attempt"], _draw_hex(rng, n, 8)])
    row_by_row = np.arange(3 * n).reshape(3, n).T.ravel()
    properties = pa.MapArray.from_arrays(
        pa.array(np.arange(0, 3 * n + 1, 3, dtype=np.int32)),
        names.take(pa.array(row_by_row // n)),
        values.take(pa.array(row_by_row)),
    )
    arrays = [texts["topic"], _draw_hex(rng, n, 6), texts["tags"], properties, _draw_bodies(rng, n)]
    return pa.RecordBatch.from_arrays(arrays, COLUMNS)


def _draw_hex(rng: np.random.Generator, n: int, width: int) -> pa.StringArray:
    """Return texts of ``2 * width`` hexadecimal digits."""
    offsets = np.arange(0, 2 * width * n + 1, 2 * width, dtype=np.int32)
    digits = rng.bytes(width * n).hex().encode()
    return pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(digits))


def _draw_bodies(rng: np.random.Generator, n: int) -> pa.BinaryArray:
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(rng.integers(MIN_BODY, MAX_BODY + 1, size=n), out=offsets[1:])
    data = rng.bytes(int(offsets[-1]))
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
