"""Unpacks the golden stores, and reads RocketMQ's answers beside them (see golden/README.md)."""

from __future__ import annotations

import base64
import json
import lzma
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden"

PLAIN = (
    "basic", "edges", "v2", "compressed", "ipv6", "prop-crc", "expired", "expired2", "empty", "one",
    "default-sizes", "preblank", "live", "v49",
)  # fmt: skip
CRASHED = ("crash", "crash2", "crash3", "crash4", "crash5")
IN_ROCKSDB = ("rocksdb-cq", "v55-rocksdb-cq", "v55-rocksdb-lmq")
BY_QUEUE = (*PLAIN, "cq-ext", "lmq", *IN_ROCKSDB)  # one message a unit
OTHER_QUEUES = ("batch-cq", "cq-ext", "lmq", "rocksdb-cq")
# plain ones of 5.5.1
NEWEST = (
    "v55-basic", "v55-edges", "v55-expired", "v55-index-rocksdb", "v55-live-lite", "v55-preblank",
)  # fmt: skip
NEWEST_CRASHED = ("v55-crash2", "v55-crash4")
EVERY = PLAIN + CRASHED + OTHER_QUEUES + IN_ROCKSDB[1:]
# of groups of brokers: with a DLedger log, and in controller mode
OF_GROUPS = ("dledger", "dledger-mixed", "dledger-expired", "controller")
OF_GROUPS_CRASHED = ("dledger-crash",)
IN_TIER = ("tiered", "v55-tiered")  # local store, and `tieredstore/` with more of its messages
TORN = ("dledger-crash2", "dledger-crash3")  # one record in the log is torn

Golden = Callable[[str], Path]  # the fixtures golden_store and copied
Row = dict[str, Any]


def unpack(name: str, folder: Path) -> Path:
    """Unpack a store into ``folder``, its holes kept (one has a 1 GiB file); return its root."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


@cache
def lines(name: str, kind: str) -> list[Row]:
    with lzma.open(FOLDER / f"{name}.{kind}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@cache
def summary(name: str) -> Row:
    return json.loads((FOLDER / f"{name}.summary.json").read_text(encoding="utf-8"))


def sizes(name: str) -> dict[str, int]:
    """Return the settings with which a store was written, all of them numbers."""
    return {key: int(value) for key, value in summary(name)["conf"].items()}


# the columns of messages, by the names that these have in a row of :func:`records`
RECORD_COLUMNS = {
    "physicalOffset": "commitLogOffset",
    "size": "storeSize",
    **{name: name for name in ("topic", "queueId", "queueOffset", "sysFlag", "storeTimestamp")},
}


def records(name: str) -> list[Row]:
    """Return the rows of the CommitLog without its blanks and without torn records."""
    rows = lines(name, "commitlog")
    return [row for row in rows if not row.get("blank") and not row.get("error")]


def queues(name: str) -> dict[tuple[str, int], list[Row]]:
    """Return what every queue that the real store knows holds, in order; also the empty ones."""
    found: dict[tuple[str, int], list[Row]] = {
        (row["topic"], row["queueId"]): [] for row in summary(name)["queues"]
    }
    for row in lines(name, "expected"):
        found[row["topic"], row["queueId"]].append(row)
    return found


def asked(row: Row, broker_name: str | None) -> Row:
    """Return a row of `expected` under our column names, at the queue offset that was requested."""
    return message(row, broker_name) | {
        name: row[name] for name in ("topic", "queueId", "queueOffset")
    }


def by_queue(name: str, broker_name: str | None) -> dict[tuple[str, int], list[Row]]:
    """Return the messages that a store gives by queue: those of :func:`asked`, no empty queues."""
    return {
        queue: [asked(row, broker_name) for row in rows]
        for queue, rows in queues(name).items()
        if rows
    }


def message(row: Row, broker_name: str | None) -> Row:
    """Return the row of `expected` under our column names; times in ms, properties as a map.

    A column that RocketMQ's answers do not show is not among them, and reads that are compared with
    these do not ask for it: see :data:`TOLD`.
    """
    properties = row["properties"]
    return {
        "topic": row["recordTopic"],
        "queueId": row["recordQueueId"],
        "queueOffset": row["recordQueueOffset"],
        "body": base64.b64decode(row["bodyBase64"]),
        "tags": row["tags"],
        "keys": row["keys"],
        "msgId": properties.get("UNIQ_KEY", row["msgId"]),
        "properties": properties,
        "bornTimestamp": row["bornTimestamp"],
        "storeTimestamp": row["storeTimestamp"],
        "bornHost": row["bornHost"],
        "storeHost": row["storeHost"],
        "flag": row["flag"],
        "sysFlag": row["sysFlag"],
        "reconsumeTimes": row["reconsumeTimes"],
        "bodyCRC": row["bodyCRC"],
        "preparedTransactionOffset": row["preparedTransactionOffset"],
        "commitLogOffset": row["physicalOffset"],
        "storeSize": row["storeSize"],
        "brokerName": broker_name,
        "offsetMsgId": row["msgId"],
        "tagsCode": row["tagsCode"],
    }


# The columns that RocketMQ's answers show.
TOLD = frozenset(message(lines("one", "expected")[0], None))
