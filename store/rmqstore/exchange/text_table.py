"""Tables as text, with a frame, as wide as their text or cut to a width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final
from unicodedata import category, east_asian_width

_ELLIPSIS: Final = "…"
_LEAST_WIDTH: Final = 4  # of a column that is cut
# A control character would move what stands after it; each has a picture.
_PICTURES: Final = {code: 0x2400 + code for code in range(0x20) if code != ord("\n")} | {
    0x7F: 0x2421
}
_PICTURES_OF_ALL: Final = _PICTURES | {ord("\n"): ord(" ")}


def framed(
    names: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table.

    Args:
        names: the heads of the columns.
        rows: the cells, which may have several lines if nothing is cut.
        width: the most columns of text that a line may take; then each row is one line, and the
            widest cells end with an ellipsis. None for whole cells.
    """
    pictures = _PICTURES if width is None else _PICTURES_OF_ALL
    table = [[cell.translate(pictures) for cell in row] for row in (names, *rows)]
    widths = [
        max(_width(line) for row in table for line in row[column].split("\n"))
        for column in range(len(names))
    ]
    if width is not None:
        widths = _fitting(widths, width - 3 * len(widths) - 1)
        table = [
            [_cut(cell, most) for cell, most in zip(row, widths, strict=True)] for row in table
        ]
    head, *body = table
    yield _rule("┏━┳┓", widths)
    yield from _lines(head, widths, "┃")
    yield _rule("┡━╇┩", widths)
    for row in body:
        yield from _lines(row, widths, "│")
    yield _rule("└─┴┘", widths)


def natural_width(names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return how many columns of text the lines of a table with whole cells take."""
    widths = [
        max(_width(line) for cell in column for line in cell.split("\n"))
        for column in zip(names, *rows, strict=True)
    ]
    return sum(widths) + 3 * len(widths) + 1


def _width(text: str) -> int:
    """Return how many columns of a terminal a line takes."""
    if text.isascii():
        return len(text)
    return sum(map(_width_of, text))


def _width_of(character: str) -> int:
    if category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _fitting(widths: list[int], available: int) -> list[int]:
    """Return widths, the widest of which are made equal until they fit."""
    most = max(widths)
    while sum(min(width, most) for width in widths) > available and most > _LEAST_WIDTH:
        most -= 1
    return [min(width, most) for width in widths]


def _cut(cell: str, most: int) -> str:
    if _width(cell) <= most:
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
            cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True)
        )
        yield f"{edge} " + f" {edge} ".join(padded) + f" {edge}"
