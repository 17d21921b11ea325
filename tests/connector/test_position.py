"""Where a read goes on after a store has changed: the same by each way to read it."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rmqstore
from command_line import run
from connector.engine import ddl
from connector.streams import SCHEMA, add
from connector.test_stream_planning import LENIENT, Query, delete_topic
from connector.test_stream_read import numbered
from pyspark_rmqstore.batch_reader import RmqStoreReader
from pyspark_rmqstore.options import parse_read_options
from rmqstore.errors import NotAStoreError, OffsetOutOfRangeError, OptionError
from rmqstore.read.request import parse_request
from rmqstore.read.store_ref import StoreRef
from rmqstore.source.store_source import StoreSource
from source.test_tail import put_back

COLUMNS = ["topic", "queueId", "queueOffset", "body"]
LARGE = ["x" * 20_000] * 8  # two files of the log and more


def write_on(root: Path, body: str) -> None:
    add(root, ("T", 0, numbered(0, 3, body)))


def let_expire(root: Path) -> None:
    add(root, ("T", 0, LARGE))
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()


def cut(root: Path) -> None:
    put_back(root, root.with_name("before"))


class Change(NamedTuple):
    """What befalls a store of which T-0 is read up to offset 15, and what the reads say then.

    Attributes:
        make: changes the store.
        loss: what a stream fails with, and warns of if data loss is not to fail.
        rows: queue offsets and bodies that it delivers with failOnDataLoss=false.
        span: where T-0 begins and ends in view ``queues``; None if there is no such queue.
        batch: what a batch from the same offsets fails with.
        batch_rows: the number of rows that it gives with failOnDataLoss=false.
    """

    make: Callable[[Path], object]
    loss: str | None
    rows: list[tuple[int, str]]
    span: tuple[int, int] | None
    batch: str | None
    batch_rows: int


NEW = [(at + 15, f"n{at}") for at in range(3)]
CHANGES = {
    "grown": Change(lambda root: write_on(root, "n"), None, NEW, (0, 18), None, 3),
    "rolled over": Change(
        lambda root: add(root, ("T", 0, LARGE)),
        None, [(at + 15, LARGE[0]) for at in range(8)], (0, 23), None, 8,
    ),
    "expired": Change(
        let_expire, "T-0 of broker s: offsets 15 to 21 (excluded) were deleted unread",
        [(21, LARGE[0]), (22, LARGE[0])], (21, 23), "T-0 is 15, the queue holds 21 to 23", 2,
    ),
    "cut by a recovery": Change(
        cut, "T-0 of broker s: delivered up to offset 15, but a recovery cut it at 10 since",
        [], (0, 10), "T-0 is 15, the queue holds 0 to 10", 0,
    ),
    "cut to another log": Change(
        lambda root: (cut(root), write_on(root, "n")),
        "T-0 of broker s: delivered up to offset 15, but a recovery cut it at 10 since",
        [(at + 10, f"n{at}") for at in range(3)], (0, 13), "T-0 is 15, the queue holds 0 to 13", 0,
    ),
    "cut, and grown to the same end": Change(
        lambda root: (cut(root), add(root, ("T", 0, numbered(0, 5, "n")))),
        "T-0 of broker s: delivered up to offset 15, but a recovery cut it at 10 since",
        [(at + 10, f"n{at}") for at in range(5)], (0, 15), None, 0,
    ),
    "cut, and grown beyond": Change(
        lambda root: (cut(root), add(root, ("T", 0, numbered(0, 9, "n")))),
        "T-0 of broker s: delivered up to offset 15, but a recovery cut it at 10 since",
        [(at + 10, f"n{at}") for at in range(9)], (0, 19), None, 4,
    ),
    "topic deleted": Change(
        lambda root: delete_topic(root, "T"),
        "T-0 of broker s: it is deleted; whether it had messages from offset 15 on is not known",
        [], None, "no topic T", 0,
    ),
    "another store": Change(
        lambda root: (shutil.rmtree(root), add(root, ("T", 0, numbered(0, 17, "n")))),
        "T-0 of broker s: delivered up to offset 15, but another store has taken the place",
        [(at, f"n{at}") for at in range(17)], (0, 17), None, 2,
    ),
}  # fmt: skip


class Position:
    """A store whose topic T was read up to offset 15, by a query and by ``dump --follow``."""

    def __init__(self, folder: Path, *, is_strict: bool) -> None:
        self.root = folder / "s"
        self.is_strict = is_strict
        self.options = {"subscribe": "T"} | ({} if is_strict else LENIENT)
        add(self.root, ("T", 0, numbered(0, 10)), ("B", 0, ["b0"]))
        shutil.copytree(self.root, folder / "before")
        add(self.root, ("T", 0, numbered(10, 15)), ("B", 0, ["b1"]))
        self.running = Query(self.root, **self.options)
        assert len(self.running.trigger()) == 15
        self.offset = self.running.offset
        asked = {
            "columns": COLUMNS, "subscribe": "T", "starting_offsets": "earliest",
            "fail_on_data_loss": is_strict,
        }  # fmt: skip
        source = StoreSource((StoreRef(str(self.root)),))
        self.followed = source.follow(parse_request(asked, streaming=True))
        assert len(self.follow()) == 15

    def follow(self) -> list[tuple[Any, ...]]:
        rows = [row for batch in self.followed.messages() for row in batch.to_pylist()]
        return [(*row.values(),) for row in rows]

    def streams(self) -> Iterator[Callable[[], list[tuple[Any, ...]]]]:
        yield self.running.trigger
        yield Query(self.root, self.offset, **self.options).trigger
        yield self.follow

    def batches(self) -> Iterator[Callable[[], int]]:
        starts = {"T": {"0": 15}}

        def python() -> int:
            with rmqstore.open(self.root) as store:
                return store.scan(
                    subscribe="T", starting_offsets=starts, fail_on_data_loss=self.is_strict
                ).count()

        def command() -> int:
            more = () if self.is_strict else ("--ignore-data-loss",)
            done = run("dump", self.root, "-t", "T", "-i", 0, "-o", 15, *more)
            if done.exit_code:
                raise OptionError(done.stderr)
            return len(done.stdout.splitlines())

        def spark() -> int:
            given = {"path": str(self.root), "startingOffsets": json.dumps(starts), **self.options}
            reader = RmqStoreReader(ddl(SCHEMA), parse_read_options(given))
            return sum(len(batch) for part in reader.partitions() for batch in reader.read(part))

        yield from (python, command, spark)

    def span(self) -> tuple[int, int] | None:
        with rmqstore.open(self.root) as store:
            rows = store.view("queues", where="topic = 'T'").to_arrow().to_pylist()
        return next(((row["minOffset"], row["maxOffset"]) for row in rows), None)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "lenient"])
def test_all_ways_to_read_say_the_same_of_what_befell_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, *, is_strict: bool
) -> None:
    caplog.set_level(logging.WARNING)
    change = CHANGES[name]
    position = Position(tmp_path, is_strict=is_strict)
    with closing(position.followed):
        change.make(position.root)
        assert position.span() == change.span
        for stream in position.streams():
            caplog.clear()
            if is_strict and change.loss is not None:
                with pytest.raises(OffsetOutOfRangeError) as caught:
                    stream()
                assert change.loss in str(caught.value)
            else:
                assert [(row[2], as_text(row[3])) for row in stream()] == change.rows
                assert (change.loss or "") in caplog.text
                assert change.loss is not None or "data loss" not in caplog.text
    for batch in position.batches():
        if change.batch is not None and (is_strict or change.span is None):
            with pytest.raises((OffsetOutOfRangeError, OptionError)) as wrong:
                batch()
            assert change.batch in str(wrong.value)
        else:
            assert batch() == change.batch_rows


def as_text(body: str | bytes) -> str:
    return body if isinstance(body, str) else body.decode()


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "lenient"])
def test_a_store_that_is_gone_is_no_empty_one(tmp_path: Path, *, is_strict: bool) -> None:
    position = Position(tmp_path, is_strict=is_strict)
    shutil.rmtree(position.root)
    for read in (*position.streams(), *position.batches()):
        with pytest.raises(
            (NotAStoreError, OptionError), match=r"is not a RocketMQ store|does not exist"
        ):
            read()
