"""The note of a writer of this package on where the log ended: ``.rmqstore/end``.

A writer has to know where the log ends. To find out, it walks the last file from its start, which
takes the longer the fuller the file is. The note saves the walk, if it is proved: the bytes before
the end are the ones that were there when the store was closed, nothing was written after it, no
file follows, and the checkpoint was not written since, as every broker does that ran.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, NamedTuple

import numpy as np

from rmqstore.errors import FileDeletedError, UnreadableFileError
from rmqstore.format.layout import FRAME_HEAD, LAST_TIMESTAMP
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import read_small
from rmqstore.storage.log.commitlog import CommitLog

logger = logging.getLogger(__name__)

_MAX_DIGITS = 20

_VERSION: Final = 1
_PROOF_BYTES: Final = 64 << 10  # of the log, before its end
_MAX_NOTE_BYTES: Final = 1024


def read_intent(paths: StorePaths) -> int | None:
    """Return the physical offset where an incomplete append of ours began, None without one."""
    try:
        text = paths.storage.read_bytes(paths.own.append_intent, _MAX_DIGITS)
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() and len(text) < _MAX_DIGITS else None


def committed_since(paths: StorePaths) -> int | None:
    """Return the physical offset of the first record whose queue and topic may be incomplete.

    It and all later records are of an append of ours. The result is None without such an append,
    and if a broker has opened the store since. The broker has dispatched the records then, so the
    note is stale, and the ``abort`` file is the broker's.
    """
    return read_intent(paths) if paths.has_our_abort else None


class CleanEnd(NamedTuple):
    """The end of a log, and the store time of its last record."""

    physical_offset: int
    last_store_timestamp: int  # ms, 0 if the log has no records


def mark_as_closed(disk: Disk, paths: StorePaths, log: CommitLog, end: CleanEnd) -> None:
    """Note where the log ends, and delete the file ``abort``.

    A failure is only logged: all is committed, and an error would lead the caller to repeat it.
    """
    try:
        with suppress(OSError):  # the note only saves time
            write_clean_end(disk, paths, log, end)
        disk.delete(paths.abort)
        disk.flush_folder(paths.root)
    except OSError as err:
        logger.warning(
            "%s is not marked as closed (%s); all is committed, "
            "and the next writer or broker that opens it repairs it",
            paths.root,
            err,
        )


def write_clean_end(disk: Disk, paths: StorePaths, log: CommitLog, end: CleanEnd) -> None:
    """Write the note, for a log that ends there. Losing it in a power cut does no harm."""
    if not end.physical_offset:
        return
    proof = _proof(paths, log, end.physical_offset)
    note = json.dumps({"version": _VERSION, **end._asdict(), "proof": proof}).encode()
    disk.make_folder(paths.own.folder)
    disk.delete(paths.own.clean_end)
    disk.create(paths.own.clean_end, len(note), [np.frombuffer(note, np.uint8)])


def read_clean_end(paths: StorePaths, log: CommitLog) -> CleanEnd | None:
    """Return where the log ends by the note, None unless the bytes of the log prove it."""
    try:
        noted: Any = json.loads(read_small(paths.storage, paths.own.clean_end, _MAX_NOTE_BYTES))
        end = CleanEnd(noted["physical_offset"], noted["last_store_timestamp"])
        version, proof = noted["version"], noted["proof"]
    except (
        FileNotFoundError,
        UnreadableFileError,
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
    ):
        return None
    if version != _VERSION or not all(type(value) is int and value >= 0 for value in end):
        return None
    if end.last_store_timestamp > LAST_TIMESTAMP or not isinstance(proof, str):
        return None
    with suppress(FileDeletedError, UnreadableFileError):
        place = end.physical_offset
        is_last = place == 0
        if log.segments:  # the last file has to reach to the place, and to have nothing there
            last = log.segments[-1]
            is_last = last.start < place <= last.end
            is_last = is_last and not log.read(last, place - last.start, FRAME_HEAD.itemsize).any()
        if is_last and _proof(paths, log, place) == proof:
            return end
    return None


def _proof(paths: StorePaths, log: CommitLog, physical_offset: int) -> str:
    """Return a digest of the bytes before a physical offset, and of the time of the checkpoint.

    A broker writes the checkpoint whenever it shuts down, so it shows one that ran since.
    """
    segment = log.find(physical_offset - 1)
    if segment is None:
        return ""
    position = physical_offset - segment.start
    start = max(position - _PROOF_BYTES, 0)
    digest = sha256(log.read(segment, start, position - start).tobytes())
    checkpoint = paths.storage.status(paths.checkpoint)
    digest.update(str(checkpoint and checkpoint.modified_ns).encode())
    return digest.hexdigest()
