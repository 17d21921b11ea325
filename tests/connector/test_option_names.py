"""Errors of the core as users of Spark see them: with Spark's option names, otherwise unchanged."""

from __future__ import annotations

import inspect
import pickle
from collections import deque
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

import rmqstore
from connector.streams import add
from pyspark_kafkalog.options import OPTIONS as KAFKA_OPTIONS
from pyspark_rmqstore.batch_reader import RmqStoreReader
from pyspark_rmqstore.option_names import option_names, option_of
from pyspark_rmqstore.options import parse_read_options, parse_stream_options
from pyspark_rmqstore.spark_versions import LimitedStreamReader
from pyspark_rmqstore.view_reader import RmqStoreViewReader, parse_view_options
from rmqstore.errors import (
    CorruptRecordError,
    NotAStoreError,
    OffsetOutOfRangeError,
    OptionError,
    rename_arguments,
)
from rmqstore.query.options import (
    ALL_READ_OPTIONS,
    OPTION_OF_ARGUMENT,
    WRITE_OPTIONS,
    GivenOptions,
    Option,
)
from rmqstore.query.selection import parse_selection
from rmqstore.read.request import KNOWN_ARGUMENTS
from rmqstore.read.views.schema import view_spec

SCHEMA = StructType().add("queueOffset", "long")


@pytest.fixture
def expired(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    add(root, ("T", 0, [f"{number:02}" + "x" * 4000 for number in range(80)]))
    for folder in (root / "commitlog", root / "consumequeue" / "T" / "0"):
        first, *others = sorted(folder.iterdir())
        assert others
        first.unlink()
    return root


@pytest.mark.parametrize(
    ("argument", "option"),
    [
        ("fail_on_data_loss=False", "failOnDataLoss=false"),
        ("ignore_log_end=True", "ignoreLogEnd=true"), ("mode=DROPMALFORMED", "mode=DROPMALFORMED"),
        ("starting_offsets", "startingOffsets"), ("commitlogs=", "storePathCommitLog"),
        ("subscribe", "subscribe"),
    ],
)  # fmt: skip
def test_options_stand_for_arguments(argument: str, option: str) -> None:
    assert rename_arguments(f"set `{argument}`", option_of) == f"set {option}"


def test_options_stand_for_arguments_that_the_core_has() -> None:
    functions = (
        rmqstore.open, rmqstore.open_cluster, rmqstore.WriteSpec, rmqstore.create, parse_selection,
        view_spec,
    )  # fmt: skip
    known = {name for function in functions for name in inspect.signature(function).parameters}
    known |= {*KNOWN_ARGUMENTS}
    assert OPTION_OF_ARGUMENT.keys() - known == {"time_zone"}  # a context


@pytest.mark.parametrize("options", [ALL_READ_OPTIONS, WRITE_OPTIONS, KAFKA_OPTIONS])
def test_defaults_of_options_can_be_parsed_and_names_occur_once(options: list[Option]) -> None:
    given = GivenOptions({}, options)
    for option in options:
        assert (given[option.name] is None) == (option.default is None)
    assert len({option.name.lower() for option in options}) == len(options)


def test_a_translated_error_keeps_class_fields_and_cause_and_survives_pickling() -> None:
    cause = ValueError("as it came")
    text = "set `ignore_log_end=True`"
    with pytest.raises(CorruptRecordError) as caught, option_names():
        raise CorruptRecordError("/store/msg_key", 17, text) from cause
    copy = pickle.loads(pickle.dumps(caught.value))
    for err in (caught.value, copy):
        assert (err.path, err.offset, err.reason) == ("/store/msg_key", 17, "set ignoreLogEnd=true")
    assert caught.value.__cause__ is cause


def test_an_error_without_arguments_is_handed_on_as_it_is() -> None:
    original = OptionError("subscribe '': a comma list of topics")
    with pytest.raises(OptionError) as caught, option_names():
        raise original
    assert caught.value is original


def options_of(root: Path, **given: str) -> dict[str, str]:
    return {"path": str(root), "startingOffsets": '{"T":{"0":0}}', **given}


LOST = r"startingOffsets of T-0 is 0, .*; failOnDataLoss=false reads what is left"


def test_planning_a_batch_and_starting_a_stream_name_options(expired: Path) -> None:
    batch = RmqStoreReader(SCHEMA, parse_read_options(options_of(expired)))
    stream = LimitedStreamReader(SCHEMA, parse_stream_options(options_of(expired)))
    for plan in (batch.partitions, stream.initialOffset):
        with pytest.raises(OffsetOutOfRangeError, match=LOST):
            plan()


def test_a_task_names_options(expired: Path) -> None:
    reader = RmqStoreReader(SCHEMA, parse_read_options({"path": str(expired)}))
    (partition,) = reader.partitions()
    *_, needed, _ = sorted((expired / "commitlog").iterdir())
    needed.unlink()
    with pytest.raises(OffsetOutOfRangeError, match="failOnDataLoss=false reads on"):
        deque(reader.read(partition), maxlen=0)


@pytest.mark.parametrize("view", [None, "queues"])
def test_a_path_that_is_not_a_store_is_refused_with_the_option_to_set(
    tmp_path: Path, view: str | None
) -> None:
    given = {"path": str(tmp_path)}
    schema = StructType().add("topic", "string")
    reader = (
        RmqStoreReader(schema, parse_read_options(given))
        if view is None
        else RmqStoreViewReader(schema, parse_view_options({**given, "view": view}))
    )
    with pytest.raises(
        NotAStoreError, match=r"is not a RocketMQ store: .* with storePathCommitLog$"
    ):
        reader.partitions()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribe": "A", "subscribePattern": "A"}, "subscribe and subscribePattern"),
        ({"startingTimestamp": "soon"}, "startingTimestamp 'soon'"),
        ({"msgKey": "a b"}, "msgKey 'a b'"),
        ({"msgKey": "a", "msgId": "b"}, "msgKey and msgId"),
        ({"msgTags": ""}, "msgTags: tags must not be empty"),
        ({"scan": "commitlog"}, "startingTimestamp and endingTimestamp"),
    ],
    ids=str,
)
def test_an_option_that_the_core_refuses_is_called_as_it_was_given(
    given: dict[str, str], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        parse_read_options(options_of(Path("store"), **given))
