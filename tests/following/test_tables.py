"""Tables of a broker: which topics have BatchConsumeQueues, also in tables that are long."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from following.fake_master import TOPICS, log_of
from rmqstore.replica.broker import batch_topics_of
from rmqstore.replica.broker_requests import PackedTable
from rmqstore.replica.queue_builder import write_tables
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.files.disk import Disk

ENTRY = TOPICS["topicConfigTable"]["T"]  # type: ignore[index]


def table(count: int, indent: int | None = None) -> bytes:
    """Return the table of a broker, in which every seventh topic has BatchConsumeQueues."""
    topics = {
        f"topic-{number}": {**ENTRY, "topicName": f"topic-{number}"} for number in range(count)
    }
    for number in range(0, count, 7):
        topics[f"topic-{number}"]["attributes"] = {"queue.type": "BatchCQ"}
    return json.dumps({**TOPICS, "topicConfigTable": topics}, indent=indent).encode()


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("count", [0, 1, 8000])
def test_the_kinds_of_topics_are_known(count: int, indent: int | None) -> None:
    content = table(count, indent)
    assert (len(content) > 1 << 20) == (count > 1000)
    kinds = batch_topics_of(content)
    assert kinds == {f"topic-{number}": not number % 7 for number in range(count)}


DAMAGE = [b"\0", b"{" * 100_000, b'"', b"]]}}", b'"x":{"attributes":5},']


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_long_table_is_read_as_far_as_it_is_valid(damage: bytes) -> None:
    content = table(8000)
    place = content.index(b'"topic-5000":')
    kinds = batch_topics_of(content[:place] + damage + content[place:])
    assert all(kinds[f"topic-{number}"] == (not number % 7) for number in range(5000))


def test_the_table_before_is_kept_as_brokers_keep_it(tmp_path: Path) -> None:
    """Source: ConfigManager.java#persist, MixAll.java#string2File."""
    paths, names = find_store(log_of(1).write(tmp_path / "s")), ("topics.json", "topics.json.bak")
    for count in (1, 2, 2):  # what is the same is not written again
        write_tables(Disk(), paths, {names[0]: PackedTable(table(count))})
    assert [(paths.config / name).read_bytes() for name in names] == [table(2), table(1)]


@pytest.mark.parametrize(
    "content", [b"", b"{}", table(8000), bytes(range(256)) * 1000], ids=range(4)
)
def test_a_table_is_held_as_it_was_sent(content: bytes) -> None:
    held = PackedTable(content)
    assert held.content == content
    assert held == PackedTable(content)
    assert held != PackedTable(content + b" ")


def test_a_table_that_waits_takes_a_part_of_its_size_and_is_read_in_a_few_times_of_it() -> None:
    content = table(60_000)
    tracemalloc.start()
    held = PackedTable(content)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    assert len(batch_topics_of(content)) == 60_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < len(content) // 5
    assert peak < 3 * len(content)
    assert held.content == content
