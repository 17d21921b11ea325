"""What a notebook shows of messages, queues and running brokers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import rmqstore
import store_builder as build
from goldens import Golden
from live.fake_cluster import FakeCluster
from rmqstore.notebook import table

MARKUP = "<script>alert(1)</script>"


def rows_of(shown: str) -> list[list[str]]:
    """Return the cells of the rows of a table, without its headers."""
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in shown.split("<tr>")[2:]]


def marked_up_store(tmp_path: Path, count: int = 1) -> Path:
    """Return a store of messages whose tags, keys and bodies are markup."""
    store = build.Store(segment_bytes=1 << 20)
    properties = build.properties({"TAGS": MARKUP, "KEYS": MARKUP, "a": "<b>" * 1000})
    for _ in range(count):
        body = MARKUP.encode() + b"x" * 10_000
        store.append(build.Record(topic="T", body=body, properties=properties))
    return store.write(tmp_path / "s")


def test_a_table_cuts_long_texts_and_escapes_all() -> None:
    shown = table(["<a>"], [["é" * 61], ["é" * 60], ["é".encode() * 61], [None]], types=["<t>"])
    assert "<th>&lt;a&gt;<br><small>&lt;t&gt;</small></th>" in shown
    assert rows_of(shown) == [["é" * 60 + "…"], ["é" * 60], ["é" * 60 + "…"], ["None"]]
    assert rows_of(table(["a"], [], n_left_out=3)) == [["and 3 more"]]


def test_a_message_is_a_table_of_its_columns(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        message = store.query("LivePlain", "key-1")[0]
    cells = dict(rows_of(message._repr_html_()))
    assert [*cells] == [*message._fields]
    assert cells["keys"] == "key-1"
    assert cells["storeTimestamp"] == str(message.storeTimestamp)
    assert cells["body"].startswith("plain 1 word")


def test_what_is_in_a_message_is_shown_as_text_and_cut(tmp_path: Path) -> None:
    with rmqstore.open(marked_up_store(tmp_path)) as store:
        shown = store.get(0)._repr_html_()
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;xxx" in shown
    assert len(shown) < 10_000


def test_a_look_up_is_a_table_of_the_first_messages(golden_store: Golden, tmp_path: Path) -> None:
    with rmqstore.open(golden_store("live")) as store:
        found = store.query("LiveRetry", "retry-3")
        shown = found._repr_html_()
    assert shown.startswith("<div>QueryResult of 1 messages</div><table>")
    (row,) = rows_of(shown)
    message = found[0]
    expected = message.topic, message.queueId, message.queueOffset, message.tags, message.keys
    assert row[:5] == [str(value) for value in expected]
    with rmqstore.open(marked_up_store(tmp_path, 23)) as store:
        shown = store.query("T", MARKUP, scan_uncovered=True)._repr_html_()
        nothing = store.query("T", "nowhere", scan_uncovered=True)
    assert "<script>" not in shown
    assert len(rows_of(shown)) == 21
    assert rows_of(shown)[-1] == ["and 3 more"]
    assert rows_of(nothing._repr_html_()) == []


def test_queues_are_a_table_whose_times_are_times(tmp_path: Path) -> None:
    store = build.Store()
    store.append(build.Record(topic="T<", store_timestamp=build.T0))
    store.append(build.Record(topic="T<", store_timestamp=build.T0 + 1500))
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        queues = opened.queues("T<")
    (queue,) = queues
    first = datetime.fromtimestamp(build.T0 // 1000, UTC)
    assert queue.first_store_timestamp == first
    assert queue.last_store_timestamp == first.replace(second=first.second + 1, microsecond=500_000)
    shown = ["T&lt;", "0", "0", "2", str(first), str(queue.last_store_timestamp)]
    assert rows_of(queue._repr_html_()) == [[*shown, str(queue.n_bytes)]]
    assert queues._repr_html_() == queue._repr_html_()
    assert isinstance(queues, list)


def test_a_topic_of_many_queues_shows_the_first(tmp_path: Path) -> None:
    store = build.filled(build.Record(topic="T", queue_id=queue_id) for queue_id in range(25))
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        rows = rows_of(opened.queues("T")._repr_html_())
    assert [row[1] for row in rows[:-1]] == [str(queue_id) for queue_id in range(20)]
    assert rows[-1] == ["and 5 more"]


def test_running_brokers_are_a_table_of_their_topics() -> None:
    store, other = build.Store(), build.Store()
    for topic in ("T", "A<b>", "%RETRY%g"):
        store.append(build.Record(topic=topic, queue_id=2))
    other.append(build.Record(topic="T"))
    with FakeCluster({"a": store, "b": other}) as fake:
        with fake.open() as cluster:
            shown = cluster._repr_html_()
            assert shown.startswith(f"<div>LiveCluster(&#x27;{fake.uri}&#x27;)</div><table>")
            assert rows_of(shown) == [["A&lt;b&gt;", "3"], ["T", "4"], ["%RETRY%g", "3"]]
        assert "was closed: open it again" in cluster._repr_html_()
        cluster = fake.open()
    with cluster:  # the name server is gone
        shown = cluster._repr_html_()
    assert "<table>" not in shown
    assert str(fake.names.address) in shown.partition("</div>")[2]
