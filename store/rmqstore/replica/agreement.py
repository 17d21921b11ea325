"""The requests of a follower, and its conclusions from compared bytes.

Two logs of one broker differ only by a cut and by what was written after it. Records carry their
time and their place, so the logs agree up to some physical offset and differ from there on: if the
last record of a copy agrees, all before it do. A complete record has to agree, because zeros and
equal bodies agree by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore.errors import OptionError, StoreStateError
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.storage.broker.epochs import Epoch

OVERLAP_BYTES: Final = 8 << 20  # a record, or the blank at the end of a file, is shorter


def begin_at(start: str | int, bounds: LogBounds, file_size: int, *, is_new: bool) -> int:
    """Return where a copy without a record begins: always with a file of the broker.

    Args:
        start: what was asked for: ``earliest``, ``last-file`` or a physical offset.
        bounds: where the log of the broker begins and ends.
        file_size: bytes of each file of it.
        is_new: whether there was no copy before, so that the broker has to have what was asked
            for. Else the copy begins as near to it as the log of the broker now is.

    Raises:
        OptionError: the broker does not have it.
        StoreStateError: the log of the broker does not begin with a file.
    """
    if bounds.low % file_size:
        raise StoreStateError(
            f"the broker says that its log begins at {bounds.low}, where no file of {file_size} "
            "bytes begins: nothing of it is copied"
        )
    if start == "earliest":
        return bounds.low
    offset = bounds.high if start == "last-file" else int(start)
    if not is_new:
        offset = min(max(offset, bounds.low), bounds.high)
    if not bounds.contains(offset):
        raise OptionError(
            f"`start` {offset}: the log of the broker is from {bounds.low} to {bounds.high}"
        )
    return max(offset - offset % file_size, bounds.low)


def compared_from(copied: LogBounds, bounds: LogBounds, overlap: int) -> int:
    """Return the physical offset from which a copy is compared with the log of its source."""
    return max(copied.low, bounds.low, min(copied.high, bounds.high) - overlap)


def request_at(physical_offset: int, bounds: LogBounds, file_size: int) -> int:
    """Return what to ask for to get the log from a physical offset on.

    0 stands for the start of the last file, so byte 0 of a longer log is not asked for. It is the
    highest byte of the size of a record, which is always 0.
    """
    if physical_offset == 0 and bounds.high >= file_size:
        return 1
    return physical_offset


def served_bounds(
    bounds: LogBounds, epochs: Sequence[Epoch], end: int, file_size: int
) -> LogBounds:
    """Return the part of its log that a broker in controller mode serves, from a file's start on.

    It does not serve what lies before its first epoch, as it has where it was in default mode
    before.

    Args:
        bounds: where the log begins and ended a moment ago.
        epochs: its epochs, at least one.
        end: where it now ends.
        file_size: bytes of each file.

    Raises:
        StoreStateError: it does not serve a file from its start on.
    """
    first = epochs[0].start_offset
    if first <= bounds.low:
        return LogBounds(bounds.low, max(end, bounds.low))
    low = first + -first % file_size
    if low > end:
        raise StoreStateError(
            f"the broker serves its log from {first} on only, where its first epoch starts, and "
            f"its next file begins at {low}: follow it into a new folder when its log has come as "
            "far"
        )
    return LogBounds(low, end)


def has_gap(root: Path, copied: LogBounds, bounds: LogBounds, *, begins_again: bool) -> bool:
    """Return whether a broker has nothing of a copy, with which it could be compared.

    Args:
        root: the folder of the copy.
        copied: where the copy begins and ends.
        bounds: what the broker serves.
        begins_again: whether a new copy is to begin then.

    Raises:
        StoreStateError: it has not, and no new copy is to begin.
    """
    if copied.low == copied.high:
        return False
    if bounds.high < copied.low:
        raise StoreStateError(
            f"{root} begins at {copied.low}, and the log of the broker ends at {bounds.high}: "
            "it now has another log. Keep the copy, and follow the broker into a new folder"
        )
    if copied.high > bounds.low:
        return False
    if not begins_again:
        how = "without a gap" if copied.high < bounds.low else "without being compared"
        raise StoreStateError(
            f"{root} ends at {copied.high}, and the broker has nothing to serve before "
            f"{bounds.low}: the copy cannot continue {how}. Keep it, and follow the broker into a "
            "new folder"
        )
    return True


def consistent_point(
    own: Sequence[Epoch], own_end: int, others: Sequence[Epoch], others_end: int
) -> int | None:
    """Return the physical offset up to which two logs agree by their epochs.

    This is the end of the last epoch that both have with the same start. None if there is none.

    Source: EpochFileCache.java#findConsistentPoint.
    """
    stops = [*(epoch.start_offset for epoch in others[1:]), others_end]
    ends = dict(zip(others, stops, strict=True))
    end = own_end
    for epoch in reversed(own):
        if epoch in ends:
            return min(end, ends[epoch])
        end = epoch.start_offset
    return None


class FirstRecord(NamedTuple):
    """The first record of a copy, as the broker's listen port returned it.

    A copy without a record has nothing that the stream could be compared with, and a tunnel may
    lead to the HA port of another broker.

    Attributes:
        begin: where the copy begins.
        record: the record, empty if it was not returned.
        n_come: how many of its bytes have come, and are the same.
    """

    begin: int
    record: bytes
    n_come: int = 0

    @property
    def has_come(self) -> bool:
        """Whether all of it has come; a record that was not returned is not awaited."""
        return self.n_come >= len(self.record)

    def expected(self, start: int, stop: int) -> bytes:
        """Return its bytes between two physical offsets."""
        return self.record[start - self.begin : stop - self.begin]
