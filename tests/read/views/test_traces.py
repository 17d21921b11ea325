"""View traces: a row for each trace, with the message that holds it; damage; pieces."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
from reading import Row, rows
from rmqstore.read.split import Limits
from rmqstore.read.views.catalogue import plan_view
from rmqstore.read.views.schema import view_spec
from rmqstore.store.opening import open_for

SEND = "Pub|1700000000000|r|PG|Orders|7F0{}|TagA|k|10.0.0.1:10911|512|7|0|0A|true"
BEFORE = "SubBefore|1700000000100|r|CG|R{0}|7F0{0}|0|k"
AFTER = "SubAfter|R{0}|7F0{0}|3|false|k|4|1700000000200|CG"


def body(*traces: str) -> bytes:
    return "".join(trace.replace("|", "\x01") + "\x02" for trace in traces).encode()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    bodies = [
        body(*(SEND.format(number) for number in range(3))),
        body(BEFORE.format(1), AFTER.format(1)),
        b"",
        b"Pub\x01\xff\xfe\x02nonsense",
        body(SEND.format(9)) * 50,  # is stored compressed
    ]
    topics = ["RMQ_SYS_TRACE_TOPIC"] * 4 + ["rmq_sys_TRACE_DATA_r"]
    path = tmp_path / "store"
    spec = rmqstore.WriteSpec(compression="zlib", compress_over=1000, default_queue_nums=1)
    with rmqstore.create(path, spec=spec) as writer:
        writer.append(pa.table({"topic": topics, "body": pa.array(bodies, pa.binary())}))
        writer.append(pa.table({"topic": ["Mine"], "body": pa.array([body(SEND)], pa.binary())}))
    return path


def view(path: Path, **options: Any) -> list[Row]:
    with rmqstore.open(path) as store:
        return rows(store.view("traces", **options))


def test_each_trace_has_its_row(root: Path) -> None:
    found = view(root)
    assert [(row["traceType"], row["msgId"], row["queueOffset"]) for row in found[:5]] == [
        ("Pub", "7F00", 0), ("Pub", "7F01", 0), ("Pub", "7F02", 0), ("SubBefore", "7F01", 1),
        ("SubAfter", "7F01", 1),
    ]  # fmt: skip
    send, after = found[0], found[4]
    assert send["timestamp"] == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (send["groupName"], send["topic"], send["tags"], send["keys"]) == (
        "PG", "Orders", "TagA", "k",
    )  # fmt: skip
    assert (send["costMillis"], send["isSuccess"], send["bodySize"]) == (7, True, 512)
    assert (send["msgType"], send["offsetMsgId"], send["storeHost"]) == (
        "Normal_Msg", "0A", "10.0.0.1:10911",
    )  # fmt: skip
    assert (after["costMillis"], after["isSuccess"], after["contextCode"]) == (3, False, 4)
    assert (after["requestId"], after["groupName"], after["topic"]) == ("R1", "CG", None)
    assert [row["reason"] for row in found[5:8]] == [
        "the body holds no trace",
        "a trace Pub has at least 13 fields",
        "the type of the trace is not known",
    ]
    assert found[6]["traceTopic"] == "RMQ_SYS_TRACE_TOPIC"
    of_cloud = found[8:]
    assert len(of_cloud) == 50
    assert {row["traceTopic"] for row in of_cloud} == {"rmq_sys_TRACE_DATA_r"}
    assert not any(row["reason"] for row in of_cloud)


def test_a_time_that_is_not_shown_has_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "s"
    spec = rmqstore.WriteSpec(allow_system_topics=True)
    in_micros = SEND.replace("1700000000000", "1700000000000000")
    assert in_micros != SEND
    with rmqstore.create(path, spec=spec) as writer:
        bodies = pa.array([body(in_micros), body(SEND)], pa.binary())
        writer.append(pa.table({"topic": ["RMQ_SYS_TRACE_TOPIC"] * 2, "body": bodies}))
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        odd, plain = sorted(view(path, mode=mode), key=lambda row: row["reason"] is None)
        assert (odd["timestamp"], odd["groupName"]) == (None, "PG")
        assert odd["reason"] == "timestamp is not in the years 1 to 9999: 1700000000000000 ms"
        assert plain["timestamp"] == datetime.fromtimestamp(1_700_000_000, UTC)


def test_topics_of_traces_are_the_default_and_others_can_be_named(root: Path) -> None:
    assert {row["traceTopic"] for row in view(root)} == {
        "RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_r",
    }  # fmt: skip
    assert [row["msgId"] for row in view(root, subscribe="Mine")] == ["7F0{}"]
    assert len(view(root, subscribe_pattern="RMQ_.*")) == 8
    assert len(view(root, assign={"RMQ_SYS_TRACE_TOPIC": [0]})) == 8
    offsets = {"RMQ_SYS_TRACE_TOPIC": {0: 1}}
    late = view(root, assign={"RMQ_SYS_TRACE_TOPIC": [0]}, starting_offsets=offsets)
    assert len(late) == 5
    assert not view(root, ending_timestamp="2020-01-01")


def test_columns_conditions_and_modes(root: Path) -> None:
    assert view(root, columns="msgId,costMillis", where="traceType = 'SubAfter'") == [
        {"msgId": "7F01", "costMillis": 3}
    ]
    assert view(root, columns="reason", where="reason IS NOT NULL AND traceType IS NULL") == [
        {"reason": "the body holds no trace"}
    ]
    assert not any(row["reason"] for row in view(root, mode="DROPMALFORMED"))
    assert len(view(root, mode="DROPMALFORMED")) == len(view(root)) - 3


def test_a_damaged_message_has_its_reason(root: Path) -> None:
    place = view(root)[3]["commitLogOffset"]
    segment = root / "commitlog" / f"{0:020d}"
    with segment.open("r+b") as file:
        data = file.read(place + 500)
        file.seek(data.index(b"SubAfter", place))
        file.write(b"X")
    bad = view(root)[3]
    assert "CRC" in bad["reason"]
    assert (bad["traceTopic"], bad["queueOffset"], bad["traceType"]) == (
        "RMQ_SYS_TRACE_TOPIC", 1, None,
    )  # fmt: skip
    assert len(view(root)) == 57


def test_pieces_have_each_trace_once(root: Path) -> None:
    spec = view_spec("traces", columns="traceTopic,queueOffset,msgId,traceType")
    with open_for(root) as store:
        parts = plan_view(store.parts, spec, Limits(300))
        found = [row for part in parts for row in rows(part.read(store.parts, spec))]
    assert len(parts) > 1
    every = view(root, columns=spec.schema.names)
    assert sorted(found, key=str) == sorted(every, key=str)
