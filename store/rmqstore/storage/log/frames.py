"""Frames and the records in them, by physical offset.

Walks begin and end at frames; queues, the index and message ids point at records. In a plain log
these are the same.
"""

from __future__ import annotations

import numpy as np

from rmqstore.format.framing import FrameNumbers
from rmqstore.format.layout import FRAME_HEAD, Positions
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog, Place


def first_record(log: CommitLog, segment: Segment) -> Place:
    """Return where the first record of a file begins."""
    return Place(segment, log.framing(segment).head_bytes)


def records_in(log: CommitLog, frames: Positions) -> Positions:
    """Return the physical offsets of the records in frames, (n,), by those of the frames."""
    if not log.entry_segments:
        return frames
    segments = [log.find(frame) for frame in frames.tolist()]
    head_bytes = [log.framing(segment).head_bytes if segment else 0 for segment in segments]
    return frames + np.array(head_bytes, np.int64)


def frame_start(log: CommitLog, physical_offset: int) -> int:
    """Return where the frame of the record at a physical offset begins; nothing is read."""
    segment = log.find(physical_offset)
    return physical_offset - (log.framing(segment).head_bytes if segment is not None else 0)


def frame_of(log: CommitLog, physical_offset: int) -> int | None:
    """Return where the frame of the record at a physical offset begins.

    None if no record, whole or not, begins there that holds that offset.
    """
    if not log.is_head(physical_offset):
        return None
    segment = log.locate(physical_offset).segment
    framing = log.framing(segment)
    frame = physical_offset - framing.head_bytes
    if frame == physical_offset:
        return frame
    if frame < segment.start:
        return None
    head = log.read(segment, frame - segment.start, framing.head_bytes)
    only = np.zeros(1, np.int64)
    return None if len(framing.refused_rows(head, only, frame, only)) else frame


def numbers_of(log: CommitLog, physical_offset: int) -> FrameNumbers | None:
    """Return the numbers of the frame of the record at an offset, None if it has none."""
    segment = log.find(physical_offset)
    if segment is None:
        return None
    framing = log.framing(segment)
    position = physical_offset - segment.start - framing.head_bytes
    if position < 0:
        return None
    return framing.numbers(log.read(segment, position, framing.head_bytes), 0)


def is_blank(log: CommitLog, place: Place) -> bool:
    """Tell whether the blank that closes a file begins at a place."""
    framing = log.framing(place.segment)
    words = log.read(*place, FRAME_HEAD.itemsize)
    if len(words) < FRAME_HEAD.itemsize:
        return False
    pair = words.view(">i4").tolist()
    size, magic = pair[framing.size_word], pair[1 - framing.size_word]
    return framing.is_blank(magic, size, place.segment.size - place.position)
