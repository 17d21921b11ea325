"""What a writer takes: anything with Arrow's C interface; everything else is refused clearly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import rmqstore

COLUMNS: dict[str, Any] = {
    "topic": ["A", "A", "B"],
    "body": [b"1", b"2", b"3"],
    "tags": ["x", None, "y"],
}


def _forms() -> dict[str, Any]:
    table = pa.table(COLUMNS)
    return {
        "batch": pa.record_batch(COLUMNS),
        "table": table,
        "chunks": pa.concat_tables([table.slice(0, 1), table.slice(1)]),
        "reader": pa.RecordBatchReader.from_batches(
            table.schema, table.to_batches(max_chunksize=1)
        ),
        "pandas": pd.DataFrame(COLUMNS | {"tags": pd.Categorical(COLUMNS["tags"])}),
    }


@pytest.mark.parametrize("form", _forms())
def test_rows_of_every_form_are_appended(tmp_path: Path, form: str) -> None:
    with rmqstore.create(tmp_path / "s") as writer:
        writer.append(_forms()[form])
    with rmqstore.open(tmp_path / "s") as store:
        rows = store.scan(columns="topic,body,tags").read_all().to_pylist()
    assert sorted(rows, key=lambda row: row["body"]) == pa.table(COLUMNS).to_pylist()


@pytest.mark.parametrize("rows", [[{"topic": "A"}], {"topic": ["A"]}, None, b"bytes"])
def test_what_is_not_arrow_data_is_refused_by_name(tmp_path: Path, rows: Any) -> None:
    with (
        rmqstore.create(tmp_path / "s") as writer,
        pytest.raises(TypeError, match=f"got {type(rows).__name__}"),
    ):
        writer.append(rows)


def test_an_error_in_a_later_batch_names_its_row_and_leaving_takes_all_back(tmp_path: Path) -> None:
    table = pa.table({"topic": ["A", "A", "bad topic"], "body": [b"1", b"2", b"3"]})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1))
    with (
        pytest.raises(rmqstore.IllegalMessageError, match="row 3,"),
        rmqstore.create(tmp_path / "s") as writer,
    ):
        writer.append(reader)
    with rmqstore.open(tmp_path / "s") as store:
        assert store.count() == 0
