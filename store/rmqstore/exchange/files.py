"""The formats of files, and files that appear only when they are complete.

Columns of CSV hold what JSON Lines have. A map or a list is written as JSON. Next to a column of
bytes is one with ``Base64`` appended to its name, for those that are not UTF-8.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import orjson
import pyarrow as pa
from pyarrow import csv

from rmqstore.errors import IllegalMessageError, IllegalRowError, OptionError
from rmqstore.exchange.json_rows import BASE64, base64_texts, json_values, write_json_lines

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_ROW_GROUP_ROWS = 1 << 17
_ROW_GROUP_BYTES = 64 << 20
_ROWS_AT_ONCE = 8192
# Columns that the paths of a partitioned folder may hold: topic=Orders/queueId=3/….
_PARTITIONED: Final = {"topic": pa.string(), "queueId": pa.int32()}


class RowOrigins:
    """The file and the lines of the rows of a batch, and the number of its first row among all.

    Readers of files note each batch before they yield it. Rows and lines are counted from 1.
    """

    def __init__(self) -> None:
        self._first = self._after = 1
        self._source = ""
        self._unit = "row"
        self._numbers: Sequence[Sequence[int]] = ()

    def note(self, source: str, unit: str, numbers: Sequence[Sequence[int]]) -> None:
        """Keep the file and the lines of the rows that come next.

        Args:
            source: name of the file.
            unit: what is counted in it: ``line`` or ``row``.
            numbers: the numbers of the rows, in chunks.
        """
        self._source = source
        self._unit = unit
        self._numbers = numbers
        self._first = self._after
        self._after += sum(map(len, numbers))

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Let errors of rows name their file and line."""
        try:
            yield
        except IllegalRowError as err:
            if not self._first <= err.row < self._after:  # it is not of the last batch
                raise
            number = [*chain.from_iterable(self._numbers)][err.row - self._first]
            text = f"{self._source}: {self._unit} {number}: {err.reason}"
            raise IllegalMessageError(text) from err


def write_parquet(
    sink: IO[bytes] | pa.NativeFile, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> None:
    """Write rows as one Parquet file, compressed with zstd.

    A row group has 128 Ki rows or 64 MiB.

    Args:
        sink: an open file.
        schema: the columns.
        batches: the rows.
    """
    from pyarrow import parquet

    with parquet.ParquetWriter(sink, schema, compression="zstd") as file:
        waiting: list[pa.RecordBatch] = []
        rows = n_bytes = 0
        for batch in batches:
            waiting.append(batch)
            rows += len(batch)
            n_bytes += batch.nbytes
            if rows >= _ROW_GROUP_ROWS or n_bytes >= _ROW_GROUP_BYTES:
                file.write_table(pa.Table.from_batches(waiting), row_group_size=rows)
                waiting.clear()
                rows = n_bytes = 0
        if waiting:
            file.write_table(pa.Table.from_batches(waiting), row_group_size=max(rows, 1))


def read_parquet(
    source: Path, columns: list[str] | None = None, origins: RowOrigins | None = None
) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the number of rows, and the rows, of a Parquet file or of a folder of such files.

    Files of a folder come in the order of their names.

    Args:
        source: a file or a folder. Folders ``topic=…/queueId=…`` in it give these columns too, and
            as in Spark they take precedence over columns of their files.
        columns: the columns to read, all by default.
        origins: notes where the rows of each batch are.

    Raises:
        IllegalMessageError: a file is not Parquet, or a column is missing.
    """
    from pyarrow import dataset

    in_paths = pa.schema(
        [
            (name, kind)
            for name, kind in _PARTITIONED.items()
            if source.is_dir() and any(source.glob(f"**/{name}=*"))
        ]
    )
    partitioning = dataset.partitioning(in_paths, flavor="hive")
    try:
        files = dataset.dataset(source, format="parquet", partitioning=partitioning)
        schemas = [files.schema, *(fragment.physical_schema for fragment in files.get_fragments())]
        # Includes the columns that only some files have.
        files = files.replace_schema(pa.unify_schemas(schemas))
        files.scanner(columns=columns)  # refuses columns that are missing
        batches = _parquet_batches(source, files, columns, origins or RowOrigins())
        return files.count_rows(), batches
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowKeyError, KeyError) as err:
        raise IllegalMessageError(f"{source} cannot be read as Parquet: {err}") from err


def _parquet_batches(
    source: Path, files: Dataset, columns: list[str] | None, origins: RowOrigins
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files one after the other."""
    try:
        for file in files.get_fragments():
            n_rows = 0
            # Little readahead, so that memory stays bounded.
            batches = file.to_batches(
                schema=files.schema, columns=columns, batch_size=_ROWS_AT_ONCE, batch_readahead=2
            )
            for batch in batches:
                origins.note(file.path, "row", [range(n_rows + 1, n_rows + len(batch) + 1)])
                yield batch
                n_rows += len(batch)
    except (pa.ArrowException, OSError) as err:
        raise IllegalMessageError(f"{source} cannot be read as Parquet: {err}") from err


def write_csv(
    sink: IO[bytes] | pa.NativeFile, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> None:
    """Write rows, and a head also without rows.

    Args:
        sink: an open file.
        schema: the columns.
        batches: the rows.
    """
    with csv.CSVWriter(sink, _csv_rows(pa.RecordBatch.from_pylist([], schema)).schema) as file:
        for batch in batches:
            file.write_batch(_csv_rows(batch))
            sink.flush()


def _csv_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose values CSV can hold."""
    names, columns = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        names.append(name)
        if pa.types.is_binary(column.type):
            texts, encoded = base64_texts(column)
            names.append(f"{name}{BASE64}")
            columns += [pa.array(texts, pa.string()), pa.array(encoded, pa.string())]
        elif pa.types.is_nested(column.type):
            rows = json_values(column)
            values = [None if row is None else orjson.dumps(row) for row in rows]
            columns.append(pa.array(values, pa.string()))
        elif pa.types.is_temporal(column.type):
            columns.append(pa.array(json_values(column), pa.string()))
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names)


FORMATS: Final = ("parquet", "jsonl", "csv")
INPUT_FORMATS: Final = ("parquet", "jsonl")
# Of an open file, the columns and the rows, which are written as they come.
WRITERS: Final = {"parquet": write_parquet, "jsonl": write_json_lines, "csv": write_csv}
_SUFFIXES: Final = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}


def format_of(path: Path) -> str:
    """Return the format of a file by its suffix; a folder holds Parquet files.

    ``.gz`` or ``.zst`` may follow the suffix of a format of text.

    Raises:
        OptionError: the suffix is unknown.
    """
    format_name = _SUFFIXES.get(_suffix(path))
    if path.is_dir():
        format_name = "parquet"
    if format_name is None:
        known = ", ".join(_SUFFIXES)
        raise OptionError(
            f"{path}: the name does not give the format; it must end with one of {known}, .json"
        )
    return format_name


def has_known_suffix(path: Path) -> bool:
    """Return whether a name gives a format."""
    return _suffix(path) in _SUFFIXES


def _suffix(path: Path) -> str:
    """Return the suffix of a name, the one before that of a compression."""
    if compression_of(path):
        path = Path(path.stem)
    return path.suffix


def compression_of(path: Path) -> str | None:
    """Return the compression of a file by its suffix, ``gzip`` or ``zstd``; None without one."""
    return _COMPRESSIONS.get(path.suffix)


@contextmanager
def new_file(target: Path, format_name: str) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when it is complete, compressed if its name says so.

    Raises:
        OptionError: Parquet cannot be compressed as a whole.
    """
    compression = compression_of(target)
    if compression is not None and format_name == "parquet":
        raise OptionError(f"{target}: Parquet is compressed inside; leave {target.suffix} out")
    path = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with path.open("wb") as file:
            sink: IO[bytes] = file
            if compression is not None:
                sink = pa.CompressedOutputStream(pa.PythonFile(file, "w"), compression)
            with sink:
                yield sink
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)  # after an error
