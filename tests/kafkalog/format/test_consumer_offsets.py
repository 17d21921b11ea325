"""Records of Kafka's own topics, made by hand; `test_dumped_files.py` has those of brokers.

Fields are those of the messages in kafka-group-coordinator 4.1.1.
"""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from kafkalog.format.consumer_offsets import Decoded, decode_group_record, decode_transaction_record

NO_TAGS = b"\0"
TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
SHOWN_ID = "ABEiM0RVZneImaq7zN3u_w"


def key_of(kind: int, *names: str) -> bytes:
    return struct.pack(">h", kind) + b"".join(
        struct.pack(">h", len(name)) + name.encode() for name in names
    )


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def listed(*items: bytes) -> bytes:
    return bytes([len(items) + 1]) + b"".join(items)


def numbers(form: str, *values: int) -> bytes:
    return listed(*(struct.pack(form, value) for value in values))


def tasks(name: str, *partitions: int) -> bytes:
    return listed(text(name) + numbers(">i", *partitions) + NO_TAGS)


def shown_tasks(name: str, *partitions: int) -> list[dict[str, Any]]:
    return [{"subtopologyId": name, "partitions": [*partitions]}]


TOPIC = TOPIC_ID.bytes + text("Orders")
TASKS = tasks("0", 1, 2) + listed() + tasks("1", 3)
SHOWN_TASKS = {
    "activeTasks": shown_tasks("0", 1, 2), "standbyTasks": [], "warmupTasks": shown_tasks("1", 3),
}  # fmt: skip
REPARTITION = (
    text("r") + struct.pack(">ih", 4, 3) + listed(text("k") + text("v") + NO_TAGS) + NO_TAGS
)
SHOWN_REPARTITION = {
    "name": "r", "partitions": 4, "replicationFactor": 3,
    "topicConfigs": [{"key": "k", "value": "v"}],
}  # fmt: skip
MEMBER = (
    text(None) + text("rack") + text("client") + text("/10.0.0.1") + struct.pack(">ii", 45_000, 2)
    + text("p")
)  # fmt: skip
SHOWN_MEMBER = {
    "instanceId": None, "rackId": "rack", "clientId": "client", "clientHost": "/10.0.0.1",
    "rebalanceTimeoutMs": 45_000, "topologyEpoch": 2, "processId": "p",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "has_member", "fields", "shown"),
    [
        pytest.param(11, False, struct.pack(">iq", 5, -6), {"epoch": 5, "metadataHash": -6},
                     id="share group"),
        pytest.param(
            15, False,
            listed() + listed(TOPIC + numbers(">i", 0, 7) + NO_TAGS) + listed(TOPIC + NO_TAGS),
            {
                "initializingTopics": [],
                "initializedTopics": [
                    {"topicId": SHOWN_ID, "topicName": "Orders", "partitions": [0, 7]}
                ],
                "deletingTopics": [{"topicId": SHOWN_ID, "topicName": "Orders"}],
            },
            id="partitions of a share group",
        ),
        pytest.param(17, False, struct.pack(">iq", 5, 6), {"epoch": 5, "metadataHash": 6},
                     id="streams group"),
        pytest.param(19, True, MEMBER + b"\xff" + listed(),
                     SHOWN_MEMBER | {"userEndpoint": None, "clientTags": []},
                     id="member without an endpoint"),
        pytest.param(
            19, True,
            MEMBER + b"\1" + text("host") + struct.pack(">H", 65_000) + NO_TAGS
            + listed(text("zone") + text("a") + NO_TAGS),
            SHOWN_MEMBER | {
                "userEndpoint": {"host": "host", "port": 65_000},
                "clientTags": [{"key": "zone", "value": "a"}],
            },
            id="member",
        ),
        pytest.param(20, False, struct.pack(">i", 9), {"assignmentEpoch": 9}, id="target"),
        pytest.param(21, True, TASKS, SHOWN_TASKS, id="target of a member"),
        pytest.param(
            22, True,
            struct.pack(">iib", 3, 2, 1) + TASKS + tasks("2", 4) + listed() + listed(),
            {"memberEpoch": 3, "previousMemberEpoch": 2, "state": 1} | SHOWN_TASKS | {
                "activeTasksPendingRevocation": shown_tasks("2", 4),
                "standbyTasksPendingRevocation": [], "warmupTasksPendingRevocation": [],
            },
            id="assignment of a member",
        ),
        pytest.param(
            23, False,
            struct.pack(">i", 1) + listed(
                text("0") + listed(text("in")) + listed() + listed() + listed(text("out"))
                + listed(REPARTITION)
                + listed(numbers(">h", 0) + listed() + numbers(">h", 1) + NO_TAGS) + NO_TAGS
            ),
            {
                "epoch": 1,
                "subtopologies": [{
                    "subtopologyId": "0", "sourceTopics": ["in"], "sourceTopicRegex": [],
                    "stateChangelogTopics": [], "repartitionSinkTopics": ["out"],
                    "repartitionSourceTopics": [SHOWN_REPARTITION],
                    "copartitionGroups": [{
                        "sourceTopics": [0], "sourceTopicRegex": [],
                        "repartitionSourceTopics": [1],
                    }],
                }],
            },
            id="topology",
        ),
    ],
)  # fmt: skip
def test_records_of_share_and_streams_groups(
    kind: int, fields: bytes, shown: dict[str, Any], *, has_member: bool
) -> None:
    names = ["g", "m"] if has_member else ["g"]
    found = decode_group_record(key_of(kind, *names), struct.pack(">h", 0) + fields + NO_TAGS)
    assert found.reason is None
    assert found.key == {
        "type": str(kind), "data": dict(zip(["groupId", "memberId"], names, strict=False))
    }  # fmt: skip
    assert found.value == {"version": "0", "data": shown}


def test_what_is_not_known_is_no_deletion() -> None:
    deleted = decode_group_record(key_of(3, "g"), None)
    assert (deleted.value, deleted.reason) == (None, None)
    for kind in (18, 24, 99, -1):
        assert decode_group_record(key_of(kind, "g"), b"\0\0") == Decoded(
            None, None, f"records of type {kind} are not known"
        )
    assert decode_group_record(None, b"").reason == "the record has no key"
    newer = decode_group_record(key_of(3, "g"), struct.pack(">h", 9))
    assert newer.key == {"type": "3", "data": {"groupId": "g"}}
    assert newer.reason == "cannot be decoded: version 9 of a record is unknown"


def test_tagged_fields_are_those_that_are_known_and_there() -> None:
    fields = struct.pack(">qhibBqq", 7, 3, 60_000, 1, 1, 1_700_000_000_000, 1_699_999_999_000)
    tagged = {0: struct.pack(">q", 6), 2: struct.pack(">h", 2), 9: b"newer"}
    tags = bytes([len(tagged)]) + b"".join(
        bytes([tag, len(data)]) + data for tag, data in tagged.items()
    )
    found = decode_transaction_record(key_of(0, "tx"), struct.pack(">h", 1) + fields + tags).value
    assert found is not None
    assert found["data"] == {
        "producerId": 7, "previousProducerId": 6, "producerEpoch": 3,
        "transactionTimeoutMs": 60_000, "transactionStatus": 1, "transactionPartitions": [],
        "transactionLastUpdateTimestampMs": 1_700_000_000_000,
        "transactionStartTimestampMs": 1_699_999_999_000, "clientTransactionVersion": 2,
    }  # fmt: skip
