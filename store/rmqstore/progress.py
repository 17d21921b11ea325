"""Progress of long work, as a callback."""

from __future__ import annotations

from collections.abc import Callable

# called now and then with how much is done, such as bytes of the log, and the total
Progress = Callable[[int, int], None]
# called with the records that were read, and their bytes, whether or not they were chosen
Advance = Callable[[int, int], None]


def ignore_progress(done: int, total: int) -> None:
    """Do nothing; the default progress callback."""


class Tally:
    """Adds up the progress of a read, for a callback that takes the sum and the total."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = self._total = 0

    def expect(self, amount: int) -> None:
        """Add to the total."""
        self._total += amount
        self._progress(self._done, self._total)

    def add_records(self, n_records: int, _n_bytes: int) -> None:
        """Note read records, if records are counted."""
        self._add(n_records)

    def add_bytes(self, _n_records: int, n_bytes: int) -> None:
        """Note the bytes of read records, if bytes are counted."""
        self._add(n_bytes)

    def _add(self, amount: int) -> None:
        self._done += amount
        self._progress(self._done, max(self._done, self._total))
