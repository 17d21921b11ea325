"""Where rows come from, so that an error names the file and the line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from rmqstore.errors import IllegalMessageError, IllegalRowError, Text


class RowPlaces:
    """The places of the rows of a batch in their file, and the number of its first row among all.

    Readers of files note each batch before they yield it. Rows and lines are counted from 1.
    """

    def __init__(self) -> None:
        self._first = self._after = 1
        self._source, self._unit = "", "row"
        self._numbers: Sequence[Sequence[int]] = ()

    def note(self, source: str, unit: str, numbers: Sequence[Sequence[int]]) -> None:
        """Keep the places of the rows that come next.

        Args:
            source: name of the file.
            unit: what is counted in it: ``line`` or ``row``.
            numbers: the numbers of the rows, in pieces.
        """
        self._source, self._unit, self._numbers = source, unit, numbers
        self._first = self._after
        self._after += sum(map(len, numbers))

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Let errors of rows name their places."""
        try:
            yield
        except IllegalRowError as err:
            raise self.named(err) from err

    def named(self, err: IllegalRowError) -> IllegalMessageError:
        """Return an error that names the file and the line of a row of the last batch."""
        if not self._first <= err.row < self._after:
            return err
        number = [*chain.from_iterable(self._numbers)][err.row - self._first]
        return IllegalMessageError(Text(f"{self._source}: {self._unit} {number}: ", err.reason))
