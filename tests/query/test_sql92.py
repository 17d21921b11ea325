"""SQL92 filters: the grammar, refusals and their texts, and the rules, with answers by hand."""

from __future__ import annotations

import math
import pickle
import time

import pyarrow as pa
import pytest

from rmqstore.errors import OptionError
from rmqstore.query.sql92_filter import compile_filter, parse_filter
from rmqstore.query.sql92_tree import (
    And,
    Between,
    Equal,
    In,
    IsNull,
    IsTrue,
    Literal,
    Long,
    Node,
    Not,
    Or,
    Order,
    Property,
    parse_double,
    parse_integer,
    parse_long,
)

A, B, C = Property("a"), Property("b"), Property("c")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        (
            "a = 1 OR b = 2 AND c = 3",
            Or((Equal(A, Literal(1)), And((Equal(B, Literal(2)), Equal(C, Literal(3)))))),
        ),
        ("(a OR b) AND c", And((Or((IsTrue(A), IsTrue(B))), IsTrue(C)))),
        ("a OR b OR c", Or((IsTrue(A), IsTrue(B), IsTrue(C)))),
        ("NOT a = 1", Equal(Not(IsTrue(A)), Literal(1))),
        ("a > 1 = b", Equal(Order(">", A, Literal(1)), B)),
        ("a <> 'it''s'", Not(Equal(A, Literal("it's")))),
        ("a is Not nuLL", Not(IsNull(A))),
        ("a BETWEEN .5 AND 5E1", Between(A, Literal(0.5), Literal(50.0), False)),
        ("a NOT IN ('x', 'y')", Not(In(A, frozenset({"x", "y"})))),
        ("/* one */ a -- two\n = --three\r 1", Equal(A, Literal(1))),
    ],
)
def test_operators_bind_as_in_rocketmq(text: str, tree: Node) -> None:
    found = compile_filter(text).tree
    assert repr(found) == repr(tree)  # as tuples, Literal("a") and Property("a") would be equal


def test_integers_are_of_the_class_that_holds_them() -> None:
    literals = [compile_filter(f"a = {text}").tree for text in ("2147483647", "2147483648", "5L")]
    kinds = [
        type(tree.right.value)
        for tree in literals
        if isinstance(tree, Equal) and isinstance(tree.right, Literal)
    ]
    assert kinds == [int, Long, int]


def test_names_are_listed_once_in_the_order_of_the_text() -> None:
    assert compile_filter("b = 1 AND (a > c OR b IN ('a')) AND Not d$ CONTAINS 'x'").names == (
        "b",
        "a",
        "c",
        "d$",
    )
    assert compile_filter("1 < 2").names == ()


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("a = 0L AND b = 2", "L AND b = 2"), ("a = 007", "07"), ("a b", "b"),
        ("a = 1) OR b", ") OR b"), ("a = 1 -- no line ends here", "-- no line ends here"),
        ("a = 1 -- one does\n", ""), ("a = 1 /* c */ ", ""),
    ],
)  # fmt: skip
def test_text_that_rocketmq_does_not_read_is_kept_as_unread(text: str, unread: str) -> None:
    assert compile_filter(text).unread == unread


@pytest.mark.parametrize(
    ("text", "character", "reason"),
    [
        ("", 1, "found the end"), ("a = ", 5, r'expected a property, a literal or "\("'),
        ("a AND 5", 7, "expected a condition"), ("-a", 1, "expected a condition"),
        ("a = NULL", 5, "IS NULL"), ("NULL <> a", 1, "IS NULL"), ("TRUE = 5", 1, "another kind"),
        ("a > 'x'", 5, "expected a number or a property"),
        ("(a = 1) < 5", 1, "expected a number or a property"),
        ("a BETWEEN 5 AND 1", 11, "wrong way round"),
        ("a BETWEEN 5 AND 4.5", 11, "wrong way round"), ("a BETWEEN 1 OR 5", 13, "AND between"),
        ("5 IN ('x')", 1, "name of a property"), ("a IN (5)", 7, "string in single quotes"),
        ("a IN ('x'", 10, r'"," or "\)"'), ("a CONTAINS b", 12, "string in single quotes"),
        ("a NOT 5", 7, "after NOT"), ("a IS 5", 6, "NULL or NOT NULL"), ("a = 0.0", 5, "write 0"),
        ("a = 1e400", 5, "beyond a double"), ("a = 9223372036854775808", 5, "9223372036854775807"),
        ("(a = 1", 7, r'operator or "\)"'), ("a = 'x", 5, "does not end"),
        ("a /* x", 3, "does not end"), ('a = "x"', 5, "single quotes"), ("a != 5", 3, "write <>"),
        ("a = größe", 7, "'ö' has no place"), ("a LIKE 'x' OR \ud800", 15, "surrogate"),
    ],
)  # fmt: skip
def test_what_rocketmq_refuses_is_refused_at_its_place(
    text: str, character: int, reason: str
) -> None:
    with pytest.raises(OptionError, match=rf"character {character}: .*{reason}"):
        compile_filter(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000 + "a" + ")" * 100_000, "NOT " * 100_000 + "a", "+" * 100_000 + "5 = a",
        "- " * 100_000 + "5 = a", "a" + " = a" * 100_000, "a" + " CONTAINS 'x'" * 100_000,
        "a" + " IS NULL" * 100_000, "(a = " * 65 + "b" + ")" * 65, "'" + "'" * 200_000,
        "/*" + "*" * 200_000, "a = " + "9" * 200_000, "a = 1" + "0" * 200_000 + ".0",
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_hostile_expressions_are_refused_soon_and_shortly(text: str) -> None:
    started = time.monotonic()
    with pytest.raises(OptionError) as caught:
        compile_filter(text)
    assert time.monotonic() - started < 10
    assert len(str(caught.value)) < 1000


def test_deep_and_long_expressions_within_the_bounds_are_evaluated() -> None:
    nested = compile_filter("(" * 64 + "a = 1" + ")" * 64)
    upon = compile_filter("a" + " IS NULL" * 63)
    wide = compile_filter(" OR ".join(f"a = {number}" for number in range(5000)))
    columns = {"a": pa.array(["1", "4999", "5000", None])}
    for compiled, kept in ((nested, [1, 0, 0, 0]), (upon, [0, 0, 0, 0]), (wide, [1, 1, 0, 0])):
        assert compiled.keep(columns, 4).tolist() == kept


def test_between_upon_between_takes_no_more_time_than_its_length() -> None:
    text = "a BETWEEN 1 AND 2"
    for _ in range(20):
        text = f"-({text}) BETWEEN 1 AND 2"
    assert compile_filter(text).keep({"a": pa.array(["1"])}, 1).tolist() == [False]


# What a message with a = "5", b = "x", t = "TRUE" and no c is to each: delivered, or not.
RULES = [
    ("a = 5", True),
    ("a = '5'", True),
    ("a = '5.0'", False),
    ("a = 5.0", True),
    ("a = 3000000000", False),
    ("a <> 6", True),
    ("b <> 5", False),  # x is no number: thrown
    ("NOT (b = 5)", False),
    ("c = 5", False),
    ("c <> 5", False),  # null, and NOT null is null
    ("5 <> c", True),  # only the right side null: FALSE, negated
    ("c = d", True),  # both null
    ("c <> d", False),
    ("c IS NULL", True),
    ("(c = 5) IS NULL", True),
    ("c IS NOT NULL", False),
    ("a > b", False),
    ("a >= a", True),
    ("a > 4 AND a < 5.5", True),
    ("c > 4 OR a = 5", True),
    ("c > 4 AND a = 5", False),
    ("NOT (c > 4 AND a = 6)", True),  # null AND FALSE is FALSE
    ("NOT (c > 4 AND a = 5)", False),
    ("a = 5 OR b > 1", True),  # b > 1 is not reached
    ("b > 1 OR a = 5", False),
    ("NOT (a = 6 AND b > 1)", True),
    ("NOT (b > 1 AND a = 6)", False),
    ("a BETWEEN 5 AND 5", True),
    ("a BETWEEN -5 AND -10", False),
    ("a NOT BETWEEN 10 AND 6", True),
    ("NOT (a BETWEEN 6 AND b)", True),  # not reached: a >= 6 is FALSE
    ("a BETWEEN 5 AND b", False),
    ("a", False),  # a string is not TRUE, even
    ("t", False),
    ("NOT t", True),
    ("NOT c", False),
    ("t = TRUE", True),
    ("b = FALSE", True),
    ("TRUE = t", False),  # thrown
    ("(a = 5) = (b = 'x')", True),
    ("(a = 5) = 1", False),
    ("-a IS NULL", True),
    ("a = - - 5", True),
    ("a > -5", True),
    ("c < -(b = 5)", False),
    ("(c < -(b = 5)) IS NULL", True),  # b = 5 is not reached
    ("(a < -(b = 5)) IS NULL", False),
    ("b IN ('x', 'y')", True),
    ("b NOT IN ('y')", True),
    ("c NOT IN ('y')", False),
    ("b CONTAINS 'x'", True),
    ("b NOT CONTAINS 'y'", True),
    ("c NOT CONTAINS 'y'", False),
    ("NOT (c CONTAINS 'y')", True),
    ("b NOT CONTAINS ''", False),
    ("5 NOT CONTAINS '4'", False),
    ("'five' ENDSWITH 've'", True),
    ("t STARTSWITH 'TR'", True),
    ("t STARTSWITH 'tr'", False),
    ("NOT ((b = 5) CONTAINS 'x')", False),
    ("NOT ((b = 5) CONTAINS '')", True),  # b = 5 is not reached
    ("A IS NULL", True),  # names mind case
    ("NULL OR TRUE", True),
    ("NULL", False),
]


@pytest.mark.parametrize(("text", "delivered"), RULES, ids=str)
def test_rules(text: str, *, delivered: bool) -> None:
    compiled, properties = compile_filter(text), {"a": "5", "b": "x", "t": "TRUE"}
    columns = {name: pa.array([properties.get(name)], pa.string()) for name in compiled.names}
    assert compiled.keep(columns, 1).tolist() == [delivered]


@pytest.mark.parametrize(
    ("text", "integer", "long", "double"),
    [
        ("5", 5, 5, 5.0),
        ("+5", 5, 5, 5.0),
        ("-0", 0, 0, -0.0),
        ("007", 7, 7, 7.0),
        ("0" * 6000 + "7", 7, 7, 7.0),
        ("2147483648", None, 2147483648, 2147483648.0),
        ("9223372036854775808", None, None, 9223372036854775808.0),
        (" 5\n", None, None, 5.0),
        ("5\u00a0", None, None, None),
        ("\u0665", 5, 5, None),  # a digit of another script
        ("\U0001d7d3", None, None, None),  # one of two UTF-16 units
        ("1_0", None, None, None),
        ("5L", None, None, None),
        ("1.5d", None, None, 1.5),
        ("1.5ff", None, None, None),
        (".5", None, None, 0.5),
        ("5.", None, None, 5.0),
        (".", None, None, None),
        ("1e", None, None, None),
        ("1e400", None, None, math.inf),
        ("inf", None, None, None),
        ("nan", None, None, None),
        ("-Infinity", None, None, -math.inf),
        ("0x1.8p1", None, None, 3.0),
        ("0x18", None, None, None),
        ("-0x1p99999999999999999999", None, None, -math.inf),
        ("0x1p-99999999999999999999", None, None, 0.0),
        ("", None, None, None),
        ("-", None, None, None),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_strings_are_javas_numbers(
    text: str, integer: int | None, long: int | None, double: float | None
) -> None:
    assert (parse_integer(text), parse_long(text)) == (integer, long)
    assert repr(parse_double(text)) == repr(double)  # tells -0.0 from 0.0


def test_nan_is_the_highest_double_and_minus_zero_the_lower_zero() -> None:
    assert str(parse_double("-NaN")) == "nan"
    rising = ["-Infinity", "-1.0", "-0.0", "0.0", "1.0", "Infinity", "NaN"]
    is_less = compile_filter("a < b")
    for at, left in enumerate(rising):
        columns = {"a": pa.array([left] * len(rising)), "b": pa.array(rising)}
        found = is_less.keep(columns, len(rising)).tolist()
        assert found == [at < other for other in range(len(rising))]


def test_a_filter_travels_to_tasks() -> None:
    compiled = compile_filter("a BETWEEN 1 AND 3000000000 AND b IN ('x') AND c NOT CONTAINS 'y'")
    assert pickle.loads(pickle.dumps(compiled)) == compiled


@pytest.mark.parametrize("columns", [{}, {"a": pa.array(["1"])}, {"a": pa.array([1, 2])}])
def test_columns_that_are_wanting_are_named(columns: dict[str, pa.Array]) -> None:
    with pytest.raises(OptionError, match="2 strings of property a"):
        compile_filter("a = 1").keep(columns, 2)


@pytest.mark.parametrize(
    "name", ["queueOffset", "queueId", "commitLogOffset", "storeTimestamp", "brokerName"]
)
def test_a_filter_on_a_column_that_the_store_assigns_is_refused(name: str) -> None:
    """RocketMQ compares properties only: it would deliver nothing, without a word."""
    with pytest.raises(
        OptionError,
        match=rf"{name} is a column, and a filter compares properties only.* into where=",
    ):
        parse_filter(f"a = 1 OR {name} >= 0")


def test_a_filter_on_a_property_with_the_name_of_a_column_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parse_filter("topic = 'x' AND TAGS = 'a'")
    assert "compares the property topic, not the column of that name" in caplog.text
    caplog.clear()
    parse_filter("TAGS = 'a' AND pending IS NULL AND queueid = 1")
    assert not caplog.records
