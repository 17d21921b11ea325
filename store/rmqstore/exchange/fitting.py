"""Which columns of a table a terminal shows, and how wide each is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from rmqstore.exchange.text_table import width_of

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
    """Choose the columns of a table that fit into a terminal, where each row is one line.

    Times become shorter first. Then columns are left out: those that say nothing, those that are
    the same or empty in most stores, others from the right, and what was asked for last. Those
    that fit after all come back. At least one stays. Where nothing else helps, all cells are cut.

    Args:
        names: the heads.
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
    widths = _shared([natural[one] for one in kept], [least[one] for one in kept], width)
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
        names: the heads.
        rows: the cells.
        least: the least width of each column.
        width: the most columns of text that a line may take.
    """

    def fits(columns: Sequence[int]) -> bool:
        return _total([least[one] for one in columns]) <= width

    from_right = [*reversed(range(len(names)))]
    says_nothing = [one for one in from_right if all(row[one] == _NOTHING for row in rows)]
    less_asked = [
        one
        for one in from_right
        if names[one] in _LESS_ASKED and len({row[one] for row in rows}) == 1
    ]
    answers_last = sorted(from_right, key=lambda one: names[one] in _ANSWERS)
    least_asked_first = [*dict.fromkeys([*says_nothing, *less_asked, *answers_last])]
    kept = [*least_asked_first]
    while len(kept) > 1 and not fits(kept):
        kept = kept[1:]
    for column in reversed(least_asked_first):
        if column not in {*kept, *says_nothing} and fits([*kept, column]):
            kept = [*kept, column]
    return sorted(kept)


def _shared(natural: list[int], least: list[int], width: int) -> list[int]:
    """Return the widths of columns: the least of each, and what is left for the elastic ones.

    Where the least are too much, the widest are made equal until they fit.
    """
    widths = [*least]
    while _total(widths) > width and max(widths) > 1:
        widest = max(widths)
        widths = [min(one, widest - 1) for one in widths]
    left = width - _total(widths)
    for number in sorted(range(len(widths)), key=lambda one: natural[one] - widths[one]):
        more = min(max(left, 0), natural[number] - least[number]) if left > 0 else 0
        widths[number] += more
        left -= more
    return widths
