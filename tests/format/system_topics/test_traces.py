"""Traces of every version of clients; the columns of many bodies equal the traces of each."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

import tiers
from plain_traces import Trace, parse_traces
from rmqstore.format.columns.traces import FIELDS, LEAST_FIELDS, trace_columns
from rmqstore.format.text import decode_text

PUB_14 = [
    "Pub", "1700000000123", "region", "PG", "Orders", "7F00", "TagA", "k1 k2", "10.0.0.1:10911",
    "512", "7", "1", "0A00", "true",
]  # fmt: skip
PUB = Trace(
    "Pub", timestamp=1700000000123, region_id="region", group_name="PG", topic="Orders",
    msg_id="7F00", tags="TagA", keys="k1 k2", store_host="10.0.0.1:10911", body_size=512,
    cost_millis=7, msg_type="Trans_Msg_Half", offset_msg_id="0A00", is_success=True,
)  # fmt: skip
SUB_AFTER = Trace(
    "SubAfter", request_id="R", msg_id="M", cost_millis=3, is_success=False, keys="k",
    context_code=4,
)  # fmt: skip


def text(*fields: str) -> str:
    return "\x01".join(fields) + "\x02"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # the first versions, 4.5 to 4.7 and from 4.9 on, 4.8
        (text(*PUB_14[:12], "true"), replace(PUB, offset_msg_id=None)),
        (text(*PUB_14), PUB),
        (text(*PUB_14, "10.0.0.9"), replace(PUB, client_host="10.0.0.9")),
        (text(*PUB_14, "10.0.0.9", "later"), replace(PUB, client_host="10.0.0.9")),
        (
            text("SubBefore", "5", "r", "CG", "R", "M", "2", "k"),
            Trace("SubBefore", timestamp=5, region_id="r", group_name="CG", request_id="R",
                  msg_id="M", retry_times=2, keys="k"),
        ),
        (
            text("SubBefore", "5", "null", "CG", "R", "M", "2", "", "10.0.0.9"),
            Trace("SubBefore", timestamp=5, group_name="CG", request_id="R", msg_id="M",
                  retry_times=2, keys="", client_host="10.0.0.9"),
        ),
        (text("SubAfter", "R", "M", "3", "false", "k", "4"), SUB_AFTER),
        (text("SubAfter", "R", "M", "3", "false", "k"), replace(SUB_AFTER, context_code=None)),
        (text("SubAfter", "R", "M", "3", "false", "k", "4", ""), SUB_AFTER),  # of the cloud
        (
            text("SubAfter", "R", "M", "3", "FALSE", "k", "4", "9", "CG"),
            replace(SUB_AFTER, timestamp=9, group_name="CG"),
        ),
        (
            text("EndTransaction", "5", "r", "PG", "T", "M", "null", "k", "h", "1", "TX",
                 "COMMIT_MESSAGE", "true"),
            Trace("EndTransaction", timestamp=5, region_id="r", group_name="PG", topic="T",
                  msg_id="M", keys="k", store_host="h", msg_type="Trans_Msg_Half",
                  transaction_id="TX", transaction_state="COMMIT_MESSAGE",
                  is_transaction_check=True),
        ),
        (
            text("Recall", "5", "r", "PG", "T", "M", "true"),
            Trace("Recall", timestamp=5, region_id="r", group_name="PG", topic="T", msg_id="M",
                  is_success=True),
        ),
        # damage
        ("", Trace(reason="the body holds no trace")),
        ("\x02\x02", Trace(reason="the body holds no trace")),
        ("nonsense", Trace("nonsense", reason="the type of the trace is not known")),
        ("\x01Pub", Trace("", reason="the type of the trace is not known")),
        (text("Recall", "5"), Trace("Recall", timestamp=5,
                                    reason="a trace Recall has at least 7 fields")),
        (text("Recall", "x", "r", "PG", "T", "M", "true"),
         Trace("Recall", region_id="r", group_name="PG", topic="T", msg_id="M", is_success=True,
               reason="timestamp is not a number")),
        (text(*PUB_14[:9], str(1 << 31), *PUB_14[10:]),
         replace(PUB, body_size=None, reason="body_size is not a number")),
        (text(*PUB_14[:9], "", "x", *PUB_14[11:]),
         replace(PUB, body_size=None, cost_millis=None, reason="body_size is not a number")),
        (text(*PUB_14[:11], "5", *PUB_14[12:]),
         replace(PUB, msg_type=None, reason="msg_type is not the number of a message type")),
    ],
)  # fmt: skip
def test_a_trace_of_each_version(body: str, expected: Trace) -> None:
    assert list(parse_traces(body)) == [expected]
    assert many([body.encode()]) == [(0, expected)]


def many(bodies: list[bytes | None]) -> list[tuple[int, Trace]]:
    parents, columns = trace_columns(pa.array(bodies, pa.binary()))
    table = {name: column.to_pylist() for name, column in columns.items()}
    assert {len(values) for values in table.values()} == {len(parents)}
    traces = (
        Trace(**dict(zip(table, row, strict=True))) for row in zip(*table.values(), strict=True)
    )
    return list(zip(parents.tolist(), traces, strict=True))


def random_field(rng: random.Random) -> str:
    return rng.choice(
        ["", "null", "true", "TRUE", "false", "0", "4", "5", "-1", "x", "a b", "\u00fc", "5\n",
         "+5", "1700000000000", str(1 << 31), str((1 << 63) - 1), str(1 << 63), "9" * 19, "9" * 20]
    )  # fmt: skip


def random_body(rng: random.Random) -> bytes:
    traces = []
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        kind = rng.choice([*FIELDS, *FIELDS, "", "Other"])
        count = max(LEAST_FIELDS.get(kind, 3) + rng.choice([-3, -1, 0, 0, 1, 2, 3]), 1)
        numbers = {FIELDS[kind][name] for name in FIELDS[kind]} if kind in FIELDS else set()
        fields = [
            rng.choice(["1", "3"])
            if number in numbers and rng.random() < 0.7
            else random_field(rng)
            for number in range(1, count)
        ]
        traces.append("\x01".join([kind, *fields]))
    body = "\x02".join(traces) + rng.choice(["", "\x02", "\x02\x02"])
    stored = body.encode()
    return stored + b"\xff\xfe" if rng.random() < 0.1 else stored


@pytest.mark.parametrize("n_seeds", tiers.sampled(30, 1000))
def test_traces_of_many_bodies_equal_those_of_each(n_seeds: int) -> None:
    for seed in range(n_seeds):
        rng = random.Random(seed)
        bodies: list[bytes | None] = [random_body(rng) for _ in range(rng.choice([0, 1, 7, 60]))]
        bodies += [None] * rng.choice([0, 1])
        rng.shuffle(bodies)
        expected: list[tuple[int, Trace]] = []
        for number, body in enumerate(bodies):
            traces = [Trace()] if body is None else parse_traces(decode_text(body))
            expected += [(number, trace) for trace in traces]
        assert many(bodies) == expected, seed


def test_slices_of_bodies_are_read() -> None:
    bodies = pa.array([text(*PUB_14).encode(), b"", text("Recall", "5").encode()], pa.binary())
    parents, columns = trace_columns(bodies.slice(1))
    assert parents.tolist() == [0, 1]
    assert columns["trace_type"].to_pylist() == [None, "Recall"]
    assert columns["timestamp"].to_pylist() == [None, 5]
