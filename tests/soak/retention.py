"""Deletes the oldest files of a store as a broker does: whole files, the newest of a kind stays.

Source: DefaultMessageStore.java#CleanCommitLogService and CleanConsumeQueueService,
MappedFileQueue.java#deleteExpiredFileByOffset, IndexService.java#deleteExpiredFile.
"""

from __future__ import annotations

import struct
from pathlib import Path

_UNIT = struct.Struct(">qiq")  # physical offset, size, hash of the tags
_END_PHYSICAL_OFFSET = struct.Struct(">q")
_END_PHYSICAL_OFFSET_POSITION = 24  # in the head of an index file


def delete_oldest(root: Path, n_segments: int) -> None:
    """Delete all but the newest segments, and the files of queues and index about them alone."""
    segments = sorted((root / "commitlog").iterdir())
    for segment in segments[:-n_segments]:
        segment.unlink()
    log_start = int(segments[-n_segments:][0].name)
    for folder in (root / "consumequeue").glob("*/*"):
        for file in sorted(folder.iterdir())[:-1]:
            if last_physical_offset(file) >= log_start:
                break
            file.unlink()
    for file in sorted((root / "index").glob("*"))[:-1]:
        if end_of_index_file(file) < log_start:
            file.unlink()


def last_physical_offset(file: Path) -> int:
    with file.open("rb") as opened:
        opened.seek(-_UNIT.size, 2)
        physical_offset: int = _UNIT.unpack(opened.read(_UNIT.size))[0]
    return physical_offset


def end_of_index_file(file: Path) -> int:
    with file.open("rb") as opened:
        opened.seek(_END_PHYSICAL_OFFSET_POSITION)
        end: int = _END_PHYSICAL_OFFSET.unpack(opened.read(_END_PHYSICAL_OFFSET.size))[0]
    return end
