"""Views as Spark reads them: rows of the core, in parallel; options without meaning are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import InputPartition

import goldens
import rmqstore
from connector.sparkreads import Golden, GoldenStore, collect
from pyspark_rmqstore.schema import spark_schema
from pyspark_rmqstore.store_options import asks_for_view
from pyspark_rmqstore.view_reader import RmqStoreViewReader, parse_view_options
from reading import rows
from rmqstore import OptionError
from rmqstore.inspect.assignments import assign
from rmqstore.query.allocation import Allocation
from rmqstore.read.views.schema import VIEWS
from rmqstore.source.tasks import StoreTask


def planned(**options: str) -> tuple[RmqStoreViewReader, list[InputPartition]]:
    parsed = parse_view_options(options)
    reader = RmqStoreViewReader(spark_schema(parsed.spec.schema), parsed)
    return reader, list(reader.partitions())


@pytest.mark.parametrize("view", sorted(VIEWS))
@pytest.mark.parametrize("name", ["live", "crash", "lmq"])
def test_a_view_gives_the_rows_of_the_core(golden: Golden, name: str, view: str) -> None:
    path = golden.path(name)
    with rmqstore.open(path) as store:
        expected = rows(store.view(view))
    frame = golden.load(path, view=view)
    assert frame.columns == VIEWS[view].names
    assert sorted(collect(frame), key=str) == sorted(expected, key=str)


def test_a_schema_is_a_projection_with_wider_types(golden: Golden) -> None:
    frame = golden.load(
        "basic", view="queues", schema="queueId long, topic string", subscribe="TopicA"
    )
    expected = {
        (row["queueId"], row["topic"])
        for row in goldens.lines("basic", "expected")
        if row["topic"] == "TopicA"
    }
    assert {(row["queueId"], row["topic"]) for row in frame.collect()} == expected
    with pytest.raises(PySparkException, match="cannot be read as"):
        golden.load("basic", view="queues", schema="queueId string").collect()


def test_views_are_not_streams(golden: Golden, tmp_path: Path) -> None:
    reader = golden.engine.readStream.format("rmqstore").option("view", "queues")
    query = (
        reader.load(str(golden.path("basic")))
        .writeStream.foreachBatch(lambda *_: None)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(PySparkException, match="views are for batch reads"):
        query.processAllAvailable()


def test_tasks_carry_what_planning_found_of_a_crashed_store(golden_store: GoldenStore) -> None:
    """The end of the log and the ends of queues cost a scan, which no task is to repeat."""
    _, (task,) = planned(view="queues", path=str(golden_store("crash")))
    (queues,) = task.tasks
    assert isinstance(queues, StoreTask)
    ends = queues.part.ends
    assert ends is not None
    assert ends.log_end is not None
    assert ends.log_end.physical_offset == goldens.summary("crash")["maxPhyOffset"]
    assert sum(len(units.units) for units in ends.recovered.values()) > 0
    _, (task,) = planned(view="files", path=str(golden_store("crash")))
    (files,) = task.tasks
    assert files.part.ends.recovered == {}  # it shows no queue


@pytest.mark.parametrize(
    ("view", "options", "reason"),
    [
        ("queues", {"startingOffsets": "earliest"},
         "startingOffsets has no meaning with view queues"),
        ("queues", {"scan": "commitlog"}, "scan has no meaning"),
        ("commitlog", {"maxRecordsPerPartition": "5"}, "maxRecordsPerPartition has no meaning"),
        ("commitlog", {"failOnDataLoss": "false"}, "failOnDataLoss has no meaning"),
        ("commitlog", {"includeSystemTopics": "true"}, "includeSystemTopics has no meaning"),
        ("index", {"checkCRC": "true"}, "checkCRC has no meaning with view index"),
        ("queues", {"msgKey": "k"}, "msgKey has no meaning"),
        ("queues", {"startingTimestamp": "0"}, "startingTimestamp has no meaning with view queues"),
        ("queues", {"maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger has no meaning"),
        ("queues", {"subscribe": "A", "assign": '{"A":[0]}'}, "at most one"),
        ("tables", {}, "view 'tables': one of messages, queues"),
        ("queues", {"nonsense": "1"}, "unknown option 'nonsense'"),
    ],
)  # fmt: skip
def test_an_option_without_meaning_is_refused_by_name(
    view: str, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        parse_view_options({"path": "/data", "view": view, **options})


@pytest.mark.parametrize(
    ("view", "options"),
    [
        ("queues", {"subscribePattern": "A.*", "includeSystemTopics": "TRUE"}),
        ("commitlog", {"mode": "dropmalformed", "checkcrc": "false", "ignoreLogEnd": "true"}),
        ("index", {"mode": "PERMISSIVE", "storePathIndex": "/elsewhere"}),
        ("CONSUMEQUEUE",
         {"assign": '{"A":[0]}', "maxBytesPerPartition": "1m", "minPartitions": "3"}),
        ("files", {"columns": "path, size", "brokerName": "b"}),
        ("deadletters", {"startingTimestamp": "-1h", "consumerGroup": "g", "subscribe": "T"}),
        ("deadLetters", {"startingOffsets": '{"T":{"0":1}}', "assign": '{"T":[0]}'}),
    ],
)  # fmt: skip
def test_options_with_meaning_are_taken(view: str, options: dict[str, str]) -> None:
    assert parse_view_options({"path": "/data", "View": view, **options}).spec.view.lower() == (
        view.lower()
    )


def test_messages_are_not_a_view() -> None:
    assert not asks_for_view({"path": "/data"})
    assert not asks_for_view({"VIEW": "Messages"})
    assert asks_for_view({"VIEW": "Queues"})


def test_two_stores_of_one_broker_are_read_once_or_refused(
    golden_store: GoldenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = golden_store("live")
    replica: Any = shutil.copytree(path, tmp_path / "replica")
    reader, tasks = planned(view="queues", paths=f'["{path}", "{replica}"]')
    with rmqstore.open(path) as store:
        assert [row for task in tasks for row in rows(reader.read(task))] == rows(
            store.view("queues")
        )
    assert f"{replica} is not read: it is a replica of broker broker-a" in caplog.text
    other = golden_store("basic")
    names = json.dumps({str(path): "b", str(other): "b"})
    with pytest.raises(OptionError, match="both of broker b") as caught:
        planned(view="queues", paths=f'["{path}", "{other}"]', brokerName=names)
    assert "set brokerName" in str(caught.value)


def test_a_cluster_is_one_task_of_all_its_stores(golden_store: GoldenStore, tmp_path: Path) -> None:
    live, basic = golden_store("live"), golden_store("basic")
    replica = shutil.copytree(live, tmp_path / "replica")
    file = tmp_path / "brokers.toml"
    file.write_text(f'a = ["{live}", "{replica}"]\nb = "{basic}"')
    reader, (task,) = planned(view="stores", brokers=str(file))
    found = rows(reader.read(task))
    assert [(row["brokerName"], row["path"], row["isRead"]) for row in found] == [
        ("a", str(live), True), ("a", str(replica), False), ("b", str(basic), True)
    ]  # fmt: skip
    reader, (task,) = planned(view="routes", brokers=str(file), subscribe="LivePlain")
    assert [row["brokerName"] for row in rows(reader.read(task))] == ["a"]
    group = {"consumerGroup": "CG_part", "clients": '["c1", "c2"]', "strategy": "avg_by_circle"}
    reader, (task,) = planned(view="assignments", brokers=str(file), **group)
    found = rows(reader.read(task))
    assert {row["clientId"] for row in found} == {"c1", "c2"}
    with rmqstore.open(live, broker_name="a") as store:
        shares = assign([store], "CG_part", ["c1", "c2"], allocation=Allocation("AVG_BY_CIRCLE"))
        assert [(row["queueId"], row["lag"]) for row in found] == [
            (row.queue_id, row.lag) for row in shares
        ]
    with pytest.raises(OptionError, match="consumerGroup: name the consumer group"):
        planned(view="assignments", brokers=str(file))
    with pytest.raises(OptionError, match="no topic Nope"):
        planned(view="routes", brokers=str(file), subscribe="Nope")
    with pytest.raises(OptionError, match="clients has no meaning with view routes"):
        planned(view="routes", brokers=str(file), clients="c1")
    with pytest.raises(OptionError, match="group nobody has no offsets"):
        planned(view="assignments", brokers=str(file), **{**group, "consumerGroup": "nobody"})
    with pytest.raises(OptionError, match="no consumer group nobody"):
        planned(view="consumed", brokers=str(file), consumerGroup="nobody")
    with pytest.raises(OptionError, match="no topic Nope"):
        planned(view="groups", brokers=str(file), subscribe="Nope")
