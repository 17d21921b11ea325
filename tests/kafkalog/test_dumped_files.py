"""Single files, batch by batch and record by record, as kafka-dump-log shows them."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafka_logs as golden
from kafkalog.dump import file_rows, file_schema, parse_file
from kafkalog.errors import CorruptBatchError
from kafkalog.format.consumer_offsets import decode_group_record, decode_transaction_record
from rmqstore.errors import FileDeletedError
from rmqstore.storage.files.local import LOCAL

Row = dict[str, Any]

OF_BATCH = {
    "lastOffset": "last_offset", "position": "position", "size": "size", "magic": "magic",
    "codec": "codec", "crc": "crc", "isValid": "is_valid", "maxTimestamp": "max_timestamp",
}  # fmt: skip
OF_BATCH_V2 = {
    "baseOffset": "base_offset", "count": "count", "baseSequence": "base_sequence",
    "lastSequence": "last_sequence", "producerId": "producer_id", "producerEpoch": "producer_epoch",
    "partitionLeaderEpoch": "leader_epoch", "isTransactional": "is_transactional",
    "isControl": "is_control", "deleteHorizonMs": "delete_horizon",
}  # fmt: skip
OF_SNAPSHOT = {
    "producerId": "producer_id", "producerEpoch": "producer_epoch",
    "coordinatorEpoch": "coordinator_epoch", "currentTxnFirstOffset": "transaction_start",
    "lastTimestamp": "last_timestamp", "firstSequence": "first_sequence",
    "lastSequence": "last_sequence", "lastOffset": "last_offset", "offsetDelta": "offset_delta",
}  # fmt: skip
OF_ABORTED = {
    "version": "version", "producerId": "producer_id", "firstOffset": "first_offset",
    "lastOffset": "last_offset", "lastStableOffset": "last_stable_offset",
}  # fmt: skip
DECODERS = {
    "__consumer_offsets": decode_group_record, "__transaction_state": decode_transaction_record,
}  # fmt: skip


@pytest.fixture(scope="module", params=golden.EVERY)
def store(request: pytest.FixtureRequest, kafka_store: golden.Golden) -> Path:
    return kafka_store(request.param)


def shown(store: Path, kind: str) -> Iterator[tuple[str, Row]]:
    with lzma.open(golden.FOLDER / f"{store.name}.segments.jsonl.xz", "rt") as file:
        for row in map(json.loads, file):
            if row["kind"] == kind:
                yield str(store / row["file"]), row


def rows_of(path: str, **options: Any) -> tuple[list[Row], CorruptBatchError | None]:
    """Return the rows of a file with times as numbers, and the error that ended them."""
    file = parse_file(path)
    assert file is not None
    found: list[Row] = []
    damage = None
    try:
        for batch in file_rows(LOCAL, file, **options):
            assert batch.schema == file_schema(file.kind, **options)
            arrays = [
                array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array
                for array in batch.columns
            ]
            found += pa.RecordBatch.from_arrays(arrays, batch.schema.names).to_pylist()
    except CorruptBatchError as err:
        damage = err
    return found, damage


def known(value: object) -> object:
    return None if value == -1 else value


def named(row: Row, fields: dict[str, str]) -> Row:
    return {name: row[column] for name, column in fields.items()}


def test_batches(store: Path) -> None:
    for path, key in shown(store, "log"):
        rows, damage = rows_of(path)
        assert key.get("threw") or len(rows) == len(key["batches"])
        assert damage is None or key.get("threw") or key.get("invalidBytesAtEnd"), path
        for row, batch in zip(rows, key["batches"], strict=False):
            fields = OF_BATCH | (OF_BATCH_V2 if row["magic"] == 2 else {})
            assert named(row, fields) == {name: known(batch[name]) for name in fields}, path
            kind = golden.TIMESTAMP_TYPES[row["timestamp_type"]]
            assert row["magic"] == 0 or kind == batch["timestampType"]
            marker = batch.get("marker", {"type": None, "coordinatorEpoch": None})
            assert (row["marker"], row["coordinator_epoch"]) == tuple(marker.values())


def test_records(store: Path) -> None:
    n_decoded = 0
    for path, key in shown(store, "log"):
        decode = DECODERS.get(Path(path).parent.name.rpartition("-")[0])
        rows, _ = rows_of(path, decode=decode, deep=True)
        by_batch: dict[int, list[Row]] = {}
        for row in rows:
            by_batch.setdefault(row["position"], []).append(row)
        for batch in key["batches"]:
            found = by_batch.get(batch["position"], [])
            if not batch["isValid"]:
                assert not any(row["is_valid"] for row in found)
                continue
            assert [_as_shown(row, batch["magic"]) for row in found] == [
                [known(value) for value in record] for record in batch["records"]
            ], path
            for row, (shown_key, shown_value) in zip(
                found, batch.get("decoded", ()), strict="decoded" in batch
            ):
                n_decoded += 1
                assert row["decoded_key"] == shown_key
                assert (row["decoded_value"] or "<DELETE>") == shown_value
            if "marker" in batch:
                (row,) = found
                assert batch["marker"] == {
                    "type": row["marker"], "coordinatorEpoch": row["coordinator_epoch"],
                }  # fmt: skip
    assert store.name != "groups" or n_decoded > 50


def _as_shown(row: Row, magic: int) -> list[object]:
    fields = [row["offset"], row["timestamp"], row["key_size"], row["value_size"]]
    return [*fields, row["sequence"]] if magic == 2 else [*fields, row["crc"], row["is_valid"]]


def test_header_keys(store: Path) -> None:
    names = {
        (row["topic"], row["partition"], row["offset"]): [name for name, _ in row["headers"]]
        for records in golden.records(store.name).values()
        for row in records
    }
    for path, _ in shown(store, "log"):
        for row in rows_of(path, deep=True)[0]:
            place = row["topic"], row["partition"], row["offset"]
            if row["is_valid"] and row["reason"] is None and place in names and "-0." not in path:
                assert row["marker"] or row["header_keys"] == names[place]


def test_indexes(store: Path) -> None:
    columns_of = {"index": ("offset", "position"), "timeindex": ("timestamp", "offset")}
    for kind, columns in columns_of.items():
        for path, key in shown(store, kind):
            rows, damage = rows_of(path)
            entries = [[row[column] for column in columns] for row in rows]
            base = int(Path(path).name.partition(".")[0])
            zeros = ([base, 0], [0, base])
            expected = [entry for entry in key["entries"] if entry not in zeros]
            assert damage is None
            if "threw" in key:  # where an entry led nowhere
                entries = entries[: len(expected)]
            assert entries == expected, path


def test_transaction_indexes_and_snapshots(store: Path) -> None:
    for kind, fields in (("txnindex", OF_ABORTED), ("snapshot", OF_SNAPSHOT)):
        for path, key in shown(store, kind):
            rows, damage = rows_of(path)
            if key.get("threw"):
                assert damage is not None
                continue
            assert [named(row, fields) for row in rows] == [
                {name: entry.get(name) for name in fields} for entry in key["entries"]
            ], path


def test_files_that_are_not_valid(tmp_path: Path) -> None:
    odd = {
        "0.txnindex": (b"\0\0" + bytes(33), "ends within an entry"),
        "1.txnindex": (b"\0\1" + bytes(32), "version 1"),
        "0.snapshot": (b"\0\1" + bytes(8), "the CRC is wrong"),
        "1.snapshot": (b"\0\1", "version 1"),
        "0.log": (golden.batch(0, [b"a"]) + b"\1" * 30, "a batch"),
    }
    for name, (content, reason) in odd.items():
        (tmp_path / name).write_bytes(content)
        rows, damage = rows_of(str(tmp_path / name))
        assert (len(rows), damage is not None) == (name == "0.log", True)
        assert reason in str(damage)
    assert parse_file(str(tmp_path / "leader-epoch-checkpoint")) is None
    gone = parse_file(str(tmp_path / "7.log.deleted"))
    assert gone is not None
    with pytest.raises(FileDeletedError):
        list(file_rows(LOCAL, gone))
