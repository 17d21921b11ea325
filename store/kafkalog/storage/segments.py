"""The segments of a partition folder, as a broker that starts would find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kafkalog.storage.names import segment_offset_of
from rmqstore.errors import FileDeletedError
from rmqstore.storage.files.storage import Storage

LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX = ".log", ".index", ".timeindex", ".txnindex"
SWAP: Final = ".swap"  # a finished segment of the cleaner that is being put in place
_MAX_LISTINGS: Final = 100  # of a folder in which files are renamed all the time
CLEANED: Final = ".cleaned"  # a segment that the cleaner or a split is writing


class Segment(NamedTuple):
    """The files of one segment by name; only the log itself need exist.

    Attributes:
        base_offset: a lower bound of the offsets in it.
        stem: path of its files without their suffixes.
        suffix: ``.swap`` if a cleaner was interrupted before it renamed the files, else "".
        log_suffix: of the log file; that of a snapshot of the cluster's metadata is another.
    """

    base_offset: int
    stem: str
    suffix: str = ""
    log_suffix: str = LOG

    @property
    def path(self) -> str:
        """The path of the log file."""
        return self.path_of(self.log_suffix)

    def path_of(self, kind: str) -> str:
        """Return the path of the file of a kind, such as INDEX."""
        return f"{self.stem}{kind}{self.suffix}"


def list_segments(
    storage: Storage, folder: str, next_offset: Callable[[Segment], int]
) -> list[Segment]:
    """Return the segments that a broker would load from a partition folder, by base offset.

    Files that wait for deletion or that a cleaner has not finished are left out. Finished segments
    of an interrupted cleaning take the place of those that they were made from.

    Args:
        storage: the storage to read from.
        folder: path of the partition folder.
        next_offset: returns the offset after the last batch of a segment; asked only if a cleaning
            was interrupted.

    Raises:
        FileDeletedError: the files never stay the same while they are listed.
        UnreadableFileError: the folder cannot be listed.

    Source: LogLoader.java#removeTempFilesAndCollectSwapFiles, #load.
    """
    # A listing may miss a file that is renamed meanwhile, by its old name and by its new one, so a
    # segment that a cleaner puts in place could seem to be gone. Two listings must agree.
    listing = _list_once(storage, folder)
    for _ in range(_MAX_LISTINGS):
        before = listing
        listing = _list_once(storage, folder)
        if listing == before:
            break
    else:
        raise FileDeletedError(folder)
    segments, swaps, unfinished = listing
    if unfinished:
        swaps = [swap for swap in swaps if swap.base_offset < min(unfinished)]
    if swaps:
        start = min(swap.base_offset for swap in swaps)
        end = max(next_offset(swap) for swap in swaps)
        segments = {base: kept for base, kept in segments.items() if not start <= base < end}
        segments |= {swap.base_offset: swap for swap in swaps}
    return [segments[base_offset] for base_offset in sorted(segments)]


def files_of_segments(storage: Storage, folder: str) -> Iterator[tuple[int, str, str]]:
    """Yield the files that are named by an offset: it, the path before its suffix, and the suffix.

    Raises:
        UnreadableFileError: the folder cannot be listed.
    """
    for entry in sorted(storage.list_folder(folder)):
        base_offset = segment_offset_of(entry.name)
        if not entry.is_folder and base_offset is not None:
            number, dot, kind = entry.name.partition(".")
            yield base_offset, f"{folder}/{number}", dot + kind


def _list_once(
    storage: Storage, folder: str
) -> tuple[dict[int, Segment], list[Segment], list[int]]:
    """Return the segments, those that are put in place, and the base offsets of unfinished ones."""
    segments: dict[int, Segment] = {}
    swaps: list[Segment] = []
    unfinished: list[int] = []
    for base_offset, stem, kind in files_of_segments(storage, folder):
        if kind.endswith(CLEANED):
            unfinished.append(base_offset)
        elif kind == LOG + SWAP:
            swaps.append(Segment(base_offset, stem, SWAP))
        elif kind == LOG:
            segments[base_offset] = Segment(base_offset, stem)
    return segments, swaps, unfinished


def holds_segments(storage: Storage, folder: str) -> bool:
    """Return whether a folder has a file that is a segment by its name."""
    return any(
        kind.endswith((LOG, LOG + SWAP)) for _, _, kind in files_of_segments(storage, folder)
    )
