"""What a scan gives: rows that are read anew each time, by whatever knows Arrow."""

from __future__ import annotations

import gc
import os
import re
import sys
import weakref
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import goldens
import rmqstore
import store_builder as build
from goldens import Golden
from rmqstore.errors import OptionError, RmqStoreError
from rmqstore.read import parts

COLUMNS = "topic,queueId,queueOffset,commitLogOffset"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in goldens.FOLDER.glob("*.tar.xz"))


def test_pandas_polars_and_duckdb_take_a_scan_any_number_of_times(golden_store: Golden) -> None:
    expected = len(goldens.lines("basic", "expected"))
    with rmqstore.open(golden_store("basic")) as store:
        scan = store.scan(columns=COLUMNS, include_system_topics=True)
        table = scan.to_arrow()
        assert table.num_rows == expected
        assert scan.read_all() == table
        assert scan.to_pandas().equals(table.to_pandas())
        assert scan.read_pandas().equals(table.to_pandas())
        assert scan.to_polars().equals(pl.DataFrame(table))
        assert pl.DataFrame(scan).height == expected
        assert len(pd.DataFrame.from_arrow(scan)) == expected
        relation = duckdb.sql("SELECT topic, count(*) AS n FROM scan GROUP BY topic")
        first, again = relation.fetchall(), relation.fetchall()
        assert sorted(first) == sorted(again)
        assert sum(count for _, count in first) == expected
        counts = duckdb.sql("SELECT max(queueOffset) FROM scan WHERE topic = 'TopicA'").fetchall()
        of_topic = table.filter(pc.field("topic") == "TopicA")
        assert counts == [(pc.max(of_topic["queueOffset"]).as_py(),)]
        joined = duckdb.sql(
            "SELECT count(*) FROM scan AS a JOIN scan AS b USING (topic, queueId, queueOffset)"
        )
        assert joined.fetchall() == [(expected,)]


def test_a_scan_has_everything_that_a_reader_has(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("basic")) as store, store.scan(columns=COLUMNS) as scan:
        reader = scan.reader()
        assert isinstance(reader, pa.RecordBatchReader)
        names = {name for name in dir(reader) if not name.startswith("_")}
        of_files = {name for name in names if name.endswith("_with_custom_metadata")}
        assert names - {"from_batches", "from_stream"} - of_files <= {*dir(scan)}
        batches = [*scan]
        assert batches == [*scan] == [*reader]
        assert len(batches) > 2
        assert [scan.read_next_batch(), next(scan)] == batches[:2]
        assert scan.read_all() == pa.Table.from_batches(batches)
        for _ in batches[2:]:
            scan.read_next_batch()
        for _ in range(2):
            with pytest.raises(StopIteration):
                scan.read_next_batch()
        scan.close()
        assert scan.read_next_batch() == batches[0]
        wide = scan.schema.set(1, pa.field("queueId", pa.int64()))
        assert scan.cast(wide).read_all().schema == wide
        assert pa.table(scan) == scan.to_arrow()
        assert pa.RecordBatchReader.from_stream(scan).schema == scan.schema
        assert repr(scan) == "Scan of topic, queueId, queueOffset, commitLogOffset"


@pytest.mark.parametrize("n", [0, 1, 5, 10_000])
def test_the_first_rows(golden_store: Golden, n: int) -> None:
    with rmqstore.open(golden_store("basic")) as store:
        scan = store.scan(columns=COLUMNS)
        assert scan.head(n) == scan.to_arrow().slice(0, n)
        assert scan.head().num_rows == 5
        few = store.scan(columns=COLUMNS, limit=3)
        assert few.head(n) == few.to_arrow().slice(0, n)
        assert few.count() == few.to_arrow().num_rows == 3
        with pytest.raises(OptionError, match="must not be negative"):
            scan.head(-1)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("order", ["queue", "commitlog"])
def test_a_scan_is_read_as_the_store_is_by_then(
    tmp_path: Path, order: str, *, is_closed: bool
) -> None:
    rows = pa.table({"topic": ["T"] * 3, "body": [b"a", b"b", b"c"]})
    root = tmp_path / "s"

    def leave() -> None:
        if not is_closed:  # as a broker that runs
            (root / "abort").touch()

    with rmqstore.create(root) as writer:
        writer.append(rows)
    leave()
    store = rmqstore.open(root)
    scan = store.scan(columns="body", scan=order)
    assert scan.count() == scan.to_arrow().num_rows == 3
    (root / "abort").unlink(missing_ok=True)
    with rmqstore.open(root, mode="a") as writer:
        writer.append(rows)
    leave()
    store.refresh()
    assert scan.count() == scan.to_arrow().num_rows == 6


def test_a_store_that_a_broker_has_opened_since_is_looked_at_again(tmp_path: Path) -> None:
    """Its log has a message then that its queue does not have yet."""
    made = build.filled(build.Record() for _ in range(5))
    root = made.write(tmp_path / "s")
    with rmqstore.open(root) as store:
        assert store.count() == 5
        made.append(build.Record())
        (root / "abort").touch()
        (root / "commitlog" / f"{0:020d}").write_bytes(made.segments[0])
        assert store.count() == store.scan().to_arrow().num_rows == 6


def test_a_store_that_was_replaced_is_read_after_a_refresh(tmp_path: Path) -> None:
    for name, count in (("s", 40), ("other", 30)):
        with rmqstore.create(tmp_path / name) as writer:
            writer.append(pa.table({"topic": ["T"] * count, "body": [b"a"] * count}))
        (tmp_path / name / "abort").touch()
    store = rmqstore.open(tmp_path / "s")
    assert store.scan(scan="commitlog").to_arrow().num_rows == 40
    (tmp_path / "s").rename(tmp_path / "old")
    (tmp_path / "other").rename(tmp_path / "s")
    store.refresh()
    assert store.scan(scan="commitlog").to_arrow().num_rows == 30


@pytest.mark.parametrize("name", NAMES)
def test_a_count_is_the_number_of_rows(golden_store: Golden, name: str) -> None:
    """Where the rows cannot be read, a count by the ends of queues may still be given."""
    options = [
        {}, {"include_system_topics": True}, {"limit": 7}, {"scan": "commitlog"},
        {"mode": "DROPMALFORMED", "include_system_topics": True}, {"mode": "PERMISSIVE"},
        {"where": "queueOffset > 3"}, {"tags": "TagA"}, {"fail_on_data_loss": False},
        {"starting_timestamp": "2020-01-01"}, {"starting_physical_offset": 5000},
    ]  # fmt: skip
    with rmqstore.open(golden_store(name)) as store:
        for given in options:
            try:
                rows = store.scan(**given).to_arrow().num_rows
            except RmqStoreError:
                continue
            assert store.scan(**given).count() == rows, given
            assert store.count(**given) == rows, given


def test_a_count_reads_no_message_where_queues_tell_it(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rmqstore.open(golden_store("basic")) as store:
        expected = store.scan().to_arrow().num_rows
        monkeypatch.setattr(parts, "read_queues", lambda *_: iter(()))
        assert store.count(where="queueOffset > 3") == 0
        assert store.scan(limit=5).count() == 5
        assert store.scan().count() == store.count() == expected
        assert store.count(subscribe="TopicA") < expected


def test_bounds_by_physical_offset(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("basic")) as store:
        every = store.scan(columns=COLUMNS).to_arrow()
        places = sorted(every["commitLogOffset"].to_pylist())
        of_queue_0 = [row["commitLogOffset"] for row in every.to_pylist() if not row["queueId"]]
        low, high = places[100], next(place for place in of_queue_0 if place > places[300])
        for where in (None, "queueId = 0", pc.field("queueId") == 0):
            for by in ("queue", "commitlog"):
                scan = store.scan(
                    columns=COLUMNS,
                    where=where,
                    scan=by,
                    starting_physical_offset=low,
                    ending_physical_offset=high,
                )
                found = sorted(scan.to_arrow()["commitLogOffset"].to_pylist())
                rows = store.scan(columns=COLUMNS, where=where, scan=by).to_arrow()
                inside = [
                    place for place in rows["commitLogOffset"].to_pylist() if low <= place < high
                ]
                assert found == sorted(inside)
                assert found
                assert scan.count() == len(found)
        names = {"columns": "topic"}
        assert store.count(starting_physical_offset=low, **names) == len(every) - 100
        assert store.count(ending_physical_offset=high, **names) == places.index(high)
        both = {"starting_physical_offset": low, "ending_physical_offset": low}
        assert store.scan(**both).to_arrow().num_rows == 0


def test_a_view_is_a_scan(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("basic")) as store:
        queues = store.view("queues")
        assert queues.count() == len(queues.to_pandas()) == queues.to_polars().height > 0
        named = duckdb.sql("SELECT count(*) FROM queues WHERE messages > 0").fetchall()
        assert named == [(store.view("queues", where="messages > 0").count(),)]


def test_a_cluster_gives_scans(golden_store: Golden) -> None:
    with rmqstore.open_cluster(
        {"a": golden_store("basic"), "b": golden_store("batch-cq")}
    ) as cluster:
        scan = cluster.scan(columns="brokerName,topic,queueOffset")
        table = scan.to_arrow()
        assert scan.count() == cluster.count() == table.num_rows > 0
        assert scan.to_arrow() == table
        assert {*table["brokerName"].to_pylist()} == {"a", "b"}
        n_of_a = cluster.stores["a"].count()
        for limit in (3, n_of_a, n_of_a + 2, table.num_rows + 1):
            few = cluster.scan(limit=limit)
            assert few.count() == few.to_arrow().num_rows == min(limit, table.num_rows)
        permissive = cluster.scan(mode="PERMISSIVE", columns="topic")
        assert permissive.schema.names == permissive.to_arrow().schema.names
        assert cluster.view("queues").count() == cluster.view("queues").to_arrow().num_rows


def test_what_a_scan_holds_open_goes_with_it(golden_store: Golden) -> None:
    def n_open() -> int:
        links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
        maps = Path("/proc/self/maps").read_text().splitlines()
        return sum("/commitlog/" in text for text in (*map(os.readlink, links), *maps))

    gc.collect()
    before = n_open()
    scan = rmqstore.open(golden_store("default-sizes")).scan()
    scan.read_next_batch()
    assert n_open() > before
    gone = weakref.ref(scan)
    del scan
    gc.collect()
    assert gone() is None
    assert n_open() == before


@pytest.mark.parametrize(
    ("module", "read", "cure"),
    [
        ("polars", "to_polars", "pip install 'pyspark-rmqstore[polars]'"),
        ("pandas", "to_pandas", "pip install pandas"),
        ("pandas", "read_pandas", "pip install pandas"),
    ],
)
def test_a_missing_library_is_named_with_what_installs_it(
    golden_store: Golden, monkeypatch: pytest.MonkeyPatch, module: str, read: str, cure: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with (
        rmqstore.open(golden_store("one")) as store,
        pytest.raises(RmqStoreError, match=re.escape(cure)),
    ):
        getattr(store.scan(), read)()


@pytest.mark.parametrize(
    ("bounds", "complaint"),
    [
        ({"starting_physical_offset": -1}, "starting_physical_offset -1: it must be an integer"),
        ({"ending_physical_offset": -1}, "ending_physical_offset -1: it must be an integer"),
        (
            {"starting_physical_offset": 900, "ending_physical_offset": 100},
            "starting_physical_offset 900: lies after the end 100",
        ),
    ],
)
def test_bounds_by_physical_offset_that_leave_nothing_are_refused(
    golden_store: Golden, bounds: dict[str, int], complaint: str
) -> None:
    with rmqstore.open(golden_store("basic")) as store, pytest.raises(OptionError, match=complaint):
        store.scan(**bounds)  # type: ignore[arg-type]


def test_a_scan_in_a_notebook_shows_columns_and_the_first_rows(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        shown = store.scan(subscribe="LivePlain")._repr_html_()
        assert shown.count("<tr>") == 6
        assert "<th>queueOffset<br><small>int64</small></th>" in shown
        assert "<td>LivePlain</td>" in shown
        assert "plain 0 word611" in shown
        assert len(shown) < 10_000
        searched = store.scan(subscribe="LivePlain", where="queueOffset = 3")._repr_html_()
        assert "head() reads the first rows" in searched
        assert "<td>" not in searched


def test_a_scan_has_no_length_and_names_count(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        scan = store.scan()
        with pytest.raises(TypeError, match=re.escape("count() returns its rows")):
            len(scan)
        assert scan


def test_the_column_with_the_damage_may_be_named_in_its_place(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("crash2"), ignore_log_end=True) as store:
        options = {"scan": "commitlog", "mode": "PERMISSIVE"}
        table = store.scan(columns="topic, _corrupt_record,body", **options).read_all()
        assert table.column_names == ["topic", "_corrupt_record", "body"]
        assert sum(reason is not None for reason in table["_corrupt_record"].to_pylist()) == 1
        alone = store.scan(columns=["_corrupt_record"], **options).read_all()
        assert alone["_corrupt_record"].to_pylist() == table["_corrupt_record"].to_pylist()
        with pytest.raises(OptionError, match="_corrupt_record"):
            store.scan(columns="_corrupt_record")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"column_name_of_corrupt_record": "body"}, "no column of a message has"),
        ({"column_name_of_corrupt_record": ""}, "no column of a message has"),
        ({"index_only": True}, "give msg_key, msg_id or msg_tags too"),
    ],
    ids=str,
)
def test_arguments_that_spark_refuses_are_refused(
    golden_store: Golden, arguments: dict[str, Any], named: str
) -> None:
    with rmqstore.open(golden_store("basic")) as store, pytest.raises(OptionError, match=named):
        store.scan(**arguments)
