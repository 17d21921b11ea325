"""The files of a RocksDB database as of one moment, in a folder that the library may write to.

A broker that flushes its queues appends to the MANIFEST, and deletes tables that it has merged into
others. So a snapshot has a copy of the MANIFEST, and holds every table open: its link leads to the
open file, which stays readable after the broker has deleted its name.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rmqstore.errors import Argument, CorruptDatabaseError, Text, UnsupportedFeatureError
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Storage

# Any other file may be one that the library writes to, through its link.
_FILES_OF_A_DATABASE = re.compile(r"CURRENT|IDENTITY|(MANIFEST|OPTIONS)-\d+|\d+\.(sst|log|blob)")
_THAT_NAME_TABLES = ("CURRENT", "MANIFEST")
# The library reads these into memory. They hold the name of a manifest, and a number.
_SHORT_FILES = ("CURRENT", "IDENTITY")
_MAX_SHORT_BYTES = 4096
_MAX_FILES = 400  # all of them are open as long as the database is
_MAX_COPIED_BYTES = 1 << 30
_MAX_COPIED_MANIFEST = 64 << 20  # a longer one is linked
_COPIED_AT_ONCE = 1 << 20
_ATTEMPTS = 20  # each takes a few milliseconds
_OPEN_FILES = Path("/proc/self/fd")

Fingerprint = tuple[tuple[str, int, int], ...]


def fingerprint(folder: Path, storage: Storage) -> Fingerprint:
    """Return the names, sizes and times of the files of a database.

    Raises:
        UnreadableFileError: an entry is not a regular file.
    """
    files = []
    for entry in storage.list_folder(folder):
        if entry.is_folder or not _FILES_OF_A_DATABASE.fullmatch(entry.name):
            continue
        with suppress(FileNotFoundError):  # a broker deletes tables
            status = storage.status(folder / entry.name)
            if status is not None:
                files.append((entry.name, storage.size(folder / entry.name), status.modified_ns))
    return tuple(sorted(files))


class Snapshot:
    """The files of a database in a folder of our own, until the context of :func:`snapshot` ends.

    Attributes:
        folder: the folder.
        fingerprint: that of the database from before its files were opened.
        open_files: descriptors that the links of the folder lead to; a child process that opens the
            database needs them too.
    """

    def __init__(self, database: Path, storage: Storage, folder: Path, stack: ExitStack) -> None:
        self._database, self._storage, self._stack = database, storage, stack
        self.folder = folder
        self.open_files: list[int] = []
        self.fingerprint: Fingerprint = ()
        if storage is LOCAL:
            self._link()
        else:
            self._copy()

    def _list(self) -> None:
        self.fingerprint = fingerprint(self._database, self._storage)
        if len(self.fingerprint) > _MAX_FILES:
            raise UnsupportedFeatureError(
                f"{self._database} has {len(self.fingerprint)} files; at most {_MAX_FILES} can be "
                "open at once"
            )
        for name, size, _ in self.fingerprint:
            if name in _SHORT_FILES and size > _MAX_SHORT_BYTES:
                reason = f"{name} has {size} bytes instead of one line"
                raise CorruptDatabaseError(str(self._database), reason)

    def _copy(self) -> None:
        """Copy the files from another storage than the local disk."""
        self._list()
        if sum(size for _, size, _ in self.fingerprint) > _MAX_COPIED_BYTES:
            raise UnsupportedFeatureError(
                Text(
                    f"{self._database} is a database of more than {_MAX_COPIED_BYTES >> 30} GiB "
                    "in a remote storage: copy the store to a local disk, or use ",
                    Argument("scan", "commitlog"),
                )
            )
        for name, size, _ in self.fingerprint:
            content = self._storage.read_bytes(self._database / name, size)
            (self.folder / name).write_bytes(content)

    def _link(self) -> None:
        """Open the files, again if the broker has changed the MANIFEST meanwhile.

        If it has not, none of the tables that the copy names was deleted before it was opened. If
        it has each time, the last attempt may still have all of them, and the library names one
        that is missing. It does not miss a write-ahead log, so that one is looked for here.
        """
        deleted: list[str] = []
        for _ in range(_ATTEMPTS):
            self._stack.close()
            self.open_files = []
            for link in self.folder.iterdir():
                link.unlink()
            self._list()
            deleted = [
                name for name, size, _ in self.fingerprint if not self._link_file(name, size)
            ]
            now = fingerprint(self._database, self._storage)
            if _naming_tables(now) == _naming_tables(self.fingerprint):
                return
        if any(name.endswith(".log") for name in deleted):
            reason = "its write-ahead log was deleted while it was opened"
            raise CorruptDatabaseError(str(self._database), reason)

    def _link_file(self, name: str, size: int) -> bool:
        """Link a file, or copy its head; return whether it was there."""
        path = self._storage.full_path(self._database / name)
        link = self.folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:  # too many open files
            link.symlink_to(path)
            return True
        self._stack.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        if name.startswith(_THAT_NAME_TABLES) and size <= _MAX_COPIED_MANIFEST:
            with link.open("wb") as copy:
                for start in range(0, size, _COPIED_AT_ONCE):
                    copy.write(os.pread(descriptor, min(_COPIED_AT_ONCE, size - start), start))
        elif _OPEN_FILES.is_dir():
            link.symlink_to(_OPEN_FILES / str(descriptor))
            self.open_files.append(descriptor)
        else:
            link.symlink_to(path)
        return True


def _naming_tables(files: Fingerprint) -> Fingerprint:
    return tuple(file for file in files if file[0].startswith(_THAT_NAME_TABLES))


@contextmanager
def snapshot(folder: Path, storage: Storage) -> Iterator[Snapshot]:
    """Give the files of a database as of one moment.

    Args:
        folder: the folder that holds ``CURRENT``.
        storage: the storage that holds the folder; files of another one than the local disk are
            copied.

    Raises:
        CorruptDatabaseError: a file of one line is huge, or a broker deleted a write-ahead log in
            each attempt to open all files.
        UnreadableFileError: an entry is not a regular file.
        UnsupportedFeatureError: the database is too large, or there is no temporary folder.
    """
    try:
        temporary = tempfile.TemporaryDirectory(prefix="rmqstore-")
    except OSError as err:
        raise UnsupportedFeatureError(
            f"a RocksDB database is opened through a temporary folder: {err}; set TMPDIR"
        ) from err
    with temporary as name, ExitStack() as stack:
        yield Snapshot(folder, storage, Path(name), stack)
