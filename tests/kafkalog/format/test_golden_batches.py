"""What real brokers wrote, against what Kafka's own tools and consumers read from it."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafka_logs as golden
from kafka_comparing import both
from kafkalog.format.batch_heads import BatchHeads, walk_batches
from kafkalog.format.consumer_offsets import parse_offset_key, parse_offset_value
from kafkalog.format.layout import Codec
from kafkalog.format.records import decode
from kafkalog.format.reference import markers, records_of

TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
_HAS_NO_KEY = ("-delete/", "-future/", "-stray/", "__cluster_metadata-0/")


@pytest.fixture(scope="module", params=golden.EVERY)
def store(request: pytest.FixtureRequest, kafka_store: Callable[[str], Path]) -> Path:
    return kafka_store(request.param)


def lines(name: str, kind: str) -> Iterator[dict[str, Any]]:
    with lzma.open(golden.FOLDER / f"{name}.{kind}.jsonl.xz", "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def segments(store: Path) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Yield the bytes of each segment with what DumpLogSegments shows of it."""
    for shown in lines(store.name, "segments"):
        if shown["kind"] == "log" and "__cluster_metadata" not in shown["file"]:
            yield np.fromfile(store / shown["file"], np.uint8), shown


def head(heads: BatchHeads, row: int) -> dict[str, Any]:
    """Return a head in the form of the key."""
    is_v2 = heads.magic[row] >= 2
    kind = "CreateTime" if heads.magic[row] else "NoTimestampType"
    found = {
        "lastOffset": heads.last_offset[row],
        "position": heads.position[row],
        "timestampType": "LogAppendTime" if heads.is_log_append_time[row] else kind,
        "maxTimestamp": heads.max_timestamp[row],
        "size": heads.size[row],
        "magic": heads.magic[row],
        "codec": Codec(heads.codec[row]).name.lower(),
        "crc": heads.crc[row],
    }
    if is_v2:
        found |= {
            "baseOffset": heads.base_offset[row],
            "count": heads.record_count[row],
            "baseSequence": heads.base_sequence[row],
            "producerId": heads.producer_id[row],
            "producerEpoch": heads.producer_epoch[row],
            "partitionLeaderEpoch": heads.leader_epoch[row],
            "isTransactional": heads.is_transactional[row],
            "isControl": heads.is_control[row],
        }
        horizon = heads.base_timestamp[row] if heads.has_delete_horizon[row] else None
        found["deleteHorizonMs"] = horizon
    return found


def test_heads_are_those_that_the_tool_shows(store: Path) -> None:
    count = 0
    for data, shown in segments(store):
        heads = walk_batches(data)
        is_valid = heads.check_crcs(data)
        for row, expected in enumerate(shown["batches"]):
            found = head(heads, row)
            assert found == {name: expected[name] for name in found}, shown["file"]
            assert is_valid[row] == expected["isValid"], shown["file"]
        if "threw" not in shown:
            assert len(heads) == len(shown["batches"])
            assert heads.stopped_at + (shown.get("invalidBytesAtEnd") or 0) == len(data)
        count += len(shown["batches"])
    assert count > 50


def test_records_are_those_that_the_tool_shows(store: Path) -> None:
    for data, shown in segments(store):
        heads = walk_batches(data)[: len(shown["batches"])]
        for row, expected in enumerate(shown["batches"]):
            if not expected["isValid"]:
                continue
            records = list(records_of(data, heads[row : row + 1]))
            sizes = [
                [
                    record.offset,
                    record.timestamp,
                    -1 if record.key is None else len(record.key),
                    -1 if record.value is None else len(record.value),
                ]
                for record in records
            ]
            assert sizes == [fields[:4] for fields in expected["records"]]
            ends = markers(data, heads[row : row + 1])
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
        heads = walk_batches(data)
        heads = heads[heads.check_crcs(data)]
        rows = both(data, heads)
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
        heads = walk_batches(data)
        for row, expected in enumerate(shown["batches"]):
            batch = decode(data, heads[row : row + 1], columns=["key", "value"])
            for (key, value), decoded in zip(
                zip(*(column.to_pylist() for column in batch.columns), strict=True),
                expected.get("decoded", []),
                strict=True,
            ):
                _compare_commit(key, value, *decoded)


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
