"""Tables as text, with a frame, whose columns fit a width."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TextIO
from unicodedata import category, east_asian_width

_EDGES: Final = 3  # between two columns, and at both ends together with 1
_ELASTIC_WIDTH: Final = 12  # the least of a column whose cells may be cut
# Columns of text of any length; all others, such as ids and times, are shown whole or not at all.
_ELASTIC: Final = {"body", "bodyHex", "bodyBase64", "properties", "reason", "path", "found", "cure"}
_LESS_ASKED: Final = {"brokerName", "reason", "minOffset"}  # where all rows have the same
# What a view or a trace is asked for, which goes last.
_ANSWERS: Final = {
    "consumerGroup", "isPassed", "keys", "kind", "lag", "originTopic", "reconsumeTimes", "state",
}  # fmt: skip
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?\+00:00")
_NOTHING: Final = "-"

_ELLIPSIS: Final = "…"
_MOST_PADDING: Final = 200  # a longer cell, such as a body, does not widen all others
_BIDI: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
# What a terminal obeys and does not show, or what begins a line.
_COMMANDS: Final = (*range(0x80, 0xA0), *_BIDI, 0x2028, 0x2029)
_ESCAPES: Final = {
    code: f"\\u{code:04x}" for code in (*range(0x20), 0x7F, *_COMMANDS) if code != ord("\n")
}
# A control character would move what stands after it; each has a picture.
_PICTURES: Final = (
    {code: f"\\u{code:04x}" for code in _COMMANDS}
    | {code: chr(0x2400 + code) for code in range(0x20) if code != ord("\n")}
    | {0x7F: chr(0x2421)}
)


class Fitted(NamedTuple):
    """What a terminal shows of a table.

    Attributes:
        columns: the numbers of its columns.
        widths: how many columns of text each takes.
        are_times_short: whether times stand without fractions of seconds and their zone, UTC.
    """

    columns: list[int]
    widths: list[int]
    are_times_short: bool

    def cells(self, row: Sequence[str]) -> list[str]:
        """Return the cells of a row that are shown."""
        cells = [row[column] for column in self.columns]
        return [*map(short_time, cells)] if self.are_times_short else cells

    def left_out(self, names: Sequence[str]) -> list[str]:
        """Return the names of the other columns."""
        return [name for number, name in enumerate(names) if number not in self.columns]


def short_time(cell: str) -> str:
    """Return a time without fractions of seconds and zone, any other text as it is."""
    match = _TIME.fullmatch(cell)
    return f"{match[1]} {match[2]}" if match else cell


def fitted(
    names: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, keeps_all: bool = False
) -> Fitted:
    """Choose the columns of a table that fit into one line of a terminal.

    Times become shorter first. Then columns are left out: those that say nothing, those that are
    the same or empty in most stores, others from the right, and what was asked for last. Those
    that fit after all come back. At least one stays. Where nothing else helps, all cells are cut.

    Args:
        names: the headers.
        rows: the cells.
        width: the most columns of text that a line may take.
        keeps_all: whether the user chose the columns, so that none is left out.
    """
    every = [*range(len(names))]
    natural = _widths(names, rows)
    if _total(natural) <= width:
        return Fitted(every, natural, are_times_short=False)
    natural = _widths(names, [[*map(short_time, row)] for row in rows])
    least = [
        min(width, max(len(name), _ELASTIC_WIDTH)) if name in _ELASTIC else width
        for name, width in zip(names, natural, strict=True)
    ]
    kept = every if keeps_all else _kept(names, rows, least, width)
    widths = [least[column] for column in kept]
    # Where the least widths are too much, the widest are made equal until they fit.
    while _total(widths) > width and max(widths) > 1:
        widest = max(widths)
        widths = [min(taken, widest - 1) for taken in widths]
    # What is left is for the elastic columns, those first that need the least of it.
    left = width - _total(widths)
    needed = [natural[column] - taken for column, taken in zip(kept, widths, strict=True)]
    for number in sorted(range(len(kept)), key=needed.__getitem__):
        column = kept[number]
        more = min(max(left, 0), natural[column] - least[column])
        widths[number] += more
        left -= more
    return Fitted(kept, widths, are_times_short=True)


def _widths(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(width_of(cell) for cell in column) for column in zip(names, *rows, strict=True)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _EDGES * len(widths) + 1


def _kept(
    names: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[int], width: int
) -> list[int]:
    """Return the numbers of the columns that stay.

    Args:
        rows: the cells.
        least: the least width of each column.
        width: the most columns of text that a line may take.
    """

    def fits(columns: Sequence[int]) -> bool:
        return _total([least[column] for column in columns]) <= width

    from_right = [*reversed(range(len(names)))]
    says_nothing = [column for column in from_right if all(row[column] == _NOTHING for row in rows)]
    less_asked = [
        column
        for column in from_right
        if names[column] in _LESS_ASKED and len({row[column] for row in rows}) == 1
    ]
    answers_last = sorted(from_right, key=lambda column: names[column] in _ANSWERS)
    least_asked_first = [*dict.fromkeys([*says_nothing, *less_asked, *answers_last])]
    kept = [*least_asked_first]
    while len(kept) > 1 and not fits(kept):
        kept = kept[1:]
    for column in reversed(least_asked_first):
        if column not in {*kept, *says_nothing} and fits([*kept, column]):
            kept = [*kept, column]
    return sorted(kept)


def harmless(text: str) -> str:
    """Return text with visible control characters; lines stay lines."""
    return text if text.isascii() and text.isprintable() else text.translate(_PICTURES)


def escaped(text: str) -> str:
    """Return lines of JSON or CSV in which such characters are escaped as in JSON."""
    return text.translate(_ESCAPES)


def framed(
    names: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int] | None = None
) -> Iterator[str]:
    """Yield the lines of a table.

    Args:
        names: the headers of the columns.
        rows: the cells, which may have several lines if nothing is cut.
        widths: the most columns of text of each column; then each row is one line, and longer cells
            end with an ellipsis. None for whole cells.
    """
    table = [[harmless(cell) for cell in row] for row in (names, *rows)]
    if widths is not None:
        table = [one_line(row, widths) for row in table]
    padding = [
        min(max(width_of(line) for row in table for line in row[column].split("\n")), _MOST_PADDING)
        for column in range(len(names))
    ]
    head, *body = table
    yield _rule("┏━┳┓", padding)
    yield from _lines(head, padding, "┃")
    yield _rule("┡━╇┩", padding)
    for row in body:
        yield from _lines(row, padding, "│")
    yield _rule("└─┴┘", padding)


def one_line(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return cells without line ends, cut to these widths."""
    return [
        _cut(harmless(cell).replace("\n", " "), most)
        for cell, most in zip(row, widths, strict=True)
    ]


def padded(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return cells in one line, those of a column below each other unless one is very long."""
    columns = zip(cells, widths, strict=True)
    return "  ".join(cell.ljust(min(width, _MOST_PADDING)) for cell, width in columns).rstrip()


def width_of(text: str) -> int:
    """Return how many columns of a terminal a line takes."""
    if text.isascii():
        return len(text)
    return sum(map(_width_of, text))


def _width_of(character: str) -> int:
    if category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _cut(cell: str, most: int) -> str:
    if len(cell) <= most and width_of(cell) <= most:
        return cell
    n_columns = end = 0
    for end, character in enumerate(cell):  # noqa: B007 - used after the loop
        n_columns += _width_of(character)
        if n_columns > most - 1:
            break
    return cell[:end] + _ELLIPSIS


def _rule(corners: str, widths: list[int]) -> str:
    left, line, between, right = (*corners,)
    return left + between.join(line * (width + 2) for width in widths) + right


def _lines(row: list[str], widths: list[int], edge: str) -> Iterator[str]:
    """Yield the lines of one row."""
    for cells in zip_longest(*(cell.split("\n") for cell in row), fillvalue=""):
        padded = (
            cell + " " * (width - width_of(cell)) for cell, width in zip(cells, widths, strict=True)
        )
        yield f"{edge} " + f" {edge} ".join(padded) + f" {edge}"


class Shown:
    """A terminal on which bytes of text cannot do anything but be shown."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._decoder = getincrementaldecoder("utf-8")("replace")

    closed = False  # which pyarrow asks

    def write(self, data: Any) -> int:  # noqa: ANN401 - what has a buffer
        """Write text in UTF-8."""
        self._text.write(escaped(self._decoder.decode(bytes(data))))
        return len(data)

    def flush(self) -> None:
        """Show what was written."""
        self._text.flush()
