"""RocketMQ's own TraceDataEncoder and KeyBuilder judge how traces and retry topics are read."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

import tiers
from interop.rocketmq import RocketMQ
from plain_traces import Trace, parse_traces
from rmqstore.format.columns.property_decode import KnownNames, group_and_topic
from rmqstore.format.columns.traces import MESSAGE_TYPES, trace_columns

pytestmark = pytest.mark.interop

# Our fields by those of TraceContext and TraceBean that Java's decoder sets for a type.
OF_CONTEXT = {
    "timeStamp": "timestamp", "regionId": "region_id", "groupName": "group_name",
    "costTime": "cost_millis", "success": "is_success", "requestId": "request_id",
    "contextCode": "context_code",
}  # fmt: skip
OF_BEAN = {
    "topic": "topic", "msgId": "msg_id", "offsetMsgId": "offset_msg_id", "tags": "tags",
    "keys": "keys", "storeHost": "store_host", "bodyLength": "body_size", "msgType": "msg_type",
    "retryTimes": "retry_times", "transactionId": "transaction_id",
    "transactionState": "transaction_state", "fromTransactionCheck": "is_transaction_check",
}  # fmt: skip
SET = {
    "Pub": "timeStamp regionId groupName topic msgId tags keys storeHost bodyLength costTime "
    "msgType offsetMsgId success",
    "SubBefore": "timeStamp regionId groupName requestId msgId retryTimes keys",
    "SubAfter": "requestId msgId costTime success keys contextCode timeStamp groupName",
    "EndTransaction": "timeStamp regionId groupName topic msgId tags keys storeHost msgType "
    "transactionId transactionState fromTransactionCheck",
    "Recall": "timeStamp regionId groupName topic msgId success",
}
TEXTS = [
    "", "a", "TagA", "k1 k2", "Größe", "消息 🎉", "x" * 300, "null", " ", "0", "true", "a\tb\n",
]  # fmt: skip
INTS = [0, 1, -1, 7, 4096, (1 << 31) - 1, -(1 << 31)]
TIMES = [0, 1, 1_700_000_000_123, -5, (1 << 63) - 1, -(1 << 63), 10**18]


def random_context(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice([*SET])
    beans = [
        {
            **{name: rng.choice(TEXTS) for name in OF_BEAN},
            "bodyLength": rng.choice(INTS),
            "retryTimes": rng.choice(INTS),
            "msgType": rng.choice(MESSAGE_TYPES),
            "transactionState": rng.choice(["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]),
            "fromTransactionCheck": rng.random() < 0.5,
        }
        for _ in range(rng.choice([1, 2, 3]) if kind.startswith("Sub") else 1)
    ]
    for bean in beans:
        for name in ("tags", "keys", "storeHost", "offsetMsgId"):
            if rng.random() < 0.1:
                bean[name] = None
    return {
        "traceType": kind, "timeStamp": rng.choice(TIMES), "regionId": rng.choice([*TEXTS, None]),
        "groupName": rng.choice(TEXTS), "costTime": rng.choice(INTS), "success": rng.random() < 0.5,
        "requestId": rng.choice(TEXTS), "contextCode": rng.choice([0, 1, 2, 3, 4, 9]),
        "accessChannel": rng.choice(["LOCAL", "CLOUD"]), "traceBeans": beans,
    }  # fmt: skip


def expected_traces(context: dict[str, Any]) -> list[Trace]:
    """Return what a context says, as far as its type has it."""
    kind, is_of_cloud = context["traceType"], context["accessChannel"] == "CLOUD"
    traces = []
    for bean in context["traceBeans"]:
        values: dict[str, Any] = {}
        for name in SET[kind].split():
            if kind == "SubAfter" and is_of_cloud and name in ("timeStamp", "groupName"):
                continue
            ours = OF_CONTEXT.get(name) or OF_BEAN[name]
            value = context[name] if name in OF_CONTEXT else bean[name]
            values[ours] = None if value == "null" else value
        traces.append(Trace(kind, **values))
    return traces


@pytest.mark.parametrize("count", tiers.sampled(4000, 40_000))
def test_traces_equal_those_of_rocketmq(rocketmq: RocketMQ, count: int) -> None:
    rng = random.Random(count)
    trace = rocketmq.rocketmq.client.trace
    spell = rocketmq.json_class()
    kind = trace.TraceContext().getClass()
    n_judged = 0
    bodies: list[bytes] = []
    every: list[tuple[int, Trace]] = []
    for number in range(count):
        context = random_context(rng)
        real = spell.parseObject(json.dumps(context), kind)
        body = trace.TraceDataEncoder.encoderFromContextBean(real).getTransData()
        found = list(parse_traces(body))
        assert found == expected_traces(context), body
        bodies.append(body.encode())
        every += [(number, one) for one in found]
        try:
            decoded = trace.TraceDataEncoder.decoderFromTraceDataString(body)
        except Py4JJavaError:  # it loses empty fields at the end of a trace
            assert any(one.keys == "" for one in found), body
            continue
        n_judged += 1
        assert len(decoded) == len(found)
        for one, text in zip(found, json.loads(spell.toJSONString(decoded)), strict=True):
            assert_equal_to_java(one, text)
    assert n_judged > count * 0.8
    parents, columns = trace_columns(pa.array(bodies, pa.binary()))
    rows = (
        dict(zip(columns, row, strict=True))
        for row in zip(*(column.to_pylist() for column in columns.values()), strict=True)
    )
    assert [(parent, Trace(**row)) for parent, row in zip(parents.tolist(), rows, strict=True)] == (
        every
    )


def assert_equal_to_java(one: Trace, decoded: dict[str, Any]) -> None:
    assert one.trace_type == decoded["traceType"]
    (bean,) = decoded["traceBeans"]
    for name in SET[one.trace_type or ""].split():
        theirs = decoded.get(name) if name in OF_CONTEXT else bean.get(name)
        ours = getattr(one, OF_CONTEXT.get(name) or OF_BEAN[name])
        # Java sets these two only if the last one is not empty.
        is_optional = one.trace_type == "SubAfter" and name in ("timeStamp", "groupName")
        if is_optional and not one.group_name:
            continue
        assert ours == (None if theirs == "null" else theirs), name


def test_retry_topics_of_pop_are_those_of_rocketmq(rocketmq: RocketMQ) -> None:
    builder = rocketmq.rocketmq.common.KeyBuilder
    for group, topic in [("g", "T"), ("shop_orders", "paid"), ("a_b", "c_d"), ("NS%g", "NS%T")]:
        known = KnownNames({group}, {topic})
        for name in (
            builder.buildPopRetryTopicV1(topic, group), builder.buildPopRetryTopicV2(topic, group)
        ):  # fmt: skip
            assert group_and_topic(name, has_origin=False, known=known) == (group, topic)
            assert builder.parseNormalTopic(name, group) == topic
        second = builder.buildPopRetryTopicV2(topic, group)
        assert (builder.parseGroup(second), builder.parseNormalTopic(second)) == (group, topic)
        assert group_and_topic(second, has_origin=False) == (group, topic)
