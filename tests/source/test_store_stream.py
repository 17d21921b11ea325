"""Following a store: every message once, from where it was asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.errors import OptionError
from rmqstore.read.request import ScanRequest, parse_request
from rmqstore.read.store_ref import StoreRef
from rmqstore.source.store_source import StoreSource
from rmqstore.source.store_stream import StoreStream
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.write.writer import StoreWriter

SIZES = StoreConfig().updated({"mappedFileSizeCommitLog": 16384, "mappedFileSizeConsumeQueue": 400})
Row = tuple[str, int, int, bytes]


def put(writer: StoreWriter, topic: str, queue_id: int, *bodies: bytes) -> None:
    rows = {
        "topic": [topic] * len(bodies),
        "queueId": pa.array([queue_id] * len(bodies), pa.int32()),
        "body": list(bodies),
        "tags": ["even" if body.endswith((b"0", b"2")) else "odd" for body in bodies],
    }
    writer.append(pa.RecordBatch.from_pydict(rows))
    writer.flush()


def request(last: int | None = None, **arguments: Any) -> ScanRequest:
    columns = ["topic", "queueId", "queueOffset", "body"]
    return parse_request({"columns": columns, "last": last, **arguments}, streaming=True)


def followed(root: Path, asked: ScanRequest) -> closing[StoreStream]:
    return closing(StoreSource((StoreRef(str(root)),)).follow(asked))


def rows(stream: StoreStream) -> list[Row]:
    return [tuple(row.values()) for batch in stream.messages() for row in batch.to_pylist()]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    with rmqstore.create(tmp_path / "s", config=SIZES) as opened:
        put(opened, "T", 0, *(b"old %d" % number for number in range(5)))
        put(opened, "T", 1, b"old 9")
        yield opened


def test_new_messages_come_once(writer: StoreWriter, tmp_path: Path) -> None:
    with followed(tmp_path / "s", request(subscribe=["T", "U"])) as stream:
        assert rows(stream) == []
        put(writer, "T", 0, b"a", b"b")
        assert rows(stream) == [("T", 0, 5, b"a"), ("T", 0, 6, b"b")]
        assert rows(stream) == []
        put(writer, "U", 3, b"first")
        put(writer, "V", 0, b"another topic")
        put(writer, "T", 1, b"c")
        assert rows(stream) == [("U", 3, 0, b"first"), ("T", 1, 1, b"c")]


@pytest.mark.parametrize(
    ("arguments", "bodies"),
    [
        ({"last": 2}, [b"old 3", b"old 4", b"old 9"]),
        ({"last": 2, "tags": "even"}, [b"old 0", b"old 2"]),
        ({"last": 1, "where": "queueId = 1"}, [b"old 9"]),
        ({"starting_offsets": {"T": {0: 4, 1: 1}}, "assign": {"T": [0, 1]}}, [b"old 4"]),
        ({"starting_offsets": "earliest", "tags": "even"}, [b"old 0", b"old 2"]),
        ({"starting_timestamp": "-1h", "tags": "odd"}, [b"old 1", b"old 3", b"old 4", b"old 9"]),
    ],
    ids=str,
)  # fmt: skip
def test_older_messages_come_first(
    writer: StoreWriter, tmp_path: Path, arguments: dict[str, Any], bodies: list[bytes]
) -> None:
    with followed(tmp_path / "s", request(**arguments)) as stream:
        assert [row[3] for row in rows(stream)] == bodies
        assert rows(stream) == []
        put(writer, "T", 1, b"new 1", b"new 2")
        new = [row[3] for row in rows(stream)]
        wanted = {"even": [b"new 2"], "odd": [b"new 1"], "": [b"new 1", b"new 2"]}
        assert new == wanted[arguments.get("tags", "")]


def test_a_random_writer_is_followed(writer: StoreWriter, tmp_path: Path) -> None:
    chance = random.Random(7)
    found: list[Row] = []
    with followed(tmp_path / "s", request(starting_offsets="earliest")) as stream:
        for step in range(60):
            for _ in range(chance.randrange(4)):
                bodies = (b"x" * chance.randrange(400) for _ in range(chance.randrange(1, 20)))
                put(writer, f"T{chance.randrange(4)}", chance.randrange(3), *bodies)
            if step % 3 == 0:
                found += rows(stream)
        found += rows(stream)
    with rmqstore.open(tmp_path / "s") as store:
        known = store.scan(columns="topic,queueId,queueOffset,body").read_all().to_pylist()
    assert sorted(found) == sorted(tuple(row.values()) for row in known)


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize("arguments", [{"scan": "commitlog"}, {"msg_key": "k"}], ids=str)
def test_only_queues_are_followed(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="of queues"):
        followed(tmp_path / "s", request(**arguments))
