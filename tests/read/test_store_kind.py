"""What the files of a store tell of its kind, and that what is not read is said."""

from __future__ import annotations

import logging

import pytest

import rmqstore
from goldens import Golden
from reading import read
from rmqstore.read.store_parts import store_kind
from rmqstore.storage.broker.folders import find_store


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v49", "CommitLog, queues in files, RocketMQ 3.2 or later"),
        ("basic", "CommitLog, queues in files, RocketMQ 5.0 or later"),
        ("rocksdb-cq", "CommitLog, queues in RocksDB, RocketMQ 5.2 or later"),
        ("v55-basic", "CommitLog, queues in files, RocketMQ 5.5 or later"),
        ("v55-combine-lmq", "CommitLog, queues in files and RocksDB, RocketMQ 5.4 or later"),
        ("dledger", "DLedger log, queues in files, RocketMQ 5.0 or later"),
        ("dledger-mixed", "CommitLog and DLedger log, queues in files, RocketMQ 5.0 or later"),
    ],
)
def test_the_files_tell_the_kind(golden_store: Golden, name: str, expected: str) -> None:
    kind = store_kind(find_store(golden_store(name)))
    assert str(kind) == expected
    assert kind.not_read == ()


def test_messages_that_are_elsewhere_are_named_by_the_first_read_by_queue(
    copied: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = copied("basic")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "tieredStoreMetadata.json").write_text("{}")
    (root / "compaction" / "compactionLog" / "T").mkdir(parents=True)
    with rmqstore.open(root) as store, caplog.at_level(logging.WARNING):
        read(store)
        read(store)
    texts = caplog.messages
    assert len([text for text in texts if "not read: messages in tiered storage" in text]) == 1
    assert len([text for text in texts if "not read: compacted logs of topics" in text]) == 1
    assert len(store_kind(find_store(root)).not_read) == 2
