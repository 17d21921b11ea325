"""What tests are told where two tables of rows differ."""

from __future__ import annotations

from reading import differing_columns


def test_the_columns_that_differ_are_named_each_once() -> None:
    left = [{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}]
    assert differing_columns(left, left) == []
    assert differing_columns(left, [{"a": 1, "b": 2}, {"a": 1, "b": 7, "d": 4}]) == [
        "column c is on the left only",
        "column b differs, at row 1: 2 and 7",
        "column d is on the right only",
    ]


def test_tables_by_queue_are_named_by_their_queue() -> None:
    left, right = {("T", 0): [{"a": 1}], ("T", 1): []}, {("T", 0): [{"a": 2}]}
    assert differing_columns(left, right) == ["column a differs, at ('T', 0), row 0: 1 and 2"]


def test_of_what_is_no_table_nothing_is_told() -> None:
    assert differing_columns([1], [2]) == []
    assert differing_columns([{"a": 1}], None) == []
    assert differing_columns({"a": 1}, {"a": 2}) == []
