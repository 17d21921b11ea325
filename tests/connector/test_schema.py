"""Spark's schema and Arrow's: documented columns and what a user's schema may ask (no session)."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import documented
from pyspark_rmqstore.options import ReadOptions, parse_column_options, parse_read_options
from pyspark_rmqstore.schema import default_schema, request_of
from rmqstore.errors import OptionError

TEXT_MAP = MapType(StringType(), StringType())
SPARK: dict[str, DataType] = {
    "STRING": StringType(), "INT": IntegerType(), "BIGINT": LongType(), "BOOLEAN": BooleanType(),
    "BINARY": BinaryType(), "TIMESTAMP": TimestampType(), "MAP<STRING,STRING>": TEXT_MAP,
}  # fmt: skip
EVERY = {name: SPARK[column.sql] for name, column in documented.COLUMNS.items()}
DOCUMENTED = {name: EVERY[name] for name in documented.DEFAULT}
MAY_BE_NULL = [name for name, column in documented.COLUMNS.items() if column.may_be_null]
NEVER_NULL = [name for name in EVERY if name not in MAY_BE_NULL]
ARROW = {SPARK[sql]: kind for sql, kind in documented.ARROW.items()}


def options(**given: str) -> ReadOptions:
    return parse_read_options({"path": "/data/store", **given})


def default(**given: str) -> StructType:
    return default_schema(parse_column_options({"path": "/data/store", **given}))


def struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def one(name: str, kind: DataType, *, nullable: bool = True, **given: str) -> pa.Field:
    schema = StructType([StructField(name, kind, nullable)])
    return request_of(schema, options(**given)).schema.field(0)


def test_default_columns_are_the_documented_ones_in_their_order() -> None:
    fields = default().fields
    assert [(field.name, field.dataType) for field in fields] == list(DOCUMENTED.items())
    assert all(field.nullable for field in fields)


def test_only_mode_permissive_adds_the_column_of_corrupt_records_as_the_last() -> None:
    plain, permissive = default(), default(mode="PERMISSIVE")
    assert permissive.fields == [*plain.fields, StructField("_corrupt_record", StringType())]
    given = {"columnNameOfCorruptRecord": "why", "columns": "topic"}
    for mode, names in (("PERMISSIVE", ["topic", "why"]), ("DROPMALFORMED", ["topic"])):
        assert default(mode=mode, **given).names == names


def test_columns_choose_fields_and_their_order() -> None:
    schema = default(columns="tagsCode, body,queueId")
    assert [(field.name, field.dataType) for field in schema.fields] == [
        ("tagsCode", LongType()), ("body", BinaryType()), ("queueId", IntegerType()),
    ]  # fmt: skip


@pytest.mark.parametrize("columns", ["bodies", "body,Topic", "body,,topic", "", "body,body"])
def test_columns_that_are_unknown_or_named_twice_are_refused(columns: str) -> None:
    with pytest.raises(OptionError, match="columns"):
        default(columns=columns)


@pytest.mark.parametrize(
    "given", [{}, {"mode": "PERMISSIVE"}, {"columns": ",".join(EVERY)}], ids=str
)
def test_the_default_schema_goes_through_to_arrow_field_by_field(given: dict[str, str]) -> None:
    schema = default(**given)
    expected = [
        pa.field(field.name, ARROW[field.dataType], nullable=True) for field in schema.fields
    ]
    assert request_of(schema, options(**given)).schema == pa.schema(expected)


@pytest.mark.parametrize("name", NEVER_NULL)
def test_a_column_that_is_never_null_may_be_declared_so(name: str) -> None:
    field = pa.field(name, ARROW[EVERY[name]], nullable=False)
    assert one(name, EVERY[name], nullable=False) == field


@pytest.mark.parametrize("name", MAY_BE_NULL)
def test_a_column_that_may_be_null_cannot_be_not_null(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.*NOT NULL"):
        one(name, EVERY[name], nullable=False)


@pytest.mark.parametrize("name", [*EVERY, "_corrupt_record"])
def test_in_mode_permissive_no_column_can_be_not_null(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.*NOT NULL"):
        one(name, EVERY.get(name, StringType()), nullable=False, mode="PERMISSIVE")


@pytest.mark.parametrize("name", [name for name, kind in EVERY.items() if kind == IntegerType()])
def test_an_int_may_be_requested_as_a_long(name: str) -> None:
    assert one(name, LongType()).type == pa.int64()


@pytest.mark.parametrize("name", ["body", "properties"])
@pytest.mark.parametrize("nullable", [True, False])
def test_body_and_properties_may_be_requested_as_strings(name: str, nullable: bool) -> None:
    assert one(name, StringType(), nullable=nullable) == pa.field(name, pa.string(), nullable)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name} as {kind.simpleString()}")
        for name, kind in [
            ("topic", BinaryType()), ("queueId", ShortType()), ("queueOffset", IntegerType()),
            ("queueOffset", DecimalType(20, 0)), ("storeTimestamp", LongType()),
            ("storeTimestamp", StringType()), ("bornTimestamp", TimestampNTZType()),
            ("body", LongType()), ("properties", MapType(StringType(), BinaryType())),
            ("properties", MapType(IntegerType(), StringType())),
        ]
    ],
)  # fmt: skip
def test_a_type_that_is_not_the_columns_is_refused_with_those_that_are(
    name: str, kind: DataType
) -> None:
    with pytest.raises(OptionError, match=name) as caught:
        one(name, kind)
    assert EVERY[name].simpleString() in str(caught.value)
    assert kind.simpleString() in str(caught.value)


@pytest.mark.parametrize("name", ["bodies", "Topic", "queueoffset", "properties.TAGS", ""])
def test_an_unknown_column_is_refused_with_those_known(name: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"unknown column {name}")) as caught:
        one(name, StringType())
    assert all(known in str(caught.value) for known in EVERY)


def test_the_order_of_the_users_schema_is_kept() -> None:
    schema = struct(body=StringType(), tags=StringType(), queueId=LongType()).add(
        "topic", StringType(), nullable=False
    )
    found = request_of(schema, options()).schema
    assert found == pa.schema(
        [
            pa.field("body", pa.string()), pa.field("tags", pa.string()),
            pa.field("queueId", pa.int64()), pa.field("topic", pa.string(), nullable=False),
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    "schema", [StructType(), struct(body=BinaryType(), topic=StringType()).add("body", "string")]
)
def test_a_schema_of_no_column_or_one_named_twice_is_refused(schema: StructType) -> None:
    with pytest.raises(OptionError, match="schema"):
        request_of(schema, options())


def test_the_column_of_corrupt_records_comes_anywhere_but_only_in_mode_permissive() -> None:
    schema = struct(why=StringType(), topic=StringType())
    given = {"columnNameOfCorruptRecord": "why"}
    assert request_of(schema, options(mode="PERMISSIVE", **given)).schema.names == ["why", "topic"]
    for mode in ("FAILFAST", "DROPMALFORMED"):
        with pytest.raises(OptionError, match=f"why.*PERMISSIVE.*{mode}"):
            request_of(schema, options(mode=mode, **given))
    with pytest.raises(OptionError, match="why"):
        one("why", BinaryType(), mode="PERMISSIVE", **given)


def test_columns_and_a_schema_must_agree() -> None:
    for columns in ("body", "body,topic,tags", "body,keys"):
        with pytest.raises(OptionError, match=re.escape(columns.replace(",", ", "))):
            request_of(struct(body=BinaryType(), topic=StringType()), options(columns=columns))
    schema = struct(topic=StringType(), body=StringType(), _corrupt_record=StringType())
    given = options(columns="body,topic", mode="PERMISSIVE")
    assert request_of(schema, given).schema.names == schema.names
    assert request_of(struct(topic=StringType()), options(mode="PERMISSIVE")).schema.names == [
        "topic"
    ]
