"""Stores in S3, in batches, views and streams."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from connector import sparkreads
from connector.engine import Engine
from connector.sparkreads import GoldenStore
from connector.streams import rows_of
from pyspark_rmqstore.batch_reader import RmqStoreReader
from pyspark_rmqstore.options import parse_read_options
from pyspark_rmqstore.paths import absolute_path, store_path
from pyspark_rmqstore.s3a import s3a_options
from pyspark_rmqstore.schema import default_schema
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.options import json_object
from s3_server import BUCKET, KEYS, S3Server


def test_a_store_in_s3_is_read_by_queue_by_log_and_as_a_view(
    engine: Engine, s3: S3Server, golden_store: GoldenStore
) -> None:
    root = golden_store("basic")
    uri = s3.upload(root)
    in_s3 = {"storageOptions": s3.options}
    everything = {"includeSystemTopics": "true", "minPartitions": "3"}
    for options in (everything, everything | {"scan": "commitlog"}, {"view": "queues"}):
        expected = sparkreads.read(engine, root, brokerName="b", **options)
        found = sparkreads.read(engine, uri, brokerName="b", **in_s3, **options)
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
        assert found
    star = sparkreads.read(engine, f"s3://{BUCKET}/ba*c", includeSystemTopics="true", **in_s3)
    assert len(star) == len(sparkreads.messages("basic"))


def test_local_and_remote_stores_are_one_table(
    engine: Engine, s3: S3Server, golden_store: GoldenStore
) -> None:
    paths = {"a": str(golden_store("one")), "b": s3.upload(golden_store("basic"))}
    found = sparkreads.read(
        engine, [], brokers=json.dumps(paths), storageOptions={**s3.options, "session_token": None}
    )
    each = [sparkreads.read(engine, golden_store(name)) for name in ("one", "basic")]
    assert len(found) == sum(map(len, each))


@pytest.mark.spark
def test_no_plan_and_no_catalog_shows_a_secret(
    spark: SparkSession, s3: S3Server, golden_store: GoldenStore, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = s3.upload(golden_store("one"))
    frame = sparkreads.load(spark, uri, storageOptions=s3.options)
    frame.explain(extended=True)
    text = capfd.readouterr().out + repr(frame)
    assert "rmqstore" in text.lower()
    assert not any(secret in text for secret in KEYS.values())
    stated = json.dumps(s3.options)
    with pytest.raises(AnalysisException, match="would be stored in the catalog"):
        spark.sql(
            f"CREATE TABLE in_s3 USING rmqstore OPTIONS (path '{uri}', storageOptions '{stated}')"
        )


def test_a_stream_reads_what_a_copier_has_brought(
    engine: Engine, s3: S3Server, golden_store: GoldenStore, tmp_path: Path
) -> None:
    uri = s3.upload(golden_store("edges"))
    read = engine.readStream.format("rmqstore").option("storageOptions", json.dumps(s3.options))
    found = rows_of(read.option("startingOffsets", "earliest").load(uri), tmp_path)
    assert len(found) == sparkreads.load(engine, golden_store("edges")).count() > 0


@pytest.mark.spark
def test_the_settings_of_a_session_become_options(spark: SparkSession) -> None:
    spark.conf.set("spark.hadoop.fs.s3a.endpoint.region", "eu-west-1")
    try:
        assert json.loads(s3a_options(spark)) == {"region": "eu-west-1"}
    finally:
        spark.conf.unset("spark.hadoop.fs.s3a.endpoint.region")


def test_settings_of_s3a_are_read_as_hadoop_does() -> None:
    settings = {
        "endpoint": "minio:9000", "connection.ssl.enabled": "false", "access.key": "a",
        "secret.key": "b", "path.style.access": "true",
    }  # fmt: skip
    expected = {"endpoint": "http://minio:9000", "access_key": "a", "secret_key": "b"}
    assert json.loads(s3a_options(_session(settings))) == expected
    provider = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    anonymous = _session({"aws.credentials.provider": provider})
    assert json.loads(s3a_options(anonymous)) == {"anonymous": "true"}


def _session(settings: dict[str, str]) -> SparkSession:
    conf = {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
    return cast("SparkSession", SimpleNamespace(conf=conf))


def test_options_of_a_storage_are_text_and_not_shown() -> None:
    stated = {"storageOptions": '{"anonymous": true, "secret_key": "hidden"}'}
    assert json_object("storageOptions", stated["storageOptions"]) == {
        "anonymous": "true",
        "secret_key": "hidden",
    }
    with pytest.raises(OptionError, match="must be a JSON object") as error:
        json_object("storageOptions", "{hidden")
    assert "hidden" not in str(error.value)
    options = parse_read_options({"path": "s3://bucket/store/", **stated})
    assert options.source.stores[0].path == "s3://bucket/store"
    assert "hidden" not in repr(options)


def test_only_reads_take_paths_of_other_file_systems() -> None:
    assert store_path("s3://bucket/store/") == "s3://bucket/store"
    with pytest.raises(UnsupportedFeatureError, match="only local files are supported"):
        absolute_path("s3://bucket/store")


def test_a_plan_says_how_many_requests_it_took_and_reading_takes(
    s3: S3Server, golden_store: GoldenStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rmqstore.source.store_source")
    uri = s3.upload(golden_store("basic"))
    for scan in ("queue", "commitlog"):
        given = {"path": uri, "storageOptions": json.dumps(s3.options), "scan": scan}
        options = parse_read_options(given)
        assert RmqStoreReader(default_schema(options.columns), options).partitions()
    lines = [line for line in caplog.messages if "planning took" in line]
    assert len(lines) == 2
    assert all(
        re.search(r"took \d+ GETs of .*; reading takes about \d+ GETs", line) for line in lines
    )
