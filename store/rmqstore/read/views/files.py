"""View ``files``: every file of a store, with its kind, the range that it covers and its state."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rmqstore.errors import CorruptRecordError, OffsetOutOfRangeError, UnreadableFileError
from rmqstore.format.layout import INDEX_HEADER, QUEUE_UNIT
from rmqstore.lazy import cached_property
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.rows import Row
from rmqstore.read.views.schema import ViewSpec
from rmqstore.storage.broker.folders import PARTS
from rmqstore.storage.files.paths import MAX_QUEUE_ID, name_to_offset
from rmqstore.storage.files.storage import Entry, Storage
from rmqstore.storage.index_files import index_files, read_header
from rmqstore.storage.log.commitlog import first_record
from rmqstore.storage.log.walks import walk_back
from rmqstore.storage.timer import find_wheel

logger = logging.getLogger(__name__)

LIVE, PREALLOCATED, EMPTY, STALE, CUT = "live", "preallocated", "empty", "stale", "cut"

_OTHER = "other"
_TIMES = frozenset({"firstStoreTimestamp", "lastStoreTimestamp"})
_DLEDGER_DATA = "dledger/data"
_DLEDGER_PARTS = frozenset({"data", "index", "checkpoint", "currterm"})


def file_rows(source: StoreParts, spec: ViewSpec, _names: Sequence[Any]) -> Iterator[Row]:
    """Return one row for each file, by path."""
    return _Files(source, {*spec.schema.names}).rows()


class _Files:
    def __init__(self, source: StoreParts, names: set[str]) -> None:
        self._names = names  # of the columns that are read
        self._source = source
        self._paths = source.paths
        self._storage = source.paths.storage
        whole_files = source.log.segments[:-1]
        self._log_file_bytes = max((segment.size for segment in whole_files), default=0)

    def rows(self) -> Iterator[dict[str, object]]:
        paths, root = self._paths, self._paths.root
        folders = [(root, None)]
        for kind, part in (
            *(("commitlog", folder) for folder in paths.commitlogs),
            *((_DLEDGER_DATA, folder) for folder in paths.dledger_logs),
            ("consumequeue", paths.consumequeue),
            ("index", paths.index),
        ):
            beside: list[Entry] = []
            with suppress(UnreadableFileError):
                beside = self._storage.list_folder(part.parent)
            is_link = any(entry.is_link for entry in beside if entry.name == part.name)
            # The walk of the root goes to none of these.
            if is_link or not part.is_relative_to(root):
                folders.append((part, kind))  # type: ignore[arg-type]
        for folder, known_kind in folders:
            for file in _walk(self._storage, folder):
                # A running broker deletes files while they are listed.
                with suppress(FileNotFoundError):
                    yield self._row(file, file.relative_to(folder).parts, known_kind)

    def _row(self, file: Path, parts: tuple[str, ...], known_kind: str | None) -> dict[str, object]:
        status = self._storage.status(file)
        if status is None:
            raise FileNotFoundError(str(file))
        kind = known_kind or _kind_of(parts)
        below = parts if known_kind else parts[1:]
        root = self._paths.root
        row: dict[str, object] = {
            "path": str(file.relative_to(root) if file.is_relative_to(root) else file),
            "kind": kind,
            "size": status.size,
            "allocated": status.allocated,
            "modified": status.modified_ns // 1_000_000 or None,
            "state": LIVE if status.size else EMPTY,
        }
        is_of_queue = kind.endswith("consumequeue") or kind == "consumequeue_ext"
        if is_of_queue and len(below) == 3:
            topic, queue_id, _ = below
            is_number = queue_id.isascii() and queue_id.isdigit()
            if is_number and int(queue_id) <= MAX_QUEUE_ID:
                row |= {"topic": topic, "queueId": int(queue_id)}
        if not status.is_file:
            return row
        try:
            if kind in ("commitlog", _DLEDGER_DATA, "consumequeue"):
                row |= self._ranged_file(kind, file, status.size)
            elif kind == "index" and file.name.isascii() and file.name.isdigit():
                row |= self._index_file(file, status.size)
            elif kind == "timerwheel" and status.size and file != self._wheel:
                row["state"] = STALE
        except UnreadableFileError as err:
            logger.warning("%s", err)
        return row

    @cached_property
    def _wheel(self) -> Path | None:
        """The file that holds the timer wheel: the newest snapshot if there are any."""
        wheel = find_wheel(self._storage, self._paths.root)
        return None if wheel is None else wheel.path

    @cached_property
    def _index_file_bytes(self) -> int:
        sizes = []
        for file in index_files(self._paths.index, self._storage):
            with suppress(FileNotFoundError, UnreadableFileError):
                sizes.append(self._storage.size(file))
        return max(sizes, default=0)

    def _ranged_file(self, kind: str, file: Path, size: int) -> dict[str, object]:
        """Return what a file of the log or of a queue shows, whose name is where it starts."""
        start = name_to_offset(file.name)
        if start is None:
            return {}
        width = QUEUE_UNIT.itemsize if kind == "consumequeue" else 1
        columns: dict[str, object] = {
            "rangeStart": start // width,
            "rangeEnd": (start + size) // width,
        }
        if not size:
            return columns
        if size % width:
            return columns | {"state": CUT}
        with self._storage.open(file) as opened:
            written = opened.written_end(size)
        if not written:
            return columns | {"state": PREALLOCATED}
        if kind == "consumequeue":
            return columns | {"state": self._state_of_queue(file, written)}
        return columns | self._log_file(start, size)

    def _log_file(self, start: int, size: int) -> dict[str, object]:
        end = self._source.ends.log_end
        if size < self._log_file_bytes:
            return {"state": CUT}
        if end is not None and start >= end.physical_offset:
            return {"state": STALE}
        return self._times(start)

    def _times(self, start: int) -> dict[str, object]:
        """Return when the first and the last record of a file of the log were stored, ms."""
        log = self._source.log
        segment = log.find(start)
        if segment is None or segment.start != start or not self._names & _TIMES:
            return {}
        times: dict[str, object] = {}
        first = first_record(log, segment)
        with suppress(CorruptRecordError, OffsetOutOfRangeError):
            times["firstStoreTimestamp"] = log.store_timestamp(segment.start + first.position)
        end = self._source.ends.log_end
        stop = log.written_end(segment)
        if end is not None:
            stop = min(stop, end.physical_offset)
        for window in walk_back(log, segment, stop):
            for _, headers, whole in reversed(list(window.headers())):
                stored = headers.column("store_timestamp")[whole]
                if len(stored):
                    return times | {"lastStoreTimestamp": int(stored[-1])}
        return times

    def _state_of_queue(self, file: Path, written: int) -> str:
        """Return the state of a file of a queue by the last unit in its written bytes."""
        width = QUEUE_UNIT.itemsize
        last_unit = np.zeros(width, np.uint8)
        with self._storage.open(file) as opened:
            opened.read_into(last_unit, (written - 1) // width * width)
        physical_offset = int(last_unit.view(QUEUE_UNIT)[0]["physical_offset"])
        return STALE if physical_offset < self._source.log.min_offset else LIVE

    def _index_file(self, file: Path, size: int) -> dict[str, object]:
        if size < self._index_file_bytes or size < INDEX_HEADER.itemsize:
            return {"state": CUT if size else EMPTY}
        header = read_header(file, self._storage)
        if int(header["index_count"]) <= 1:
            return {"state": PREALLOCATED}
        begin, end = int(header["begin_phy_offset"]), int(header["end_phy_offset"])
        return {
            "rangeStart": begin,
            "rangeEnd": end,
            "state": STALE if end < self._source.log.min_offset else LIVE,
            "firstStoreTimestamp": int(header["begin_timestamp"]),
            "lastStoreTimestamp": int(header["end_timestamp"]),
        }


def _kind_of(parts: tuple[str, ...]) -> str:
    """Return the kind of a file by its path below the root."""
    if parts[0].startswith("dledger-") and len(parts) > 1:
        part = parts[1].partition(".")[0] if len(parts) == 2 else parts[1]
        return f"dledger/{part}" if part in _DLEDGER_PARTS else _OTHER
    name = parts[0].partition(".")[0] if len(parts) == 1 else parts[0]
    return name if name in PARTS else _OTHER


def _walk(storage: Storage, folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, each folder's own before those further down.

    Links to folders are left out.
    """
    folders = [folder]
    while folders:
        current = folders.pop()
        entries = []
        with suppress(UnreadableFileError):
            entries = sorted(storage.list_folder(current))
        yield from (current / entry.name for entry in entries if not entry.is_folder)
        subfolders = [entry for entry in entries if entry.is_folder and not entry.is_link]
        folders += [current / entry.name for entry in reversed(subfolders)]
