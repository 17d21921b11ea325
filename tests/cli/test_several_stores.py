"""Verbs that read several stores at once: stat, dump, query, export."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rmqstore
from command_line import refusal, rows, run, success


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    """Return the stores of two brokers, a replica of the first one in between."""
    roots = []
    for name, counts in (("x", {"T": 5, "U": 3}), ("y", {"T": 2, "V": 4})):
        with rmqstore.create(tmp_path / name) as writer:
            for topic, count in counts.items():
                bodies = [f"{name}{number}" for number in range(count)]
                keys = [f"k{number % 2}" for number in range(count)]
                table = {"topic": [topic] * count, "body": bodies, "keys": keys}
                writer.append(pa.table(table))
        roots.append(tmp_path / name)
    replica = Path(shutil.copytree(roots[0], tmp_path / "replica"))
    brokers = {"a": [str(replica), str(roots[0])], "b": str(roots[1])}
    (tmp_path / "brokers.json").write_text(json.dumps(brokers))
    return roots


def test_a_pattern_that_no_shell_replaced_names_stores(
    stores: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows("dump", tmp_path / "[xy]") == rows("dump", *stores)
    assert rows("stat", stores[0], tmp_path / "?") == rows("stat", *stores)
    monkeypatch.chdir(tmp_path)
    offset = rows("dump", stores[1], "-n", 1)[0]["commitLogOffset"]
    assert rows("get", "[xy]", offset) == rows("get", *stores, offset)
    assert "'z*' does not match any folder" in run("brokers", "z*").stderr
    assert "Path '[xy]' does not exist" in run("verify", "[xy]").stderr  # which takes one store
    stores[0].rename("[x]")
    assert rows("dump", "[x]", "--columns", "body") == rows(
        "dump", stores[0].with_name("[x]"), "--columns", "body"
    )


def test_dump_and_export_give_the_messages_of_all(stores: list[Path], tmp_path: Path) -> None:
    found = rows("dump", *stores)
    assert Counter((row["brokerName"], row["topic"]) for row in found) == {
        ("x", "T"): 5, ("x", "U"): 3, ("y", "T"): 2, ("y", "V"): 4
    }  # fmt: skip
    named = rows("dump", "--brokers", tmp_path / "brokers.json", "-t", "[TV]")
    assert Counter((row["brokerName"], row["topic"]) for row in named) == {
        ("a", "T"): 5, ("b", "T"): 2, ("b", "V"): 4
    }  # fmt: skip
    assert len(rows("dump", *stores, "-t", "T", "-n", 6)) == 6
    assert [row["body"] for row in rows("dump", *stores, "-t", "T", "--last", 1, "-i", 0)] == [
        "x4", "y0"
    ]  # fmt: skip
    target = tmp_path / "all.parquet"
    success("export", *stores, target, "-t", "T", "-t", "V")
    assert pq.read_table(target).num_rows == 11
    assert "no topic absent in brokers x, y" in refusal("dump", *stores, "-t", "absent")
    followed = rows("dump", *stores, "--follow", "-t", "T", "--last", 1, "-i", 0, "-n", 2)
    assert [(row["brokerName"], row["body"]) for row in followed] == [("x", "x4"), ("y", "y0")]


def test_stat_shows_the_queues_of_all(stores: list[Path]) -> None:
    found = rows("stat", *stores, "-t", "T")
    assert Counter(row["brokerName"] for row in found) == {"x": 4, "y": 2}
    assert sum(row["messages"] for row in found) == 7
    table = run("stat", *stores).stdout
    assert "brokerName" in table
    assert f"x ({stores[0]}):" in table
    assert "brokerName" not in run("stat", stores[0]).stdout


def test_query_finds_messages_of_all_in_the_order_of_time(stores: list[Path]) -> None:
    found = rows("query", *stores, "-k", "k1")
    assert sorted(row["body"] for row in found) == ["x1", "x1", "x3", "y1", "y1", "y3"]
    times = [row["storeTimestamp"] for row in found]
    assert times == sorted(times)
    of_topic = rows("query", *stores, "-t", "V", "-k", "k1", "--columns", "brokerName,body")
    assert of_topic == [{"brokerName": "y", "body": "y1"}, {"brokerName": "y", "body": "y3"}]
    newest = rows("query", *stores, "-k", "k1", "-n", 2)
    assert [row["brokerName"] for row in newest] == ["y", "y"]
    assert "brokerName" in run("query", *stores, "-k", "k1").stdout
    at_time = rows("query", *stores, "-t", "T", "--time", "2000-01-01")
    assert Counter(row["brokerName"] for row in at_time) == {"x": 4, "y": 2}
    one = rows("query", stores[0], "-t", "T", "--time", "2000-01-01")
    assert {*one[0]} == {"topic", "queueId", "timestamp", "queueOffset"}


def test_a_file_of_brokers_may_have_patterns(stores: list[Path], tmp_path: Path) -> None:
    (tmp_path / "brokers.json").write_text(json.dumps({"a": [f"{tmp_path}/[x]"]}))
    (row,) = rows("brokers", "--brokers", tmp_path / "brokers.json")
    assert (row["brokerName"], row["path"]) == ("a", str(stores[0]))
    (tmp_path / "brokers.json").write_text(json.dumps({"a": f"{tmp_path}/none-*"}))
    assert "does not match any folder" in refusal("brokers", "--brokers", tmp_path / "brokers.json")


def test_get_and_trace_search_all_stores(stores: list[Path], tmp_path: Path) -> None:
    (of_y,) = (row for row in rows("dump", stores[1], "-t", "V") if row["body"] == "y3")
    shown = rows("get", *stores, of_y["msgId"], "--columns", "brokerName,body")
    assert shown == [{"brokerName": "y", "body": "y3"}]
    brokers = tmp_path / "brokers.json"
    named = rows("get", of_y["msgId"], "--brokers", brokers, "--columns", "brokerName,body")
    assert named == [{"brokerName": "b", "body": "y3"}]
    (traced,) = rows("trace", *stores, of_y["msgId"])
    assert (traced["brokerName"], traced["kind"], traced["topic"]) == ("y", "message", "V")
    assert "brokerName" not in rows("trace", stores[1], of_y["msgId"])[0]
    for verb, kind in (("get", "not found"), ("trace", "error")):
        said = refusal(verb, *stores, "no-such-id")
        assert said == f"{kind}: no-such-id: no message has this id\n"
