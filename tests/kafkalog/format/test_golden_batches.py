"""What real brokers wrote, against what Kafka's own tools and consumers read from it."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafka_logs as golden
from kafka_comparing import both, decoded
from kafkalog.format.batch_headers import BatchHeaders, walk_batches
from kafkalog.format.consumer_offsets import parse_offset_key, parse_offset_value
from kafkalog.format.layout import Codec
from kafkalog.format.reference import markers, records_of

TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
_HAS_NO_KEY = ("-delete/", "-future/", "-stray/", "__cluster_metadata-0/")


@pytest.fixture(scope="module", params=golden.EVERY)
def store(request: pytest.FixtureRequest, kafka_store: golden.Golden) -> Path:
    return kafka_store(request.param)


def lines(name: str, kind: str) -> Iterator[dict[str, Any]]:
    with lzma.open(golden.FOLDER / f"{name}.{kind}.jsonl.xz", "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def segments(store: Path) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Yield the bytes of each segment with what DumpLogSegments shows of it."""
    for shown in lines(store.name, "segments"):
        if shown["kind"] == "log" and "__cluster_metadata" not in shown["file"]:
            yield np.fromfile(store / shown["file"], np.uint8), shown


def header(batch_headers: BatchHeaders, row: int) -> dict[str, Any]:
    is_v2 = batch_headers.magic[row] >= 2
    kind = "CreateTime" if batch_headers.magic[row] else "NoTimestampType"
    found = {
        "lastOffset": batch_headers.last_offset[row],
        "position": batch_headers.position[row],
        "timestampType": "LogAppendTime" if batch_headers.is_log_append_time[row] else kind,
        "maxTimestamp": batch_headers.max_timestamp[row],
        "size": batch_headers.size[row],
        "magic": batch_headers.magic[row],
        "codec": Codec(batch_headers.codec[row]).name.lower(),
        "crc": batch_headers.crc[row],
    }
    if is_v2:
        found |= {
            "baseOffset": batch_headers.base_offset[row],
            "count": batch_headers.record_count[row],
            "baseSequence": batch_headers.base_sequence[row],
            "producerId": batch_headers.producer_id[row],
            "producerEpoch": batch_headers.producer_epoch[row],
            "partitionLeaderEpoch": batch_headers.leader_epoch[row],
            "isTransactional": batch_headers.is_transactional[row],
            "isControl": batch_headers.is_control[row],
        }
        horizon = (
            batch_headers.base_timestamp[row] if batch_headers.has_delete_horizon[row] else None
        )
        found["deleteHorizonMs"] = horizon
    return found


def test_heads_are_those_that_the_tool_shows(store: Path) -> None:
    count = 0
    for data, shown in segments(store):
        batch_headers = walk_batches(data)
        is_valid = batch_headers.check_crcs(data)
        for row, expected in enumerate(shown["batches"]):
            found = header(batch_headers, row)
            assert found == {name: expected[name] for name in found}, shown["file"]
            assert is_valid[row] == expected["isValid"], shown["file"]
        if "threw" not in shown:
            assert len(batch_headers) == len(shown["batches"])
            assert batch_headers.stopped_at + (shown.get("invalidBytesAtEnd") or 0) == len(data)
        count += len(shown["batches"])
    assert count > 50


def test_records_are_those_that_the_tool_shows(store: Path) -> None:
    for data, shown in segments(store):
        batch_headers = walk_batches(data)[: len(shown["batches"])]
        for row, expected in enumerate(shown["batches"]):
            if not expected["isValid"]:
                continue
            records = list(records_of(data, batch_headers[row : row + 1]))
            sizes = [
                [
                    record.offset, record.timestamp, -1 if record.key is None else len(record.key),
                    -1 if record.value is None else len(record.value),
                ]
                for record in records
            ]  # fmt: skip
            assert sizes == [fields[:4] for fields in expected["records"]]
            ends = markers(data, batch_headers[row : row + 1])
            if "marker" in expected:
                (marker,) = ends
                kind = "COMMIT" if marker.is_commit else "ABORT"
                epoch = expected["marker"]["coordinatorEpoch"]
                assert (kind, marker.coordinator_epoch) == (expected["marker"]["type"], epoch)
            else:
                assert ends == []


def test_columns_are_what_a_consumer_gets(store: Path) -> None:
    """Records that a segment holds and a consumer gets are the same; some are not given to it."""
    got = {
        (row["topic"], row["partition"], row["offset"]): row
        for row in lines(store.name, "expected")
    }
    compared = set()
    for data, shown in segments(store):
        if any(part in shown["file"] for part in _HAS_NO_KEY):
            continue
        batch_headers = walk_batches(data)
        batch_headers = batch_headers[batch_headers.check_crcs(data)]
        rows = both(data, batch_headers)
        assert rows is not None
        topic, _, partition = Path(shown["file"]).parent.name.rpartition("-")
        for row in rows:
            place = (topic, int(partition), row["offset"])
            if place not in got:
                continue
            expected = got[place]
            compared.add(place)
            assert row == {
                "key": _bytes(expected["key"]),
                "value": _bytes(expected["value"]),
                "offset": expected["offset"],
                "timestamp": None if expected["timestamp"] == -1 else expected["timestamp"],
                "timestamp_type": TYPES[expected["timestampType"]],
                "headers": [
                    {"key": name, "value": _bytes(value)} for name, value in expected["headers"]
                ],
                "leader_epoch": expected["leaderEpoch"],
            }
    if store.name != "swap":  # some of its records are only in files that replace segments
        assert compared == set(got)


def test_committed_offsets_are_those_that_the_tool_shows(store: Path) -> None:
    for data, shown in segments(store):
        if "__consumer_offsets" not in shown["file"]:
            continue
        batch_headers = walk_batches(data)
        for row, expected in enumerate(shown["batches"]):
            batch = decoded(data, batch_headers[row : row + 1], columns=["key", "value"])
            for (key, value), texts in zip(
                zip(*(column.to_pylist() for column in batch.columns), strict=True),
                expected.get("decoded", []),
                strict=True,
            ):
                _compare_commit(key, value, *texts)


def _compare_commit(key: bytes, value: bytes | None, shown_key: str, shown_value: str) -> None:
    found = parse_offset_key(key)
    content = json.loads(shown_key)
    assert (found is not None) == (content["type"] in ("0", "1"))
    if found is None:
        return
    assert found._asdict() == content["data"]
    if value is None:
        return
    commit = json.loads(shown_value)["data"]
    parsed = parse_offset_value(value)
    assert parsed.offset == commit["offset"]
    assert parsed.leader_epoch == commit.get("leaderEpoch", -1)
    assert parsed.metadata == commit["metadata"]
    assert parsed.commit_timestamp == commit["commitTimestamp"]
    assert parsed.expire_timestamp == commit.get("expireTimestamp", -1)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
