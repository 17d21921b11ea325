"""Options of the data source kafkalog: those of Spark's Kafka source."""

from __future__ import annotations

import json
import logging

import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from kafkalog.scan import ScanSpec
from kafkalog.storage.names import TopicPartition
from pyspark_kafkalog import options as kafka_options
from pyspark_kafkalog.options import (
    Choice,
    ColumnOptions,
    LogDirsRef,
    OffsetLimit,
    ReadOptions,
    parse_column_options,
    parse_read_options,
    parse_stream_options,
)
from pyspark_kafkalog.rows import default_schema, require_columns
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.selection import EARLIEST, LATEST
from rmqstore.read.split import Limits

PATH = {"path": "/kafka-logs"}


def parse(**options: str) -> ReadOptions:
    return parse_read_options({**PATH, "subscribe": "a", **options})


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    read = parse()
    assert read.log_dirs == LogDirsRef(("/kafka-logs",))
    assert read.choice == Choice(topics=("a",))
    assert (read.start, read.end) == (OffsetLimit(EARLIEST), OffsetLimit(LATEST))
    assert read.start_is_strict
    assert read.spec == ScanSpec(("offset",), "read_uncommitted", fail_on_data_loss=True)
    assert read.limits == Limits(128 << 20)
    stream = parse_stream_options({**PATH, "subscribePattern": "a.*"})
    assert stream.read.start == OffsetLimit(LATEST)
    assert stream.triggers.max_delay_seconds == 15 * 60


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        ({"subscribe": " a, b ,a"}, Choice(topics=("a", "b"))),
        ({"subscribePattern": " a|b "}, Choice(pattern="a|b")),
        ({"assign": '{"a":[0,2]}'}, Choice(partitions=frozenset({("a", 0), ("a", 2)}))),
        ({"SUBSCRIBE": "a"}, Choice(topics=("a",))),
    ],
)
def test_the_chosen_partitions(options: dict[str, str], choice: Choice) -> None:
    assert parse_read_options(PATH | options).choice == choice


def test_a_choice_of_partitions_that_exist() -> None:
    names = (("b", 0), ("a", 1), ("a", 0), ("ab", 0))
    known = [TopicPartition(*name) for name in names]
    assert Choice(topics=("a",)).of(known) == [("a", 0), ("a", 1)]
    assert Choice(pattern="a.?").of(known) == [("a", 0), ("a", 1), ("ab", 0)]
    assert Choice(pattern="b").of(known) == [("ab", 0), ("b", 0)]  # as Spark, anywhere in a name
    assert Choice(pattern="^[a-z]$").of(known) == [("a", 0), ("a", 1), ("b", 0)]
    assert Choice(partitions=frozenset({TopicPartition("a", 1)})).of(known) == [("a", 1)]
    own = TopicPartition("__consumer_offsets", 0)  # which no pattern finds
    assert Choice(pattern=".*").of([own, *known]) == sorted(known)
    assert Choice(pattern="offsets").of([own]) == []
    for named in (Choice(topics=(own.topic,)), Choice(partitions=frozenset([own]))):
        assert named.of([own, *known]) == [own]


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": " Earliest"}, OffsetLimit(EARLIEST)),
        ({"startingOffsets": '{"a":{"0":23,"1":-2}}'},
         OffsetLimit(EARLIEST, {("a", 0): 23, ("a", 1): -2})),
        ({"startingTimestamp": "5"}, OffsetLimit(EARLIEST, timestamp=5)),
        ({"startingTimestamp": "1970-01-01T00:00:01Z"}, OffsetLimit(EARLIEST, timestamp=1000)),
        ({"startingOffsetsByTimestamp": '{"a":{"0":7}}', "startingOffsets": "earliest"},
         OffsetLimit(EARLIEST, times={("a", 0): 7})),
    ],
)  # fmt: skip
def test_where_partitions_start(options: dict[str, str], start: OffsetLimit) -> None:
    assert parse(**options).start == start


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "give one of assign, subscribe and subscribePattern; got none"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "got assign and subscribe"),
        ({"subscribe": " , "}, "comma list"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribePattern": " "}, "subscribePattern: names no topic"),
        ({"subscribePattern": "[a-z&&[^b]]"}, "is not supported here"),
        ({"assign": "a"}, "JSON like"),
        ({"assign": "[1]"}, "must be JSON like"),
        ({"assign": '{"a":0}'}, "needs a list of partitions"),
        ({"assign": '{"a":["x"]}'}, "is not an integer"),
        ({"assign": "{}"}, "names no partition"),
        ({"subscribe": "a", "startingOffsets": "newest"}, "nor JSON like"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-3}}'}, "-2 is the earliest"),
        ({"subscribe": "a", "startingOffsets": '{"a":[1]}'}, "needs a value for each partition"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":true}}'}, "is not an integer"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":1,"00":2}}'}, "stands for both 1 and 2"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "nothing to read"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-1}}'}, "nothing to read"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "nothing to read"),
        ({"subscribe": "a", "endingOffsets": '{"a":{"0":-2}}'}, "nothing to read"),
        ({"subscribe": "a", "startingTimestamp": "soon"}, "startingTimestamp 'soon'"),
        ({"subscribe": "a", "startingTimestamp": "-3"}, "startingTimestamp '-3': must lie between"),
        ({"subscribe": "a", "endingTimestamp": "1969-12-31T23:59:59.999Z"}, "must lie between"),
        ({"subscribe": "a", "endingTimestamp": "9223372036854775808"}, "must lie between"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a":{"0":-5}}'},
         "startingOffsetsByTimestamp '-5': must lie between"),
        ({"subscribe": "a", "kafka.isolation.level": "serializable"}, "kafka.isolation.level"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions '0'"),
        ({"subscribe": "a", "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"subscribe": "a", "mode": "IGNORE"}, "mode 'IGNORE'"),
        ({"subscribe": "a", "columnNameOfCorruptRecord": "headers"}, "no column of Kafka has"),
        ({"subscribe": "a", "columnNameOfCorruptRecord": "Value"}, "no column of Kafka has"),
        ({"subscribe": "a", "columnNameOfCorruptRecord": "timestamptype"}, "no column of Kafka"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_read_options(PATH | options)
    assert reason in str(caught.value)


def test_a_path_is_required() -> None:
    with pytest.raises(OptionError, match=r"path is missing: name a log directory"):
        parse_read_options({"subscribe": "a"})
    with pytest.raises(UnsupportedFeatureError, match="no file system is known for ftp"):
        parse_read_options({"subscribe": "a", "path": "ftp://host/kafka-logs"})


def parse_paths(*paths: str, **options: str) -> LogDirsRef:
    given = {"subscribe": "a", "paths": json.dumps(paths), **options}
    return parse_read_options(given).log_dirs


def test_log_directories_in_object_storage() -> None:
    secret = json.dumps({"region": "eu-west-1", "secret_key": "hidden"})
    log_dirs = parse_paths("s3://bucket/d1/", "s3://bucket/d2", storageOptions=secret)
    assert log_dirs.paths == ("s3://bucket/d1", "s3://bucket/d2")
    assert "hidden" not in repr(log_dirs) + str(log_dirs)
    for other in ("s3://other/d2", "gs://bucket/d2", "/d2"):
        with pytest.raises(OptionError, match="do not lie in one storage"):
            parse_paths("s3://bucket/d1", other)
    with pytest.raises(OptionError, match="is not an option of s3"):
        parse_paths("s3://bucket/d1", storageOptions='{"secret": "hidden"}')


def test_what_a_stream_refuses() -> None:
    for options, reason in (
        ({"endingOffsets": "latest", "endingTimestamp": "5"}, "endingTimestamp: a stream has no"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "is above"),
    ):
        with pytest.raises(OptionError, match=reason):
            parse_stream_options({**PATH, "subscribe": "a", **options})


def test_options_that_only_a_broker_needs_are_named_once_without_their_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka_options._warn_of_ignored.cache_clear()
    given = {
        "kafka.bootstrap.servers": "broker:9092", "kafka.ssl.key.password": "secret",
        "groupIdPrefix": "job", "kafkaConsumer.pollTimeoutMs": "500", "fetchOffset.numRetries": "3",
        "kafka.isolation.level": "read_committed",
    }  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert parse(**given).spec.isolation_level == "read_committed"
        parse(**given)
    assert len(caplog.records) == 1
    text = caplog.text
    assert "kafka.bootstrap.servers, kafka.ssl.key.password" in text
    assert "secret" not in text
    assert "isolation" not in text


def test_limits_of_triggers_are_named_and_ignored_in_a_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As by KafkaSourceProvider.validateBatchOptions of Spark."""
    kafka_options._warn_of_ignored.cache_clear()
    limits = {"maxoffsetspertrigger": "5", "minOffsetsPerTrigger": "6", "maxTriggerDelay": "1m"}
    assert parse(**limits) == parse()
    reason = "ignored, because a batch has no triggers: "
    assert f"{reason}maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay" in caplog.text


def test_headers_are_a_column_if_asked_for() -> None:
    assert parse_column_options({"includeHeaders": "TRUE"}) == ColumnOptions(True, None)
    assert parse_column_options({}) == ColumnOptions(False, None)


def test_a_column_says_what_is_damaged_if_asked_for() -> None:
    columns = parse_column_options({"mode": "permissive"})
    assert default_schema(columns).fieldNames()[-2:] == ["timestampType", "_corrupt_record"]
    columns = parse_column_options({"mode": "permissive", "columnNameOfCorruptRecord": "why"})
    schema = default_schema(columns)
    assert schema.fieldNames()[-1] == "why"
    require_columns(schema, columns)
    require_columns(StructType([schema["why"]]), columns)
    integer = StructType([StructField("why", IntegerType())])
    for odd in (StructType([*schema, schema["why"]]), integer, StructType([])):
        with pytest.raises(OptionError, match="schema: "):
            require_columns(odd, columns)
    with pytest.raises(OptionError, match="why string is not one of the columns"):
        require_columns(schema, parse_column_options({}))
