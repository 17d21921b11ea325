"""Tables as text."""

from __future__ import annotations

from rmqstore.exchange.text_table import escaped, fitted, framed, padded

NAMES = ["topic", "body"]
ROWS = [["T", "one\ntwo"], ["Orders", "x" * 40], ["\u8ba2\u5355" * 2, "a\tb\x1b[2J"]]


def test_whole_cells_keep_their_lines() -> None:
    lines = list(framed(NAMES, ROWS))
    assert lines[3:5] == [
        "\u2502 T        \u2502 one" + " " * 37 + " \u2502",
        "\u2502          \u2502 two" + " " * 37 + " \u2502",
    ]
    assert len(lines[0]) == 55
    assert len(lines) == 8


def test_a_row_is_one_line_where_cells_are_cut() -> None:
    fit = fitted(NAMES, ROWS, 30)
    assert (fit.columns, fit.widths) == ([0, 1], [8, 15])
    lines = list(framed(NAMES, ROWS, fit.widths))
    assert len(lines) == 7
    assert {len(line) for line in lines[:5]} == {30}
    assert "one two" in lines[3]
    assert "x" * 14 + "\u2026 \u2502" in lines[4]


def test_control_characters_have_pictures_and_wide_ones_take_two_columns() -> None:
    (row,) = list(framed(NAMES, ROWS[2:]))[3:4]
    assert "a\u2409b\u241b[2J" in row
    assert "\u2502 \u8ba2\u5355\u8ba2\u5355 \u2502" in row
    assert "\u2502 \u8ba2\u2026 " in list(framed(NAMES, ROWS[2:], [3, 3]))[3]


NUMBERS = ["brokerName", "topic", "queueId", "storeTimestamp", "msgId", "lag", "reason"]
TIME = "2026-11-21T02:17:02.331+00:00"
MESSAGES = [
    ["a", "Orders", "0", TIME, "F" * 32, "7", "-"],
    ["a", "T", "1", "-", "E" * 32, "8", "-"],
]


def test_columns_that_do_not_fit_are_left_out_and_ids_stay_whole() -> None:
    assert fitted(NUMBERS, MESSAGES, 200).columns == [*range(7)]
    fit = fitted(NUMBERS, MESSAGES, 97)
    assert fit.left_out(NUMBERS) == ["reason"]
    lines = list(framed(fit.cells(NUMBERS), [fit.cells(row) for row in MESSAGES], fit.widths))
    assert {len(line) for line in lines} == {96}
    assert "2026-11-21 02:17:02" in lines[3]
    assert "F" * 32 in lines[3]
    assert fitted(NUMBERS, MESSAGES, 60).left_out(NUMBERS) == ["brokerName", "msgId", "reason"]
    others = [["b", *MESSAGES[0][1:]], MESSAGES[1]]
    assert "brokerName" not in fitted(NUMBERS, others, 60).left_out(NUMBERS)


def test_what_was_asked_for_stays_and_what_fits_beside_it() -> None:
    names = ["kind", "topic", "storeTimestamp", "consumerOffset", "msgId", "state", "storeSize"]
    rows = [["message", "Orders", TIME, "25", "F" * 32, "consumed", "415"]]
    assert fitted(names, rows, 60).left_out(names) == ["consumerOffset", "msgId", "storeSize"]
    assert fitted(names, rows, 72).left_out(names) == ["msgId", "storeSize"]
    assert fitted(names, rows, 84).left_out(names) == ["msgId"]


def test_what_the_user_chose_is_cut_rather_than_left_out() -> None:
    fit = fitted(NUMBERS, MESSAGES, 60, keeps_all=True)
    assert fit.columns == [*range(7)]
    assert sum(fit.widths) + 3 * 7 + 1 <= 60
    assert fitted(["topic"], [["x" * 90]], 20).widths == [16]


def test_a_very_long_cell_does_not_widen_the_others() -> None:
    lines = list(framed(["topic", "body"], [["T", "x" * 100_000], ["T", "y"]]))
    assert sum(map(len, lines)) < 102_000
    assert len(padded(["T", "y", "z"], [5, 100_000, 1])) < 300


def test_what_a_terminal_obeys_is_shown() -> None:
    lines = list(framed(["body"], [["a\u202eb\u2028c\x9b1m"]]))
    assert "a\\u202eb\\u2028c\\u009b1m" in lines[3]
    assert escaped('{"a":"\u202e\x7f\x1b"}\n') == '{"a":"\\u202e\\u007f\\u001b"}\n'
