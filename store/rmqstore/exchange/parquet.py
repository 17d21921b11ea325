"""Messages in Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import pyarrow as pa

from rmqstore.errors import IllegalMessageError
from rmqstore.exchange.places import RowPlaces

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_ROW_GROUP_ROWS, _ROW_GROUP_BYTES = 1 << 17, 64 << 20
_ROWS_AT_ONCE = 8192
# Columns that the paths of a partitioned folder may hold: topic=Orders/queueId=3/….
_PARTITIONED: Final = {"topic": pa.string(), "queueId": pa.int32()}


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
    source: Path, columns: list[str] | None = None, places: RowPlaces | None = None
) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the number of rows, and the rows, of a Parquet file or of a folder of such files.

    Files of a folder come in the order of their names.

    Args:
        source: a file or a folder. Folders ``topic=…/queueId=…`` in it give these columns too.
        columns: the columns to read, all by default.
        places: told where the rows of each batch are.

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
        batches = _batches(files, columns, places or RowPlaces())
        return files.count_rows(), _parquet_batches(source, batches)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowKeyError, KeyError) as err:
        raise IllegalMessageError(f"{source} cannot be read as Parquet: {err}") from err


def _batches(
    files: Dataset, columns: list[str] | None, places: RowPlaces
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files one after the other."""
    for file in files.get_fragments():
        n_rows = 0
        # Little readahead, so that memory stays bounded.
        batches = file.to_batches(
            schema=files.schema, columns=columns, batch_size=_ROWS_AT_ONCE, batch_readahead=2
        )
        for batch in batches:
            places.note(file.path, "row", [range(n_rows + 1, n_rows + len(batch) + 1)])
            yield batch
            n_rows += len(batch)


def _parquet_batches(source: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as err:
        raise IllegalMessageError(f"{source} cannot be read as Parquet: {err}") from err
