"""Messages in Parquet and JSON Lines files, written from batches and read back into batches.

Both formats are processed batch by batch, and a file gets its name only when it is complete. JSON
Lines are for people and small tools, for each row passes through Python; Parquet stays in columns.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from rmqstore.errors import IllegalMessageError, OptionError
from rmqstore.format.schema import ALL_COLUMNS, ASSIGNED, VERBATIM, WRITE_TYPES
from rmqstore.query.times import parse_timestamp

FORMATS: Final = ("parquet", "jsonl")
_SUFFIXES: Final = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_ROW_GROUP_ROWS, _ROW_GROUP_BYTES = 1 << 17, 64 << 20
_ROWS_AT_ONCE = 8192
_BASE64: Final = "Base64"
# Columns that the paths of a partitioned folder may hold: topic=Orders/queueId=3/….
_PARTITIONED: Final = {"topic": pa.string(), "queueId": pa.int32()}
# The columns, of those that the store assigns, that tell whether a msgId is an offset message id.
_ID_COLUMNS: Final = ("storeHost", "commitLogOffset", "offsetMsgId")


def format_of(path: Path) -> str:
    """Return the format of a file by its suffix; a folder holds Parquet files.

    Raises:
        OptionError: the suffix is unknown.
    """
    format_name = "parquet" if path.is_dir() else _SUFFIXES.get(path.suffix)
    if format_name is None:
        known = ", ".join(_SUFFIXES)
        raise OptionError(
            f"{path}: the name does not tell the format; it must end with one of {known}"
        )
    return format_name


def write_parquet(target: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches to one Parquet file, compressed with zstd.

    A row group has 128 Ki rows or 64 MiB.
    """
    from pyarrow import parquet

    with _in_place(target) as path, parquet.ParquetWriter(path, schema, compression="zstd") as file:
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


def write_json_lines(target: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches to one file of JSON Lines; see :func:`jsonable`."""
    with _in_place(target) as path, path.open("w", encoding="utf-8") as file:
        for batch in batches:
            file.writelines(
                json.dumps(jsonable(row), ensure_ascii=False) + "\n" for row in batch.to_pylist()
            )


@contextmanager
def _in_place(target: Path) -> Iterator[Path]:
    """Yield a temporary path for a file that gets its name when it is complete.

    The file is removed after an error.
    """
    path = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield path
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)


def jsonable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with values that JSON can hold.

    Times become ISO-8601, properties an object, and bytes text. Bytes that are not UTF-8 are
    encoded in base64, under the column's name with ``Base64`` appended.
    """
    converted = dict(row)
    for name, value in row.items():
        if isinstance(value, datetime):
            converted[name] = value.isoformat(timespec="milliseconds")
        elif name == "properties" and isinstance(value, list):
            converted[name] = dict(value)
        elif isinstance(value, bytes):
            try:
                converted[name] = value.decode()
            except UnicodeDecodeError:
                del converted[name]
                converted[f"{name}{_BASE64}"] = base64.b64encode(value).decode()
    return converted


def read_parquet(
    source: Path, columns: list[str] | None = None
) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the number of rows, and the rows, of a Parquet file or of a folder of such files.

    Files of a folder come in the order of their names.

    Args:
        source: a file or a folder. Folders ``topic=…/queueId=…`` in it give these columns too.
        columns: the columns to read, all by default.

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
        # Little readahead, and one file at a time: rows keep their order, and memory stays bounded.
        batches = files.to_batches(
            columns=columns, batch_size=_ROWS_AT_ONCE, batch_readahead=2, fragment_readahead=1
        )
        return files.count_rows(), _parquet_batches(source, batches)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowKeyError, KeyError) as err:
        raise IllegalMessageError(f"{source} cannot be read as Parquet: {err}") from err


def _parquet_batches(source: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as err:
        raise IllegalMessageError(f"{source} cannot be read as Parquet: {err}") from err


def read_json_lines(
    file: IO[str], name: str, *, verbatim: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield rows of JSON Lines in the form of :func:`jsonable`; times may also be epoch ms.

    Args:
        file: a file that is open as UTF-8 text.
        name: name of the file, for errors.
        verbatim: the columns are those of ``format.schema.VERBATIM`` instead of those of messages.

    Raises:
        IllegalMessageError: a line is not a JSON object, or has an unknown column or a value of the
            wrong type.
    """
    types = _types(verbatim=verbatim)
    lines = enumerate(_decoded(file, name), 1)
    while chunk := list(islice(lines, _ROWS_AT_ONCE)):
        rows = [
            _parsed(line, f"{name}: line {number}", types) for number, line in chunk if line.strip()
        ]
        names = list(dict.fromkeys(column for row in rows for column in row))
        columns = []
        for column in names:
            try:
                columns.append(pa.array([row.get(column) for row in rows], types[column]))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError) as err:
                where = f"{name}: lines {chunk[0][0]} to {chunk[-1][0]}"
                raise IllegalMessageError(
                    f"{where}: {column} must be {types[column]}: {err}"
                ) from err
        if rows:
            yield pa.RecordBatch.from_arrays(
                columns, schema=pa.schema([(column, types[column]) for column in names])
            )


def _decoded(file: IO[str], name: str) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError as err:
        raise IllegalMessageError(f"{name} is not UTF-8: {err}") from err


def _types(*, verbatim: bool) -> dict[str, pa.DataType]:
    if verbatim:
        return {field.name: field.type for field in VERBATIM}
    return WRITE_TYPES | {name: ALL_COLUMNS.field(name).type for name in _ID_COLUMNS}


def _parsed(line: str, where: str, types: dict[str, pa.DataType]) -> dict[str, Any]:
    """Return the values of a line by column, as Arrow takes them."""
    try:
        row = json.loads(line)
    except ValueError as err:
        raise IllegalMessageError(f"{where} is not JSON: {err}") from err
    if not isinstance(row, dict):
        raise IllegalMessageError(f"{where} is not a JSON object")
    values: dict[str, Any] = {}
    for name, value in row.items():
        plain = name.removesuffix(_BASE64)
        if plain in types:
            try:
                values[plain] = _value(value, types[plain], is_base64=plain != name)
            except (ValueError, TypeError, AttributeError) as err:
                raise IllegalMessageError(f"{where}: {name} {str(value)[:100]!r}: {err}") from err
        elif name not in ASSIGNED:
            raise IllegalMessageError(
                f"{where}: {name} is not a column; there are {', '.join(types)}"
            )
    return values


def _value(value: Any, kind: pa.DataType, *, is_base64: bool) -> Any:  # noqa: ANN401 - whatever JSON holds
    if value is None:
        return None
    if is_base64:
        return base64.b64decode(value, validate=True)
    if pa.types.is_binary(kind):
        return value.encode()
    if pa.types.is_timestamp(kind):
        return parse_timestamp("time", value) * 1000
    if pa.types.is_map(kind):
        return list(value.items())
    return value
