"""Remembers the last write of each application, so that a repeated write is skipped.

Before the commit an entry names the first and the last record of a write by physical offset and
digest. The write is done if and only if the log holds these records. Losing the ledger harms no
message, but a repeated write is then appended again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import quote

from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import OWN_FOLDER
from rmqstore.storage.files.storage import read_small
from rmqstore.storage.log.appender import RecordId
from rmqstore.storage.log.commitlog import CommitLog

_FOLDER = "ledger"
_MAX_BYTES = 4096  # of an entry


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The newest write of one application."""

    version: int
    first: RecordId | None  # None for a write without rows
    last: RecordId | None
    is_done: bool
    previous: int | None = None  # the version that was done before this one


class Ledger:
    """The entries of one store, one file per application, under ``.rmqstore/ledger``."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._folder = root / OWN_FOLDER / _FOLDER

    def _path(self, app_id: str) -> Path:
        return self._folder / f"{quote(app_id, safe='')}.json"

    def version(self, app_id: str, log: CommitLog) -> int | None:
        """Return the newest version that is done, or None."""
        entry = self._read(self._path(app_id))
        if entry is None:
            return None
        if entry.is_done or _is_in_log(entry, log):
            return entry.version
        return entry.previous

    def complete(self, log: CommitLog) -> None:
        """Look up every unfinished write in the log; called when a store is opened for writing."""
        for name in sorted(entry.name for entry in LOCAL.list_folder(self._folder)):
            if not name.endswith(".json"):
                continue
            path = self._folder / name
            entry = self._read(path)
            if entry is None or entry.is_done:
                continue
            if _is_in_log(entry, log):
                self._write(path, replace(entry, is_done=True))
            elif entry.previous is not None:
                self._write(path, LedgerEntry(entry.previous, None, None, is_done=True))
            else:
                self._disk.delete(path)

    def intend(
        self,
        app_id: str,
        version: int,
        log: CommitLog,
        first: RecordId | None,
        last: RecordId | None,
    ) -> None:
        """Note durably what is about to be committed to the log."""
        self._disk.make_folder(self._folder)
        previous = self.version(app_id, log)
        entry = LedgerEntry(version, first, last, is_done=False, previous=previous)
        self._write(self._path(app_id), entry)

    def done(self, app_id: str) -> None:
        """Note that the intended write was committed."""
        entry = self._read(self._path(app_id))
        assert entry is not None, "what is done was intended"
        self._write(self._path(app_id), replace(entry, is_done=True))

    def _write(self, path: Path, entry: LedgerEntry) -> None:
        self._disk.replace(path, json.dumps(asdict(entry)).encode())

    @staticmethod
    def _read(path: Path) -> LedgerEntry | None:
        try:
            fields = json.loads(read_small(LOCAL, path, _MAX_BYTES))
            first, last = (
                None if fields[name] is None else RecordId(**fields[name])
                for name in ("first", "last")
            )
            entry = LedgerEntry(
                fields["version"],
                first,
                last,
                is_done=fields["is_done"],
                previous=fields.get("previous"),
            )
        except (FileNotFoundError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return None  # an entry only caches what the log shows
        # The fields must have the types that the ledger writes.
        numbers = [entry.version]
        if entry.previous is not None:
            numbers.append(entry.previous)
        for record in (entry.first, entry.last):
            if record is not None:
                numbers += [record.physical_offset, record.size]
        if isinstance(entry.is_done, bool) and all(type(number) is int for number in numbers):
            return entry
        return None


def _is_in_log(entry: LedgerEntry, log: CommitLog) -> bool:
    records = (entry.first, entry.last)
    return all(record is None or record.is_in(log) for record in records)
