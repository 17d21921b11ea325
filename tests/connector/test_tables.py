"""SQL tables and views: which options Spark adds, which ones it keeps, and which ones it loses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from connector.streams import add
from connector.test_stream_read import failure
from live.fake_cluster import FakeCluster, one_queue
from pyspark_rmqstore.options import parse_read_options
from pyspark_rmqstore.source import RmqStoreDataSource
from pyspark_rmqstore.store_options import keep_options, options_of_read, user_options
from reading import column, state
from rmqstore.errors import OptionError
from rmqstore.live.source import BrokerSource
from rmqstore.remoting import Credentials

# What Spark 4.0 to 4.3 hand over for: CREATE TABLE … USING rmqstore OPTIONS (tags 'a') LOCATION
# '/s' COMMENT 'c' TBLPROPERTIES ('colour' = 'red').
CREATED = {
    "location": "file:/s", "path": "file:/s", "option.tags": "a", "tags": "a", "owner": "root",
    "provider": "rmqstore", "comment": "c", "colour": "red", "external": "true",
}  # fmt: skip


@pytest.mark.parametrize("name", ["subscribes", "owners", "colour"])
def test_an_unknown_option_of_a_table_is_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option '{name}'"):
        RmqStoreDataSource({**CREATED, f"option.{name}": "1"}).schema()
    with pytest.raises(OptionError, match="unknown option 'subscribes', did you mean subscribe"):
        RmqStoreDataSource({"path": "/s", "subscribes": "1"}).schema()


def test_a_schema_keeps_the_explicit_options_of_a_table_alone() -> None:
    assert user_options(CREATED) == {"tags": "a", "path": "file:/s"}
    assert user_options({"Tags": "a", "owner": "x"}) == {"Tags": "a", "owner": "x"}
    kept = RmqStoreDataSource(CREATED).schema()
    assert options_of_read({}, kept) == {"tags": "a", "path": "file:/s"}
    assert options_of_read({"Tags": "b", "mode": "FAILFAST"}, kept) == {
        "tags": "b", "path": "file:/s", "mode": "FAILFAST",
    }  # fmt: skip
    assert options_of_read({"path": "/other"}, kept) == {"path": "/other"}
    assert kept.fields[0].metadata["comment"] == "table of file:/s; tags=a"  # DESCRIBE shows it
    plain = RmqStoreDataSource({"path": "/s"}).schema()
    assert not any(field.metadata for field in plain)
    assert options_of_read({}, plain) == {}
    assert [(one.name, one.dataType) for one in kept] == [(one.name, one.dataType) for one in plain]


def test_a_write_never_takes_the_options_of_the_table_that_its_rows_come_from() -> None:
    schema = keep_options(StructType().add("body", "string"), {"path": "/of/another/table"})
    for make in (
        RmqStoreDataSource({"topic": "T"}).writer,
        RmqStoreDataSource({"topic": "T"}).streamWriter,
    ):
        with pytest.raises(OptionError, match=r"INSERT INTO t WITH \(path"):
            make(schema, overwrite=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    add(tmp_path / "a store", ("A", 0, ["a0", "a1"]), ("B", 0, ["b0"]))
    return tmp_path / "a store"


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    for name in ("messages", "others", "declared"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    spark.catalog.dropTempView("opened")


def bodies(spark: SparkSession, query: str) -> list[str]:
    return sorted(row[0] for row in spark.sql(query).collect())


@pytest.mark.spark
def test_a_table_reads_with_its_options_and_dropping_it_keeps_the_store(
    sql: SparkSession, root: Path
) -> None:
    before = state(root)
    sql.sql(f"CREATE TABLE messages USING rmqstore OPTIONS (path '{root}', subscribe 'A')")
    sql.sql(
        "CREATE TABLE others USING rmqstore OPTIONS (subscribe 'A') "
        f"LOCATION '{root}' TBLPROPERTIES ('x' = 'y')"
    )
    sql.sql(f"CREATE TEMPORARY VIEW opened USING rmqstore OPTIONS (path '{root}', subscribe 'A')")
    assert bodies(sql, "SELECT string(body) FROM opened") == ["a0", "a1"]
    for options, expected in (
        ("", ["a0", "a1"]),
        ('WITH (startingOffsets = \'{"A":{"0":1}}\')', ["a1"]),
        (f"WITH (path = '{root}')", ["a0", "a1", "b0"]),
    ):
        reads = [f"SELECT '{table}: ' || string(body) FROM {table} {options}"
                 for table in ("messages", "others")]  # fmt: skip
        assert bodies(sql, " UNION ALL ".join(reads)) == [
            f"{table}: {body}" for table in ("messages", "others") for body in expected
        ]
    for table in ("messages", "others"):
        sql.sql(f"DROP TABLE {table}")
    assert state(root) == before


@pytest.mark.spark
def test_a_table_may_be_a_view_of_a_store_and_a_stream(
    sql: SparkSession, root: Path, tmp_path: Path
) -> None:
    sql.sql(f"CREATE TABLE others USING rmqstore OPTIONS (view 'topics') LOCATION '{root}'")
    assert bodies(sql, "SELECT topic FROM others") == ["A", "B"]
    sql.sql(
        "CREATE TABLE messages USING rmqstore "
        f"OPTIONS (startingOffsets 'earliest') LOCATION '{root}'"
    )
    writer = (
        sql.readStream.table("messages").selectExpr("string(body)").writeStream.format("memory")
    )
    writer = writer.option("checkpointLocation", str(tmp_path / "state")).queryName("opened")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert bodies(sql, "SELECT * FROM opened") == ["a0", "a1", "b0"]


@pytest.mark.spark
def test_an_insert_names_the_store_or_goes_through_a_temporary_view(
    sql: SparkSession, root: Path
) -> None:
    sql.sql(f"CREATE TABLE messages USING rmqstore LOCATION '{root}'")
    sql.sql(f"CREATE TEMPORARY VIEW opened USING rmqstore OPTIONS (path '{root}')")
    sql.sql(f"INSERT INTO messages WITH (path = '{root}') (topic, body) VALUES ('A', binary('a2'))")
    sql.sql(f"CREATE TABLE others USING rmqstore LOCATION '{root.parent / 'other'}'")
    sql.sql(
        f"INSERT INTO others WITH (path = '{root.parent / 'other'}') "
        "SELECT * FROM messages WHERE topic = 'B'"
    )
    names = sql.table("opened").columns
    row = ", ".join({"topic": "'A'", "body": "binary('a3')"}.get(name, "NULL") for name in names)
    sql.sql(f"INSERT INTO opened VALUES ({row})")
    for path, topic, written in (
        (root, "A", [b"a0", b"a1", b"a2", b"a3"]),
        (root.parent / "other", "B", [b"b0"]),
    ):
        assert column(path, "body", subscribe=topic) == written


@pytest.mark.spark
def test_what_spark_keeps_from_the_source_is_refused_and_writes_nothing(
    sql: SparkSession, root: Path
) -> None:
    sql.sql(f"CREATE TABLE messages USING rmqstore LOCATION '{root}'")
    sql.sql(f"CREATE TABLE others USING rmqstore LOCATION '{root.parent / 'other'}'")
    sql.sql(f"CREATE TABLE declared (topic string) USING rmqstore LOCATION '{root}'")
    before = state(root)
    for statement, text in [
        ("INSERT INTO others SELECT * FROM messages", "INSERT INTO t WITH"),
        ("INSERT INTO messages (topic, body) VALUES ('A', binary('x'))", "INSERT INTO t WITH"),
        ("INSERT OVERWRITE messages SELECT * FROM messages", "can only be appended to"),
        (
            "CREATE TABLE third USING rmqstore LOCATION '/third' AS SELECT 'T' topic, 'x' body",
            "INSERT INTO t WITH",
        ),
        ("SELECT * FROM declared", "without a list of columns"),
    ]:
        assert text in failure(lambda statement=statement: sql.sql(statement).collect()), statement
        assert state(root) == before
        assert not (root.parent / "other").exists()


def test_a_table_keeps_no_credentials_of_a_uri() -> None:
    schema = StructType().add("body", "string")
    with pytest.raises(OptionError, match="credentials do not belong in a URI") as refused:
        keep_options(schema, {"path": "s3://KEY:SECRET@bucket/x"})
    assert "SECRET" not in str(refused.value)


def table_of(path: str, storage_options: str) -> StructType:
    stated = {"path": path, "storageOptions": storage_options}
    options = {**CREATED, **{f"option.{key}": value for key, value in stated.items()}, **stated}
    del options["location"]
    return RmqStoreDataSource(options).schema()


def test_a_table_of_running_brokers_keeps_who_asks_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = "rocketmq://ns1:9876;ns2:9876"
    kept = options_of_read({}, table_of(path, '{"access_key": "user", "timeout": 3}'))
    assert kept["path"] == path
    for name in ("secret_key", "security_token"):
        given = f'{{"access_key": "user", "{name}": "hidden"}}'
        with pytest.raises(
            OptionError, match=rf"{name} would be stored.*ROCKETMQ_SECRET_KEY"
        ) as no:
            table_of(path, given)
        assert "hidden" not in str(no.value)
    with pytest.raises(OptionError, match="unknown secretkey"):
        table_of(path, '{"secretkey": "hidden"}')
    with pytest.raises(OptionError, match="credentials do not belong in an address"):
        table_of("rocketmq://user:hidden@ns1:9876", "{}")
    # As a query reads it.
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "hidden")
    source = parse_read_options(kept).source
    assert isinstance(source, BrokerSource)
    live = source.location
    assert live.endpoint(live.name_servers[0]).credentials == Credentials("user", "hidden")


@pytest.mark.spark
def test_a_table_of_running_brokers_is_read_and_written(sql: SparkSession) -> None:
    with FakeCluster({"a": one_queue(30, topic="A")}) as fake:
        uri = f"{fake.uri};{fake.names.address}"
        sql.sql(f"CREATE TABLE messages USING rmqstore OPTIONS (path '{uri}', subscribe 'A')")
        sql.sql(f"CREATE TABLE others USING rmqstore OPTIONS (subscribe 'A') LOCATION '{uri}'")
        for table in ("messages", "others"):
            (row,) = sql.sql(f"SELECT count(*), max(queueOffset) FROM {table}").collect()
            assert tuple(row) == (30, 29)
        options = f"path = '{uri}', queueSelector = 'roundrobin'"
        sql.sql(f"INSERT INTO messages WITH ({options}) (topic, body) VALUES ('A', binary('x'))")
        assert fake.brokers["a"].queues["A", 0].end == 31


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("s3://bucket/x", "storageOptions: 'secretkey' is not an option of s3://, which has endpo"),
        ("hdfs://host/x", "storageOptions: 'secretkey' is not an option of hdfs://, which has us"),
        ("/x", "storageOptions: a store on the local disk takes none"),
    ],
)
def test_a_table_keeps_no_unknown_options_of_its_storage(path: str, text: str) -> None:
    with pytest.raises(OptionError, match=text) as refused:
        table_of(path, '{"secretkey": "hidden"}')
    assert "hidden" not in str(refused.value)
