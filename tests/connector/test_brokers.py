"""Reads and streams of a cluster: brokers by name, and of a broker one store."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import store_builder as build
from connector.streams import add, put
from connector.test_stream_planning import Query as StreamQuery
from pyspark_rmqstore.batch_reader import RmqStoreReader
from pyspark_rmqstore.options import parse_read_options
from pyspark_rmqstore.schema import default_schema
from pyspark_rmqstore.store_options import keep_options, options_of_read
from rmqstore.errors import OffsetOutOfRangeError, OptionError
from rmqstore.store.opening import open_for

SCHEMA = StructType().add("brokerName", "string").add("body", "string")


def write_log(root: Path, count: int, body: str = "m") -> Path:
    store = build.Store()
    for number in range(count):
        text = f"{body}{number}".encode()
        store.append(build.Record("T", body=text, store_timestamp=build.T0 + number))
    return store.write(root)


def counts(**options: str) -> Counter[object]:
    parsed = parse_read_options(options)
    reader = RmqStoreReader(default_schema(parsed.columns), parsed)
    return Counter(
        row["brokerName"]
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    )


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    """Return a master, its replica that lags, and the store of another broker."""
    return [
        write_log(tmp_path / "master", 30), write_log(tmp_path / "replica", 20),
        write_log(tmp_path / "other", 7, "other"),
    ]  # fmt: skip


def brokers(first: list[Path], **others: Path) -> str:
    table: dict[str, Any] = {"a": [str(root) for root in first]}
    return json.dumps(table | {name: str(path) for name, path in others.items()})


@pytest.mark.parametrize(
    "options", [{}, {"scan": "commitlog"}, {"includePending": "true"}], ids=str
)
def test_of_a_broker_one_store_is_read(
    roots: list[Path], caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    master, replica, other = roots
    for first in ([master, replica], [replica, master]):
        named = brokers(first, b=other)
        assert counts(brokers=named, **options) == {"a": 30, "b": 7}
        assert f"{replica} is not read: it is a replica of broker a" in caplog.text
        caplog.clear()
    names = json.dumps({str(master): "a", str(replica): "a", str(other): "b"})
    paths = json.dumps([*map(str, roots)])
    assert counts(paths=paths, brokerName=names, **options) == {"a": 30, "b": 7}


def test_brokers_come_from_a_file_and_a_glob(roots: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f'[brokers]\na = "{tmp_path}/[mr]*"\nb = "file:{roots[2]}"\n')
    assert counts(brokers=str(file)) == {"a": 30, "b": 7}


def test_stores_that_disagree_are_refused(roots: list[Path]) -> None:
    with pytest.raises(OptionError, match="both of broker a, but their logs differ") as caught:
        counts(brokers=brokers([roots[0], roots[2]]))
    assert all(str(root) in str(caught.value) for root in (roots[0], roots[2]))
    assert "set brokerName to different names" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"brokers": '{"a": "/x"}', "path": "/y"}, "leave out path"),
        ({"brokers": '{"a": "/x"}', "brokerName": "b"}, "leave out brokerName"),
        ({"brokers": '{"a": "/x", "b": "/x"}'}, "a path of b is named twice"),
        ({"brokers": "/nowhere.toml"}, "nowhere"),
        ({"brokers": '{"a": "https://host/x"}'}, "https"),
        ({"brokers": '{"a": "/x", "b": "/y"}', "storePathIndex": "/i"}, "one store only"),
        ({"brokers": '{"a": "/x"}', "clients": "c"}, "for view assignments only"),
    ],
)
def test_wrong_brokers_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text):
        parse_read_options(options)


def test_tables_keep_their_brokers() -> None:
    options = {"brokers": '{"a": "/x"}'}
    kept = keep_options(SCHEMA, options)
    assert options_of_read({}, kept)["brokers"] == options["brokers"]
    assert "path" in options_of_read({"path": "/y"}, kept)
    assert "brokers" not in options_of_read({"path": "/y"}, kept)
    with pytest.raises(OptionError, match="credentials"):
        keep_options(SCHEMA, {"brokers": '{"a": "s3://key:secret@bucket/x"}'})


class Query(StreamQuery):
    columns = "brokerName string, body string"

    def __init__(self, named: str, offset: dict[str, Any] | None = None, **options: str) -> None:
        super().__init__([], offset, brokers=named, **options)


@pytest.fixture
def grown(tmp_path: Path) -> Callable[[str, list[str]], Path]:
    def grow(name: str, bodies: list[str]) -> Path:
        add(tmp_path / name, ("T", 0, bodies))
        return tmp_path / name

    return grow


def test_a_broker_that_is_missing_is_data_loss(
    grown: Callable[[str, list[str]], Path], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = grown("x", ["a1", "a2"]), grown("y", ["b1", "b2"])
    query = Query(brokers([first], b=second))
    assert len(query.trigger()) == 4
    with pytest.raises(OffsetOutOfRangeError, match="messages of broker b") as caught:
        Query(brokers([first]), query.offset).trigger()
    assert "failOnDataLoss=false" in str(caught.value)
    lenient = Query(brokers([first]), query.offset, failOnDataLoss="false")
    assert lenient.trigger() == lenient.trigger() == []
    assert caplog.text.count("continuing without it") == 1
    with open_for(first, "a") as writer:
        put(writer, "T", 0, ["a3"])
    assert lenient.trigger() == [("a", "a3")]
    # named again, it goes on where it was, unless its log was cut meanwhile, which its mark shows
    assert lenient.offset["log"]["b"] == query.offset["log"]["b"]
    assert Query(brokers([first], b=second), lenient.offset).trigger() == []


def test_a_stream_follows_one_store_of_a_broker(
    grown: Callable[[str, list[str]], Path], tmp_path: Path
) -> None:
    first = grown("x", ["a1", "a2"])
    replica = Path(shutil.copytree(first, tmp_path / "replica"))
    query = Query(brokers([replica, first]))
    assert query.trigger() == [("a", "a1"), ("a", "a2")]
    again = Query(brokers([first]), query.offset)
    assert again.trigger() == []


def test_a_query_takes_up_a_broker_when_it_starts_again(
    grown: Callable[[str, list[str]], Path],
) -> None:
    first, second = grown("x", ["a1", "a2"]), grown("y", ["b1"])
    query = Query(brokers([first]))
    assert query.trigger() == [("a", "a1"), ("a", "a2")]
    assert Query(brokers([first], b=second), query.offset).trigger() == [("b", "b1")]
