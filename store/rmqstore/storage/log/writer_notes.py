"""The notes of writers of this package under ``.rmqstore/``: appends begun, the end, and commits.

The note of an append that has begun says where, until all that belongs to it is written.

``.rmqstore/end`` saves a walk. A writer has to know where the log ends. To find out, it walks the
last file from its start, which takes the longer the fuller the file is. The note is believed if it
is proved: the bytes before the end are the ones that were there when the store was closed, nothing
was written after it, no file follows, and the checkpoint was not written since, as every broker
does that ran.

``.rmqstore/commits`` has a line of JSON for each commit. It is written after a commit, and losing
it, or a line of it, harms nothing: the log then counts as written by others too. A file that is
full becomes ``commits.older``, so there are always the newest ``MOST_COMMITS``, and a commit
costs one line however many there are.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rmqstore.errors import FileDeletedError, RmqStoreError, UnreadableFileError
from rmqstore.format.layout import FRAME_HEAD, LAST_TIMESTAMP
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import read_small, read_start
from rmqstore.storage.log.appender import LogAppend
from rmqstore.storage.log.commitlog import CommitLog

logger = logging.getLogger(__name__)

_MAX_DIGITS = 20
_VERSION: Final = 1  # of the note on the end
_PROOF_BYTES: Final = 64 << 10  # of the log, before its end
_MAX_NOTE_BYTES: Final = 1024
MOST_COMMITS: Final = 10_000  # of each of the two files
_MAX_LINE_BYTES: Final = 4096
_MAX_COMMITS_BYTES: Final = 64 << 20  # that are read of a file
_MAX_TEXT: Final = 512  # characters of a name
_INT64: Final = 1 << 63


def read_intent(paths: StorePaths) -> int | None:
    """Return the physical offset where an incomplete append of ours began, None without one."""
    text = read_start(paths.storage, paths.own.append_intent, _MAX_DIGITS)
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
        log_end = end.physical_offset
        is_last = log_end == 0
        if log.segments:  # the last file has to reach to the place, and to have nothing there
            last = log.segments[-1]
            follows = log_end - last.start  # the position there
            is_last = last.start < log_end <= last.end
            is_last = is_last and not log.read(last, follows, FRAME_HEAD.itemsize).any()
        if is_last and _proof(paths, log, log_end) == proof:
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


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit.

    Attributes:
        number: 1 for the first one of the history, and one more for each that follows.
        time: ms, when it was committed.
        n_records: the records that it added to the log.
        start: physical offset of the first of them; None without records.
        end: physical offset after the last of them.
        app_id, version: of the write, if it named them.
    """

    number: int
    time: int
    n_records: int
    start: int | None
    end: int | None
    app_id: str | None = None
    version: int | None = None


def read_commits(paths: StorePaths) -> list[Commit]:
    """Return the newest commits in order, without lines that cannot be understood."""
    commits: list[Commit] = []
    for file in (_older(paths.own.commits), paths.own.commits):
        with suppress(FileNotFoundError):
            commits += _parsed(paths.storage.read_bytes(file, _MAX_COMMITS_BYTES))
    return commits[-MOST_COMMITS:]


def note_commit(
    disk: Disk, paths: StorePaths, append: LogAppend, txn: tuple[str, int] | None
) -> None:
    """Add a committed append to the history.

    A failure is only logged: all is committed, and an error would lead the caller to repeat it.

    Args:
        disk: changes the files.
        paths: the files of the store.
        append: what was committed.
        txn: the id of the application and the version of the write, if it named them.
    """
    first, _ = append.first_and_last()
    file = paths.own.commits
    try:
        oldest, newest, size = _numbers(file)
        if newest - oldest + 1 >= MOST_COMMITS or (size and not newest):
            disk.rename(file, _older(file))
            size = 0
        if not size:
            disk.make_folder(file.parent)
            if not LOCAL.exists(file):
                disk.create(file, 0)
        commit = Commit(
            number=newest + 1,
            time=time.time_ns() // 1_000_000,
            n_records=append.n_records,
            start=None if first is None else first.physical_offset,
            end=None if first is None else append.end,
            app_id=txn[0][:_MAX_TEXT] if txn else None,
            version=txn[1] if txn else None,
        )
        line = json.dumps(asdict(commit), separators=(",", ":")).encode()
        # The line before it may be torn.
        disk.write(file, size, b"\n" * bool(size) + line)
    except (OSError, RmqStoreError) as err:
        logger.warning("%s: all is committed, but the history lacks the commit: %s", file, err)


def _numbers(file: Path) -> tuple[int, int, int]:
    """Return the numbers of the oldest and the newest commit in a file, and its size.

    They are 1 and 0 for a history that has none. The oldest counts as 1 if its line is torn.
    """
    try:
        size = LOCAL.size(file)
    except FileNotFoundError:
        newest = _newest(_older(file))
        return newest + 1, newest, 0
    oldest = next(_parsed(LOCAL.read_bytes(file, _MAX_LINE_BYTES)), None)
    return (oldest.number if oldest else 1), _newest(file), size


def _newest(file: Path) -> int:
    """Return the number of the last commit at the end of a file, 0 if there is none."""
    try:
        size = LOCAL.size(file)
    except FileNotFoundError:
        return 0
    with LOCAL.open(file) as stored:
        start = max(size - 2 * _MAX_LINE_BYTES, 0)
        tail = stored.read(start, size - start).tobytes()
    numbers = [commit.number for commit in _parsed(tail)]
    return numbers[-1] if numbers else 0


def _older(file: Path) -> Path:
    return file.with_name(f"{file.name}.older")


def _parsed(stored: bytes) -> Iterator[Commit]:
    """Yield the commits of the lines that can be understood."""
    for line in stored.split(b"\n"):
        if len(line) > _MAX_LINE_BYTES:
            continue
        with suppress(ValueError, TypeError, RecursionError):
            commit = Commit(**json.loads(line))
            if _is_valid(commit):
                yield commit


def _is_valid(commit: Commit) -> bool:
    """Return whether the values of a line are of the types that they should be."""
    names: Any = (commit.number, commit.time, commit.n_records)
    if not all(_is_count(value) for value in names) or not commit.number:
        return False
    others: Any = (commit.start, commit.end, commit.version)
    if not all(value is None or _is_count(value) for value in others):
        return False
    app_id: Any = commit.app_id
    if app_id is None:
        return True
    if not isinstance(app_id, str) or len(app_id) > _MAX_TEXT:
        return False
    app_id.encode()  # a ValueError, if it is half a character
    return True


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _INT64
