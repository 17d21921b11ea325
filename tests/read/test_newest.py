"""The newest messages of each queue, or of the log, with and without conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import goldens
import rmqstore
from goldens import Golden
from reading import by_queue, offsets, read
from rmqstore.errors import OptionError
from rmqstore.storage.recovery.log_end import n_written
from tiers import spread

CONDITIONS: list[dict[str, Any]] = [
    {},
    {"tags": "TagA || TagB"},
    {"where": "storeSize > 300"},
    {"mode": "PERMISSIVE", "columns": "body,topic"},
]
STORES = [*goldens.EVERY, *goldens.OF_GROUPS]
PHYSICAL_OFFSET = ("commitLogOffset", "topic", "queueId", "queueOffset")


def placed(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in PHYSICAL_OFFSET)


@pytest.mark.parametrize(("name", "condition"), spread(5, STORES, CONDITIONS))
@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_newest_of_each_queue(
    golden_store: Golden, name: str, condition: dict[str, Any], count: int
) -> None:
    arguments = condition | {"columns": ",".join(PHYSICAL_OFFSET)}
    with rmqstore.open(golden_store(name)) as store:
        queues = by_queue(read(store, **arguments))
        found = read(store, **arguments, last=count)
    newest = [row for of_queue in queues.values() for row in of_queue[-count:]]
    assert sorted(map(placed, found)) == sorted(map(placed, newest))
    assert offsets(found) == sorted(offsets(found))


@pytest.mark.parametrize(("name", "condition"), spread(5, STORES, CONDITIONS))
@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_newest_of_the_log(
    golden_store: Golden, name: str, condition: dict[str, Any], count: int
) -> None:
    with rmqstore.open(golden_store(name)) as store:
        rows = store.scan(scan="commitlog", **condition).read_all()
        found = store.scan(scan="commitlog", **condition, last=count)
        assert found.schema == rows.schema
        assert found.read_all() == rows.slice(max(len(rows) - count, 0))
        assert found.count() == min(count, len(rows))


def test_bounds_and_a_limit_go_with_the_newest(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        within: dict[str, Any] = {
            "assign": {"LivePlain": [0]},
            "starting_offsets": {"LivePlain": {0: 5}},
            "ending_offsets": {"LivePlain": {0: 10}},
            "columns": "queueOffset",
        }
        assert store.scan(**within, last=3).read_all()[0].to_pylist() == [7, 8, 9]
        assert store.scan(**within, last=9).read_all()[0].to_pylist() == [5, 6, 7, 8, 9]
        assert store.scan(**within, last=3, limit=2).read_all()[0].to_pylist() == [7, 8]
        assert store.scan(**within, last=3).count() == 3


def test_few_messages_are_read_for_the_newest(tmp_path: Path) -> None:
    n_rows = 20_000
    with rmqstore.create(tmp_path / "s") as writer:
        columns = {"topic": ["T"] * n_rows, "queueId": [0] * n_rows, "body": [b"x" * 100] * n_rows}
        writer.append(pa.RecordBatch.from_pydict(columns))
    told: list[int] = []

    def report(done: int, _total: int) -> None:
        told.append(done)

    with rmqstore.open(tmp_path / "s") as store:
        assert len(store.scan(last=10, progress=report).read_all()) == 10
        assert told[-1] == 10
        (n_bytes,) = n_written(store.parts.log, [store.parts.ends.log_slice()])
        told.clear()
        assert len(store.scan(last=10, scan="commitlog", progress=report).read_all()) == 10
        assert told[-1] < n_bytes / 4


@pytest.mark.parametrize(
    "arguments",
    [{"last": 0}, {"last": 1, "msg_key": "k"}, {"last": 1, "include_pending": True}],
    ids=str,
)
def test_what_has_no_newest_is_refused(golden_store: Golden, arguments: dict[str, Any]) -> None:
    with rmqstore.open(golden_store("one")) as store, pytest.raises(OptionError, match="last"):
        store.scan(**arguments)


def test_the_newest_with_tiered_storage(golden_store: Golden) -> None:
    root = golden_store("tiered")
    with rmqstore.open(root, tiered=root / "tieredstore") as store:
        every = by_queue(read(store, columns="topic,queueId,queueOffset"))
        found = by_queue(read(store, columns="topic,queueId,queueOffset", last=30))
    assert found == {key: rows[-30:] for key, rows in every.items()}
