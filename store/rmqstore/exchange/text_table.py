"""Tables as text, with a frame, as wide as their text or cut to a width."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final, TextIO
from unicodedata import category, east_asian_width

_ELLIPSIS: Final = "…"
_MOST_PADDING: Final = 200  # a longer cell, such as a body, does not widen all others
_BIDI: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
# What a terminal obeys and does not show, or what begins a line.
_COMMANDS: Final = (*range(0x80, 0xA0), *_BIDI, 0x2028, 0x2029)
_ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(0x20), 0x7F, *_COMMANDS)}
# A control character would move what stands after it; each has a picture.
_PICTURES: Final = (
    {code: f"\\u{code:04x}" for code in _COMMANDS}
    | {code: chr(0x2400 + code) for code in range(0x20) if code != ord("\n")}
    | {0x7F: chr(0x2421)}
)


def harmless(text: str) -> str:
    """Return text in which characters that a terminal obeys are shown; lines stay lines."""
    return text if text.isascii() and text.isprintable() else text.translate(_PICTURES)


def escaped(text: str) -> str:
    """Return lines of JSON or CSV in which such characters are escaped as in JSON."""
    return text.translate(_LINE_ESCAPES)


_LINE_ESCAPES: Final = {code: text for code, text in _ESCAPES.items() if code != ord("\n")}


def framed(
    names: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int] | None = None
) -> Iterator[str]:
    """Yield the lines of a table.

    Args:
        names: the heads of the columns.
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
    n_columns, end = 0, 0
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
