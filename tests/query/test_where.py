"""Conditions on columns: the grammar, refusals and their texts, matching rows, and pruning."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tiers
from rmqstore.errors import OptionError, argument_names, rename_arguments
from rmqstore.format.schema import ALL_COLUMNS
from rmqstore.query.conditions import NO_PRUNING, Between, Pruning
from rmqstore.query.where import Joined, Where, parse, parse_where

DAY = datetime(2026, 11, 20, tzinfo=UTC)
DAY_MS = int(DAY.timestamp()) * 1000
FIELD = pc.field


def where(condition: str | pc.Expression) -> Where:
    found = parse_where(condition, ALL_COLUMNS)
    assert found is not None
    return found


def texts(*values: str) -> frozenset[str]:
    return frozenset(values)


@pytest.mark.parametrize(
    ("text", "pruning"),
    [
        ("topic = 'A'", Pruning(topics=texts("A"))),
        ("topic IN ('A', 'it''s') and TOPIC_IS", None),
        ("topic IN ('A', 'it''s')", Pruning(topics=texts("A", "it's"))),
        ("topic LIKE 'Ord%'", Pruning(topic_prefixes=("Ord",))),
        ("topic LIKE 'a\\_b_c%'", Pruning(topic_prefixes=("a_b",))),
        ("topic NOT LIKE 'Ord%'", NO_PRUNING),
        ("queueId = 3", Pruning(queue_ids=frozenset([3]))),
        ("queueId <> 3", NO_PRUNING),
        ("queueOffset BETWEEN 5 AND +9", Pruning(queue_offsets=Between(5, 9))),
        ("queueOffset NOT BETWEEN 5 AND 9", NO_PRUNING),
        ("queueOffset > 5 AND queueOffset <= 9", Pruning(queue_offsets=Between(6, 9))),
        ("commitLogOffset IN (7, 3, 9)", Pruning(physical_offsets=Between(3, 9))),
        ("storeTimestamp >= '2026-11-20'", Pruning(store_timestamps=Between(low=DAY_MS))),
        ("storeTimestamp < '2026-11-20T01:00+01:00'",
         Pruning(store_timestamps=Between(high=DAY_MS))),
        (f"storeTimestamp = {DAY_MS}", Pruning(store_timestamps=Between(DAY_MS, DAY_MS))),
        ("tags = 'x' AND keys = 'k'", Pruning(tags=texts("x"), keys=texts("k"))),
        ("msgId = 'm' AND brokerName = 'b'", Pruning(msg_ids=texts("m"), broker_names=texts("b"))),
        ("NOT (queueId <> 3 OR NOT queueOffset < 8)",
         Pruning(queue_ids=frozenset([3]), queue_offsets=Between(high=7))),
        ("topic = 'A' OR topic = 'B'", Pruning(topics=texts("A", "B"))),
        ("topic LIKE 'A%' OR topic LIKE 'B%'", NO_PRUNING),
        (" OR ".join(f"keys = '{n}'" for n in range(100)),
         Pruning(keys=texts(*map(str, range(100))))),
        ("topic LIKE 'A%' AND queueId = 0 OR topic LIKE 'A%' AND flag = 1",
         Pruning(topic_prefixes=("A",))),
        ("queueOffset = 1 OR queueOffset = 9", Pruning(queue_offsets=Between(1, 9))),
        ("topic = 'A' OR tags = 'x'", NO_PRUNING),
        (
            "topic = 'A' AND queueId = 0 OR topic = 'B' AND queueId = 1",
            Pruning(topics=texts("A", "B"), queue_ids=frozenset([0, 1])),
        ),
        ("topic = 'A' AND (tags = 'x' OR flag = 1)", Pruning(topics=texts("A"))),
        ("tags IS NOT NULL AND sysFlag >= -1", NO_PRUNING),
    ],
)  # fmt: skip
def test_what_a_text_leaves_of_a_read(text: str, pruning: Pruning | None) -> None:
    if pruning is None:
        with pytest.raises(OptionError, match="'TOPIC_IS' is not a column"):
            where(text)
    else:
        assert where(text).pruning == pruning


def test_the_columns_that_a_condition_asks_for() -> None:
    for condition in (
        "flag = 1 OR NOT tags = 'a' AND flag < 2",
        (FIELD("flag") == 1) | (pc.utf8_length(FIELD("tags")) > 2),
    ):
        assert [field.name for field in where(condition).columns] == ["flag", "tags"]


def test_an_expression_selects_rows_and_leaves_all_of_a_read() -> None:
    found = where((FIELD("flag") == 1) & (FIELD("topic") == "A"))
    assert found.pruning == NO_PRUNING
    assert {field.name for field in found.columns} == {"flag", "topic"}
    batch = pa.RecordBatch.from_pylist([{"flag": 1, "topic": "A"}, {"flag": 1, "topic": "B"}])
    assert found.keep(batch).to_pylist() == [{"flag": 1, "topic": "A"}]


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("queuOffset = 1", "character 1: 'queuOffset' is not a column: did you mean queueOffset?"),
        ("topic = 'A' OR queue_id = 1",
         "character 16: 'queue_id' is not a column: did you mean queueId?"),
        ("price > 5", "'price' is not a column: there are topic, .*properties go into filter="),
        ("topic = 1", "character 9: expected text in single quotes to compare topic with, found 1"),
        ("queueId = '1'", "character 11: expected an integer to compare queueId with, found '1'"),
        ("queueId = 1.5", "character 11: columns hold integers only"),
        ("queueId = 99999999999999999999", "character 11: 99999999999999999999 is beyond 64 bits"),
        ("queueOffset < 9223372036854775808", "9223372036854775808 is beyond 64 bits"),
        ("queueId = " + "9" * 5000, "character 11: 9{200}… is beyond 64 bits"),
        ("storeTimestamp > 'soon'", "character 18: 'soon' is not a time like"),
        ("storeTimestamp > 9223372036854775807", "9223372036854775807 ms is beyond the calendar"),
        ("storeTimestamp > tomorrow",
         "expected a time in quotes, or epoch ms, to compare storeTimestamp with"),
        ("properties = 'x'", "properties cannot be compared; filter= asks for properties"),
        ("queueId LIKE '1%'", "character 9: LIKE compares text, and queueId holds none"),
        ("topic LIKE 5", "expected a pattern in single quotes, found 5"),
        ("topic = 'A' tags = 'x'", "character 13: expected AND, OR or the end, found tags"),
        ("topic = 'A' AND", 'character 16: expected a column, NOT or "\\(", found the end'),
        ("(topic = 'A'", 'character 13: expected AND, OR or "\\)", found the end'),
        ("topic = 'A')", "character 12: expected AND, OR or the end, found \\)"),
        ("topic IN ()", "character 11: expected text in single quotes"),
        ("topic IN ('A' 'B')", 'character 15: expected "," or "\\)", found \'B\''),
        ("queueId BETWEEN 1 OR 2", "expected AND between the two ends of BETWEEN, found OR"),
        ("topic IS 'A'", "expected NULL or NOT NULL, found 'A'"),
        ("topic IS NOT 'A'", "expected NULL, found 'A'"),
        ("topic NOT = 'A'", "expected =, <>, <, <=, >, >=, IN, BETWEEN, LIKE or IS, found ="),
        ("topic = 'A", "character 9: text that does not end"),
        ('topic = "A"', "a double quote; text stands in single quotes"),
        ("topic = 'A'; DROP", "character 12: ';' has no place in a condition"),
        ("topic = '\ud800'", "character 9: text that UTF-8 cannot hold"),
        ("(" * 65 + "queueId = 1" + ")" * 65, "character 65: nested deeper than 64 levels"),
        ("NOT " * 65 + "queueId = 1", "nested deeper than 64 levels"),
        (FIELD("queuOffset") == 1, r"where .*: No match for FieldRef.Name\(queuOffset\)"),
        (FIELD("topic") == 1, "where .*: Function 'equal' has no kernel matching input types"),
        (FIELD("topic"), "where topic: Filter expression must evaluate to bool"),
        (FIELD(0) == "A", "name columns, their numbers change"),
        (5, "where: text or a pyarrow.compute.Expression, got int"),
        (lambda row: row, "where: text or a pyarrow.compute.Expression, got function"),
    ],
    ids=lambda value: ascii(getattr(value, "__name__", str(value)[:40])),
)  # fmt: skip
def test_what_is_refused_and_why(condition: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        where(condition)


@pytest.mark.parametrize(
    ("condition", "quoted"),
    [
        ("`topic` = 'A'", "\"`topic` = 'A'\", character 1: expected a column or a value"),
        ("""topic = 'A' OR tags = "B" """, """ "topic = 'A' OR tags = "B" ", character 23: """),
        ("topic = 'A\n\x1b", "\"topic = 'A\\n\\x1b\", character 9: "),
        ("x = 1" + " OR x = 2" * 99, "'" + ("x = 1" + " OR x = 2" * 99)[:200] + "…', character 1:"),
        ("flag = 1" + " OR flag = 1" * 99 + " OR x = 2", "flag = 1 OR x = 2', character 1201: "),
    ],
)  # fmt: skip
def test_an_error_quotes_a_condition_as_it_was_typed(condition: str, quoted: str) -> None:
    """Also where another front end renames the arguments that a text marks."""
    names = argument_names(lambda text: rename_arguments(text, lambda *_: "--X"))
    with pytest.raises(OptionError) as caught, names:
        parse(condition, ALL_COLUMNS)
    assert quoted.strip() in str(caught.value)
    assert str(caught.value).startswith("--X ")


@pytest.mark.parametrize("nothing", [None, "", "  \n"])
def test_no_condition_asks_for_all_rows(nothing: str | None) -> None:
    assert parse_where(nothing, ALL_COLUMNS) is None


TABLE = pa.schema(
    [
        ("topic", pa.string()), ("queueId", pa.int32()), ("queueOffset", pa.int64()),
        ("body", pa.binary()), ("storeTimestamp", pa.timestamp("us", "UTC")),
        ("isValid", pa.bool_()),
    ]
)  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "topic": ["A", "B", "Ab", "A_b", "A%", "it's", "", None],
    "queueId": [-1, 0, 1, 5, None],
    "queueOffset": [0, 1, 99, 1 << 40, None],
    "body": [b"A", b"xyz", b"", None],
    "storeTimestamp": [DAY, DAY + timedelta(milliseconds=1), DAY - timedelta(days=9), None],
    "isValid": [True, False, None],
}
PLAIN: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
Judge = Callable[[dict[str, Any]], bool | None]


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, datetime):
        return f"'{value.isoformat()}'" if value.microsecond else str(int(value.timestamp() * 1000))
    text = value.decode() if isinstance(value, bytes) else value
    return "'" + text.replace("'", "''") + "'"


def random_condition(chance: random.Random, depth: int = 0) -> tuple[str, Judge]:
    """Return a condition, and a plain function that says, as SQL does, whether a row meets it."""
    kind = chance.choice(["leaf", "leaf", "AND", "OR", "NOT"]) if depth < 4 else "leaf"
    if kind == "leaf":
        return random_comparison(chance)
    text, judge = random_condition(chance, depth + 1)
    if kind == "NOT":
        return f"NOT ({text})", lambda row: None if judge(row) is None else not judge(row)
    other, second = random_condition(chance, depth + 1)
    last = kind == "OR"

    def join(row: dict[str, Any]) -> bool | None:
        found = (judge(row), second(row))
        return last if last in found else None if None in found else not last

    return f"({text}) {kind} ({other})", join


def random_comparison(chance: random.Random) -> tuple[str, Judge]:
    name = chance.choice(list(VALUES))
    values = [value for value in VALUES[name] if value is not None]
    symbol = chance.choice([*PLAIN, "IN", "NOT IN", "BETWEEN", "IS NULL", "IS NOT NULL"])
    if symbol in ("IS NULL", "IS NOT NULL"):
        return f"{name} {symbol}", lambda row: (row[name] is None) == (symbol == "IS NULL")
    some = chance.choices(values, k=2)
    words = [literal(value) for value in some]
    if symbol in PLAIN:
        return (
            f"{name} {symbol} {words[0]}",
            lambda row: None if row[name] is None else PLAIN[symbol](row[name], some[0]),
        )
    if symbol == "BETWEEN":
        return (
            f"{name} BETWEEN {words[0]} AND {words[1]}",
            lambda row: None if row[name] is None else some[0] <= row[name] <= some[1],
        )
    return (
        f"{name} {symbol} ({', '.join(words)})",
        lambda row: None if row[name] is None else (row[name] in some) == (symbol == "IN"),
    )


@pytest.mark.parametrize("seed", tiers.seeds(10))
def test_rows_meet_a_condition_as_in_sql(seed: int) -> None:
    chance = random.Random(seed)
    rows = [{name: chance.choice(values) for name, values in VALUES.items()} for _ in range(200)]
    batch = pa.RecordBatch.from_pylist(rows, TABLE)
    for _ in range(40):
        text, judge = random_condition(chance)
        found = parse_where(text, TABLE)
        assert found is not None
        assert found.keep(batch).to_pylist() == [row for row in rows if judge(row)], text


@pytest.mark.parametrize(
    ("pattern", "met"),
    [
        ("A%", ["A", "Ab", "A_b", "A%"]), ("A_b", ["A_b"]), ("A_", ["Ab", "A%"]), ("A\\%", ["A%"]),
        ("%b", ["Ab", "A_b"]), ("A\\_%", ["A_b"]), ("", [""]), ("it''s", ["it's"]),
    ],
)  # fmt: skip
def test_patterns(pattern: str, met: list[str]) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"topic": value} for value in VALUES["topic"]], pa.schema([TABLE.field("topic")])
    )
    found = where(f"topic LIKE '{pattern}'")
    assert found.keep(batch).column("topic").to_pylist() == met
    assert all(value.startswith(found.pruning.topic_prefixes) for value in met)
    rest = where(f"topic NOT LIKE '{pattern}'").keep(batch).column("topic").to_pylist()
    assert rest == [value for value in VALUES["topic"] if value is not None and value not in met]


def test_not_moves_into_the_comparisons_and_back() -> None:
    tree = parse("topic = 'A' AND (queueId < 1 OR tags LIKE 'x%') OR keys IS NULL", ALL_COLUMNS)
    assert isinstance(tree, Joined)
    assert tree.negated() != tree
    assert tree.negated().negated() == tree


def test_keywords_and_blanks_are_free() -> None:
    assert (
        where("\ttopic\nin('A','B')and not queueId=1").condition
        == where("topic IN ('A', 'B') AND NOT queueId = 1").condition
    )


def test_rows_of_a_large_batch_keep_their_order() -> None:
    batch = pa.record_batch({"queueOffset": pa.array(range(300_000), pa.int64())})
    kept = where(FIELD("queueOffset") >= 7).keep(batch)
    assert kept.column("queueOffset").to_pylist() == list(range(7, 300_000))
    assert where(FIELD("queueOffset") < 0).keep(batch).num_rows == 0


def test_the_index_is_not_asked_for_keys_of_which_it_holds_no_word() -> None:
    assert where("keys IN ('k1', 'k2 k3')").pruning.lookup_keys.keys == texts("k1", "k2")
    assert not where("keys IN ('k1', ' ')").pruning.lookup_keys.keys
    assert not where("keys = 'k1' OR keys = ''").pruning.lookup_keys.keys
