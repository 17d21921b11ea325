"""Tables as text."""

from __future__ import annotations

from rmqstore.exchange.text_table import framed, natural_width

NAMES = ["topic", "body"]
ROWS = [["T", "one\ntwo"], ["Orders", "x" * 40], ["\u8ba2\u5355" * 2, "a\tb\x1b[2J"]]


def test_whole_cells_keep_their_lines() -> None:
    lines = list(framed(NAMES, ROWS))
    assert lines[3:5] == [
        "\u2502 T        \u2502 one" + " " * 37 + " \u2502",
        "\u2502          \u2502 two" + " " * 37 + " \u2502",
    ]
    assert natural_width(NAMES, ROWS) == len(lines[0]) == 55
    assert len(lines) == 8


def test_a_row_is_one_line_where_cells_are_cut() -> None:
    lines = list(framed(NAMES, ROWS, 30))
    assert len(lines) == 7
    assert {len(line) for line in lines[:5]} == {30}
    assert "one two" in lines[3]
    assert "x" * 14 + "\u2026 \u2502" in lines[4]


def test_control_characters_have_pictures_and_wide_ones_take_two_columns() -> None:
    (row,) = list(framed(NAMES, ROWS[2:]))[3:4]
    assert "a\u2409b\u241b[2J" in row
    assert "\u2502 \u8ba2\u5355\u8ba2\u5355 \u2502" in row
    assert "\u2502 \u8ba2\u2026  \u2502" in list(framed(NAMES, ROWS[2:], 10))[3]
