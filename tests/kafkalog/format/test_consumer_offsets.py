"""Records of Kafka's own topics, made by hand; `test_dumped_files.py` has those of brokers."""

from __future__ import annotations

import struct

from kafkalog.format.consumer_offsets import decode_transaction_record


def test_tagged_fields_are_those_that_are_known_and_there() -> None:
    key = struct.pack(">hh", 0, 2) + b"tx"
    fields = struct.pack(">qhibBqq", 7, 3, 60_000, 1, 1, 1_700_000_000_000, 1_699_999_999_000)
    tagged = {0: struct.pack(">q", 6), 2: struct.pack(">h", 2), 9: b"newer"}
    tags = bytes([len(tagged)]) + b"".join(
        bytes([tag, len(data)]) + data for tag, data in tagged.items()
    )
    _, found = decode_transaction_record(key, struct.pack(">h", 1) + fields + tags)
    assert found is not None
    assert found["data"] == {
        "producerId": 7, "previousProducerId": 6, "producerEpoch": 3,
        "transactionTimeoutMs": 60_000, "transactionStatus": 1, "transactionPartitions": [],
        "transactionLastUpdateTimestampMs": 1_700_000_000_000,
        "transactionStartTimestampMs": 1_699_999_999_000, "clientTransactionVersion": 2,
    }  # fmt: skip
