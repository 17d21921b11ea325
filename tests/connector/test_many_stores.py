"""Reads of many small stores, whose tasks hold several of them; without a Spark session."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, InputPartition

import rmqstore
import store_builder as build
from connector.test_view_read import planned
from mutations import overwrite
from pyspark_rmqstore.batch_reader import FilteringReader
from pyspark_rmqstore.options import parse_read_options
from pyspark_rmqstore.schema import default_schema
from pyspark_rmqstore.view_reader import RmqStoreViewReader
from reading import rows
from rmqstore.errors import CorruptRecordError
from rmqstore.read.views.schema import OF_CLUSTER, OF_MESSAGES, VIEWS

N_STORES = 40
N_MESSAGES = 12
ALL_OF_IT = Counter({f"broker-{number:02}": N_MESSAGES for number in range(N_STORES)})


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    for number in range(N_STORES):
        store = build.Store()
        for message in range(N_MESSAGES):
            keys = build.properties({"KEYS": f"key-{message}", "TAGS": "a"})
            time = build.T0 + 100 * number + message
            store.append(
                build.Record(f"T{number % 2}", message % 3, properties=keys, store_timestamp=time)
            )
        root = store.write(folder / f"broker-{number:02}")
        (root / "brokerIdentity").write_text("")
    return folder


class Read:
    def __init__(self, folder: Path, *filters: object, **options: str) -> None:
        names = {str(root): root.name for root in sorted(folder.iterdir())}
        parsed = parse_read_options(
            {"path": f"{folder}/*", "brokerName": json.dumps(names), **options}
        )
        self.reader = FilteringReader(default_schema(parsed.columns), parsed)
        assert list(self.reader.pushFilters(list(filters))) == []  # type: ignore[arg-type]
        self.tasks = list(self.reader.partitions())

    def rows(self, task: InputPartition) -> list[dict[str, object]]:
        return [row for batch in self.reader.read(task) for row in batch.to_pylist()]

    def counts(self) -> Counter[object]:
        return Counter(row["brokerName"] for task in self.tasks for row in self.rows(task))


@pytest.mark.parametrize(
    "options",
    [{}, {"scan": "commitlog"}, {"msgKey": '["key-1","key-2"]'}, {"includePending": "true"}],
    ids=str,
)
def test_small_stores_share_tasks_in_their_order_and_every_message_comes_once(
    many: Path, options: dict[str, str]
) -> None:
    read = Read(many, **options)
    assert len(read.tasks) == 2  # 40 times 4 MiB, for opening them, in tasks of 128 MiB
    expected = ALL_OF_IT
    if "msgKey" in options:
        expected = Counter(dict.fromkeys(ALL_OF_IT, 2))
    assert read.counts() == expected
    assert [*read.counts()] == sorted(expected)


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
def test_pushed_filters_leave_out_stores(many: Path, scan: str) -> None:
    read = Read(many, EqualTo(("brokerName",), "broker-07"), scan=scan)
    (task,) = read.tasks
    assert {row["brokerName"] for row in read.rows(task)} == {"broker-07"}
    read = Read(many, GreaterThan(("queueOffset",), 2), scan="queue")
    assert read.counts() == Counter(dict.fromkeys(ALL_OF_IT, 3))
    assert len(read.tasks) == 2


def test_damage_is_named_by_its_store(many: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(many, tmp_path / "many"))
    (log,) = (folder / "broker-05" / "commitlog").iterdir()
    overwrite(log, log.read_bytes().index(b"hello"), b"H")
    read = Read(folder)
    with pytest.raises(CorruptRecordError, match="broker-05/commitlog"):
        read.counts()
    lenient = Read(folder, mode="DROPMALFORMED").counts()
    assert lenient == ALL_OF_IT - Counter(["broker-05"])


@pytest.mark.parametrize("view", sorted({*VIEWS} - {*OF_CLUSTER}))
def test_small_stores_share_the_tasks_of_a_view(many: Path, view: str) -> None:
    expected = []
    for root in sorted(many.iterdir()):
        with rmqstore.open(root, broker_name=root.name) as store:
            expected += rows(store.view(view))
    for options in ({}, {"minPartitions": "7"}, {"maxBytesPerPartition": "1k"}):
        reader, tasks = _view(many, view, **options)
        found = [row for task in tasks for row in rows(reader.read(task))]
        if options and view in OF_MESSAGES:  # whose tasks are parts of the log
            found.sort(key=str)
            expected.sort(key=str)
        assert found == expected
        if not options:
            assert len(tasks) <= 2
        elif expected:
            assert len(tasks) >= 7


def _view(
    folder: Path, view: str, **options: str
) -> tuple[RmqStoreViewReader, list[InputPartition]]:
    names = json.dumps({str(root): root.name for root in sorted(folder.iterdir())})
    reader, tasks = planned(path=f"{folder}/*", view=view, brokerName=names, **options)
    return reader, tasks
