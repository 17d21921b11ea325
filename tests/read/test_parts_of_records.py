"""What cannot be read of a record is null with the reason, and the rest of it comes.

The real 5.3.3 serves each of these records. Its client drops one whose body it cannot inflate, and
looks at neither the CRC of a body nor the time when a record was stored.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard

import rmqstore
import store_builder as build
from live.fake_cluster import FakeCluster, one_queue
from rmqstore import CorruptRecordError
from rmqstore.inspect.trace import find_messages
from rmqstore.inspect.verify import verify

BODY = b"hello " * 9
COLUMNS = ("queueOffset", "keys", "tags", "properties", "bornHost", "storeTimestamp", "body")
N, DAMAGED = 5, 2

# By the part that is lost: its column, what makes it so, and what is said.
PARTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "plain body": ("body", {"sys_flag": build.COMPRESSED}, "body does not inflate as ZLIB"),
    "cut body": (
        "body",
        {"body": zlib.compress(BODY)[:-5], "sys_flag": build.COMPRESSED},
        "body is not one complete ZLIB stream",
    ),
    "no frame": (
        "body",
        {"body": b"this is no stream", "sys_flag": build.COMPRESSED | build.ZSTD},
        "body does not inflate as ZSTD",
    ),
    "unknown type": (
        "body",
        {"body": zlib.compress(BODY), "sys_flag": build.COMPRESSED | 0x400},
        "sysFlag 0x401 names an unknown compression type 4",
    ),
    "CRC": ("body", {"body_crc": 5}, f"CRC of the body is {build.body_crc(BODY)}, not 5"),
    "CRC of a compressed body": (
        "body",
        {"body": zlib.compress(BODY), "sys_flag": build.COMPRESSED, "body_crc": 5},
        "CRC of the body is ",
    ),
    "store time": (
        "storeTimestamp",
        {"store_timestamp": 1_700_000_000_000_000},
        "store_timestamp 1700000000000000 is not in the years 1 to 9999",
    ),
}


def records(change: dict[str, Any]) -> list[build.Record]:
    """Return records of one queue, of which the third has a part that is lost."""
    made = []
    for number in range(N):
        pairs = {"KEYS": f"k{number}", "TAGS": f"t{number}", "UNIQ_KEY": f"{number:032X}"}
        made.append(build.Record(body=BODY, properties=build.properties(pairs)))
    made[DAMAGED] = replace(made[DAMAGED], **change)
    return made


def write(root: Path, change: dict[str, Any]) -> tuple[Path, list[build.Placed]]:
    made = build.Store()
    placed = [
        made.append(record, tags=f"t{number}") for number, record in enumerate(records(change))
    ]
    return made.write(root), placed


def read(store: Any, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.scan(columns=COLUMNS, **options).read_all().to_pylist()
    return rows


READS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "by queue": lambda store: read(store, mode="PERMISSIVE"),
    "by log": lambda store: read(store, mode="PERMISSIVE", scan="commitlog"),
    "by tag": lambda store: read(store, mode="PERMISSIVE", tags="t2"),
    "by key": lambda store: read(store, mode="PERMISSIVE", msg_key="k2", subscribe="T"),
    "by id": lambda store: read(store, mode="PERMISSIVE", msg_id=[f"{DAMAGED:032X}"]),
    "newest": lambda store: read(store, mode="PERMISSIVE", last=3),
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("part", PARTS)
def test_one_part_is_null_with_the_reason_and_all_else_comes(
    tmp_path: Path, part: str, how: str
) -> None:
    column, change, said = PARTS[part]
    root, placed = write(tmp_path / "s", change)
    with rmqstore.open(root) as store:
        rows = READS[how](store)
    (row,) = [row for row in rows if row["_corrupt_record"] is not None]
    _is_as_expected(row, column)
    place = f"{root}/commitlog/{0:020d}, {placed[DAMAGED].physical_offset}: "
    assert row["_corrupt_record"].startswith(place + said)
    assert all(other["body"] == BODY for other in rows if other is not row)


def _is_as_expected(row: dict[str, Any], lost: str) -> None:
    assert row[lost] is None
    assert (row["queueOffset"], row["keys"], row["tags"]) == (DAMAGED, "k2", "t2")
    assert row["bornHost"] == "127.0.0.1:10911"
    assert dict(row["properties"])["KEYS"] == "k2"
    kept = "storeTimestamp" if lost == "body" else "body"
    assert row[kept] is not None


@pytest.mark.parametrize("part", PARTS)
def test_a_running_broker_is_read_likewise(part: str) -> None:
    column, change, said = PARTS[part]
    with FakeCluster({"a": one_queue(N)}) as fake, fake.open() as cluster:
        broker = fake.brokers["a"]
        for number, record in enumerate(records(change)):
            each = broker.queues["T", 0].stored[number]
            each.record = build.pack(replace(record, queue_offset=number), 1000 * number)
        rows = read(cluster, mode="PERMISSIVE")
    assert [row["queueOffset"] for row in rows if row["_corrupt_record"]] == [DAMAGED]
    _is_as_expected(rows[DAMAGED], column)
    assert said in rows[DAMAGED]["_corrupt_record"]


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
@pytest.mark.parametrize("part", PARTS)
def test_the_other_modes_fail_or_leave_the_record_out(
    tmp_path: Path, part: str, scan: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, change, said = PARTS[part]
    root, placed = write(tmp_path / "s", change)
    with rmqstore.open(root) as store:
        with pytest.raises(CorruptRecordError, match=said) as failed:
            read(store, scan=scan)
        assert failed.value.offset == placed[DAMAGED].physical_offset
        with pytest.raises(CorruptRecordError, match=said):
            store.get(failed.value.offset)
        if "CRC" in part:
            assert len(read(store, scan=scan, check_crc=False)) == N
        rows = read(store, scan=scan, mode="DROPMALFORMED")
    assert [row["queueOffset"] for row in rows] == [0, 1, 3, 4]
    assert "dropped 1 damaged record," in caplog.text


@pytest.mark.parametrize("part", PARTS)
def test_verify_names_the_record_and_the_part(tmp_path: Path, part: str) -> None:
    _, change, said = PARTS[part]
    root, placed = write(tmp_path / "s", change)
    with rmqstore.open(root) as store:
        # A broker that starts ends its log at a wrong CRC, which other findings say.
        (found,) = [one for one in verify(store) if one.part == "log"]
    assert found.kind == "part"
    assert found.place.endswith(f"{0:020d}, {placed[DAMAGED].physical_offset}")
    assert found.text.startswith(said)


def test_a_body_that_is_not_read_is_not_inflated(tmp_path: Path) -> None:
    root, _ = write(tmp_path / "s", PARTS["plain body"][1])
    with rmqstore.open(root) as store:
        rows = store.scan(columns=["keys"]).read_all().to_pylist()
        assert [row["keys"] for row in rows] == [f"k{number}" for number in range(N)]
        as_stored = store.scan(verbatim=True).read_all().column("body")
    assert as_stored.to_pylist() == [BODY] * N


def test_a_message_of_lmqs_lacks_its_body_in_each_of_them(tmp_path: Path) -> None:
    names = ["%LMQ%a", "%LMQ%b"]
    made = build.Store()
    parts: list[dict[str, Any]] = [{}, {"sys_flag": build.COMPRESSED}, {"body_crc": 5}]
    for number, part in enumerate(parts):
        pairs = {
            "KEYS": f"k{number}",
            "INNER_MULTI_DISPATCH": ",".join(names),
            "INNER_MULTI_QUEUE_OFFSET": f"{number},{number}",
        }
        record = build.Record(body=BODY, properties=build.properties(pairs), **part)
        placed = made.append(record)
        for name in names:
            made.queues.setdefault((name, 0), []).append((placed.physical_offset, placed.size, 0))
    root = made.write(tmp_path / "s")
    with rmqstore.open(root) as store:
        rows = read(store, mode="PERMISSIVE", subscribe=[*names])
    lost = [row for row in rows if row["_corrupt_record"]]
    assert [(row["keys"], row["body"], row["queueOffset"]) for row in lost] == [
        *[("k1", None, 1)] * 2,
        *[("k2", None, 2)] * 2,
    ]
    assert len(rows) == 6


@pytest.mark.parametrize(
    ("body", "codec", "read_as"),
    [
        # what MessageDecoder of 5.3.3 gives; null is a message that the client drops
        (b"", 0, b""),
        (zlib.compress(b"hello") + b"more", 0, b"hello"),
        (zlib.compress(b"hello") + zlib.compress(b"world"), 0, b"hello"),
        (lz4.frame.compress(b"hello") + lz4.frame.compress(b"world"), build.LZ4, b"helloworld"),
        (lz4.frame.compress(b"hello") + b"moremore", build.LZ4, None),
        (zstandard.compress(b"hello") + zstandard.compress(b"world"), build.ZSTD, b"helloworld"),
        (zstandard.compress(b"hello") + b"moremore", build.ZSTD, None),
    ],
)
def test_bodies_inflate_as_the_client_inflates_them(
    tmp_path: Path, body: bytes, codec: int, read_as: bytes | None
) -> None:
    root, _ = write(tmp_path / "s", {"body": body, "sys_flag": build.COMPRESSED | codec})
    with rmqstore.open(root) as store:
        row = read(store, mode="PERMISSIVE")[DAMAGED]
    assert row["body"] == read_as
    assert (row["_corrupt_record"] is None) == (read_as is not None)


def test_very_many_frames_are_refused_at_once(tmp_path: Path) -> None:
    body = lz4.frame.compress(b"") * 200
    root, _ = write(tmp_path / "s", {"body": body, "sys_flag": build.COMPRESSED | build.LZ4})
    with rmqstore.open(root) as store:
        row = read(store, mode="PERMISSIVE")[DAMAGED]
    assert "body has more than 64 LZ4 frames" in row["_corrupt_record"]


def test_a_trace_needs_no_body(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    root, _ = write(tmp_path / "s", PARTS["plain body"][1])
    with rmqstore.open(root) as store:
        found = find_messages(store, [f"{DAMAGED:032X}"])
    (row,) = found.rows
    assert (row["keys"], row["body"]) == ("k2", None)
    assert "body does not inflate as ZLIB" in caplog.text
