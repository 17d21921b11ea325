"""What a power cut leaves of a store: its files less pages that were not flushed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

PAGE = 4096
Queue = tuple[str, int]


class Durable(NamedTuple):
    """How far a store is on the disk for certain: its log, and each of its queues in units."""

    log_end: int
    queue_ends: dict[Queue, int]


def cut_files(root: Path, durable: Durable, dice: random.Random) -> None:
    """Clear what a power cut loses of unflushed bytes: an end of the log, or scattered pages."""
    log = root / "commitlog"
    ends = dice.random() < 0.5
    place = dice.randint(durable.log_end, written_end(log)) if ends else 0
    for start, path in files_of(log):
        with path.open("r+b") as file:
            size = path.stat().st_size
            if ends:
                clear(file, max(place - start, 0), size)
            else:
                clear_pages(file, max(durable.log_end - start, 0), size, dice)
    share = dice.choice([0.0, 0.3, 1.0])
    for (topic, queue_id), units_end in durable.queue_ends.items():
        for start, path in files_of(root / "consumequeue" / topic / str(queue_id)):
            if dice.random() < share:
                with path.open("r+b") as file:
                    clear_pages(file, max(units_end * 20 - start, 0), path.stat().st_size, dice)


def clear(file: Any, start: int, end: int) -> None:
    if start < end:
        file.seek(start)
        file.write(bytes(end - start))


def clear_pages(file: Any, start: int, end: int, dice: random.Random) -> None:
    share = dice.choice([0.2, 0.5])
    for page in range(start // PAGE * PAGE, end, PAGE):
        if dice.random() < share:
            clear(file, max(page, start), min(page + PAGE, end))


def files_of(folder: Path) -> list[tuple[int, Path]]:
    return (
        sorted((int(path.name), path) for path in folder.iterdir() if path.name.isdigit())
        if folder.exists()
        else []
    )


def written_end(folder: Path) -> int:
    """Return the offset after the last byte of a folder's files that is not zero."""
    return max(
        (start + len(path.read_bytes().rstrip(b"\0")) for start, path in files_of(folder)),
        default=0,
    )
