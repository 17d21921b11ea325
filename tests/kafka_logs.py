"""Kafka's log directories for tests: the golden ones, and small ones that are made here.

The golden stores and their keys are described in golden/kafka/README.md.
"""

from __future__ import annotations

import base64
import json
import lzma
import struct
import tarfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa

import kafka_batches

FOLDER = Path(__file__).parent / "golden" / "kafka"

CLEAN = (
    "plain", "codecs", "txn", "compact", "compact2", "deleted", "groups", "epochs", "old",
)  # fmt: skip
KILLED = ("crash", "crash2", "crash3", "swap", "oldcrash")
EVERY = (*CLEAN, *KILLED, "damaged")

TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
_TYPE_NUMBERS = {name: number for number, name in TIMESTAMP_TYPES.items()}
_EPOCH = datetime.fromtimestamp(0, UTC)

Row = dict[str, Any]
Golden = Callable[[str], Path]  # the name of a store in, its root out


def unpack(name: str, folder: Path) -> Path:
    """Unpack a store into ``folder``, its holes kept; return its root."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def log_dirs(name: str, root: Path) -> list[list[Path]]:
    if name == "epochs":
        return [[root / "b1"], [root / "b2d1", root / "b2d2"]]
    return [[root]]


@cache
def summary(name: str) -> Row:
    with lzma.open(FOLDER / f"{name}.summary.json.xz", "rt", encoding="utf-8") as file:
        content: Row = json.load(file)
    return content


def bounds(name: str) -> dict[tuple[str, int], Row]:
    return {(row["topic"], row["partition"]): row for row in summary(name)["partitions"]}


@cache
def records(name: str) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    with lzma.open(FOLDER / f"{name}.expected.jsonl.xz", "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            found.setdefault((row["topic"], row["partition"]), []).append(row)
    return found


def topics(name: str) -> str:
    return ",".join(sorted({topic for topic, _ in records(name)}))


def as_key(table: pa.Table) -> list[Row]:
    """Return rows of a scan in the form of the key."""
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    rows = table.drop_columns(["timestamp"]).to_pylist()
    return [
        {
            "offset": row["offset"],
            "timestamp": -1 if time is None else time,
            "timestampType": TIMESTAMP_TYPES[row["timestamp_type"]],
            "leaderEpoch": row["leader_epoch"],
            "key": _text(row["key"]),
            "value": _text(row["value"]),
            "headers": [[header["key"], _text(header["value"])] for header in row["headers"]],
        }
        for row, time in zip(rows, times, strict=True)
    ]


def bytes_of(text: str | None) -> bytes | None:
    """Return the bytes that a key of a golden store has in base64."""
    return None if text is None else base64.b64decode(text)


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def expected(name: str, partition: tuple[str, int], *, only_committed: bool = False) -> list[Row]:
    names = ("offset", "timestamp", "timestampType", "leaderEpoch", "key", "value", "headers")
    return [
        {name: row[name] for name in names}
        for row in records(name).get(partition, [])
        if row["committed"] or not only_committed
    ]


def source_rows(name: str, *, only_committed: bool = False) -> list[Row]:
    return [
        {
            "key": bytes_of(row["key"]), "value": bytes_of(row["value"]),
            "topic": row["topic"], "partition": row["partition"], "offset": row["offset"],
            "timestamp": _EPOCH + timedelta(milliseconds=row["timestamp"]),
            "timestampType": _TYPE_NUMBERS[row["timestampType"]],
            "headers": [{"key": key, "value": bytes_of(value)} for key, value in row["headers"]]
            or None,
        }
        for records_of_partition in records(name).values()
        for row in records_of_partition
        if row["committed"] or not only_committed
    ]  # fmt: skip


TIME = 1_700_000_000_000
PLAIN, TRANSACTIONAL, CONTROL = 0, 16, 48  # attributes
ABORT, COMMIT = 0, 1


def batch(
    base_offset: int,
    values: Sequence[bytes | None],
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),  # its id, epoch and sequence
    attributes: int = PLAIN,
    key: bytes | None = None,
    time: int = TIME,
    last_offset_delta: int | None = None,
) -> bytes:
    rows = [kafka_batches.Row(key, value, time_delta=at) for at, value in enumerate(values)]
    last = len(values) - 1
    return kafka_batches.batch(
        base_offset, rows, attributes=attributes, base_time=time, max_time=time + max(last, 0),
        leader_epoch=0, producer=producer,
        last_delta=last if last_offset_delta is None else last_offset_delta,
    )  # fmt: skip


def sent(
    offset: int, producer_id: int, *values: bytes, sequence: int = 0, time: int = TIME
) -> bytes:
    producer = (producer_id, 0, sequence)
    return batch(offset, values, producer=producer, attributes=TRANSACTIONAL, time=time)


def changed(content: bytes, at: int = -1, bits: int = 1) -> bytes:
    found = bytearray(content)
    found[at] ^= bits
    return bytes(found)


def commit(offset: int, value: int | None, producer_id: int | None = None) -> bytes:
    """Return a batch with an offset that the group g commits for t-0, or with its deletion."""
    key = struct.pack(">hh1sh1si", 1, 1, b"g", 1, b"t", 0)
    content = None if value is None else struct.pack(">hqihq", 3, value, -1, 0, TIME)
    if producer_id is None:
        return batch(offset, [content], key=key)
    producer = (producer_id, 0, 0)
    return batch(offset, [content], key=key, producer=producer, attributes=TRANSACTIONAL)


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    return batch(
        offset, [struct.pack(">hi", 0, 0)], producer=(producer_id, 0, -1), attributes=CONTROL,
        key=struct.pack(">hh", 0, kind),
    )  # fmt: skip


def write_segment(folder: Path, base_offset: int, *batches: bytes, suffix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{base_offset:020}.log{suffix}"
    path.write_bytes(b"".join(batches))
    return path


def write_index(folder: Path, base_offset: int, *entries: tuple[int, int]) -> Path:
    path = folder / f"{base_offset:020}.index"
    rows = [struct.pack(">ii", offset - base_offset, position) for offset, position in entries]
    path.write_bytes(b"".join(rows))
    return path


def write_time_index(folder: Path, base_offset: int, *entries: tuple[int, int]) -> Path:
    path = folder / f"{base_offset:020}.timeindex"
    rows = [struct.pack(">qi", time, offset - base_offset) for time, offset in entries]
    path.write_bytes(b"".join(rows))
    return path


def write_checkpoint(folder: Path, name: str, offset: int) -> None:
    """Write a checkpoint that names an offset of t-0, whose folder is given."""
    (folder.parent / f"{name}-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")


def make_log_dir(folder: Path, *, is_clean: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.properties").write_text("version=0\ncluster.id=c\nbroker.id=7\n")
    if is_clean:
        (folder / ".kafka_cleanshutdown").touch()
    return folder


def values_of(table: pa.Table) -> list[bytes | None]:
    values: list[bytes | None] = table.column("value").to_pylist()
    return values


def write_snapshot(folder: Path, offset: int, open_since: dict[int, int]) -> Path:
    """Write a producer snapshot with an open transaction of each producer."""
    entries = [
        struct.pack(">qhiqiqiq", producer, 0, 0, offset - 1, 0, TIME, 0, since)
        for producer, since in open_since.items()
    ]
    checked = struct.pack(">i", len(entries)) + b"".join(entries)
    path = folder / f"{offset:020}.snapshot"
    path.write_bytes(struct.pack(">hI", 1, crc32c.crc32c(checked)) + checked)
    return path


def segments(name: str) -> dict[str, Row]:
    with lzma.open(FOLDER / f"{name}.segments.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = map(json.loads, file)
        return {row["file"]: row for row in rows if row["kind"] == "log"}
