"""The storage of a store on a local disk: files are mapped, and locks can be queried."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Final

from rmqstore.storage.files.lock import is_held
from rmqstore.storage.files.mapped_file import MappedFile
from rmqstore.storage.files.regular import file_size, file_status, list_folder, read_head
from rmqstore.storage.files.storage import (
    A_DANGLING_LINK,
    AnyPath,
    Entry,
    Status,
    Storage,
    StoredFile,
)


class LocalStorage:
    """Files of the local operating system."""

    window_bytes: Final = 128 << 20

    def __repr__(self) -> str:
        return "LocalStorage()"

    def requests_made(self) -> str | None:
        """Return None: nothing is requested of a server."""
        return None

    def refresh(self) -> None:
        """Do nothing: the file system is asked each time."""

    def list_folder(self, folder: AnyPath) -> list[Entry]:
        """Return the names in a folder; see :class:`Storage`."""
        return list_folder(folder)

    def status(self, path: AnyPath) -> Status | None:
        """Return kind, size and times of a path; see :class:`Storage`."""
        return file_status(path)

    def exists(self, path: AnyPath) -> bool:
        """Tell whether the path exists; a dangling link does not count. See :class:`Storage`."""
        status = file_status(path)
        return status is not None and status.kind != A_DANGLING_LINK

    def size(self, path: AnyPath) -> int:
        """Return the length of a regular file; see :class:`Storage`."""
        return file_size(path)

    def read_bytes(self, path: AnyPath, count: int) -> bytes:
        """Return the first bytes of a file; see :class:`Storage`."""
        return read_head(path, count)

    def open(self, path: AnyPath, *, scattered: bool = False) -> StoredFile:
        """Open a file, which is mapped on the first read; see :class:`Storage`."""
        return MappedFile(path, scattered=scattered)

    def prepare(
        self, files: set[str], *, first: Container[str] = (), last: Container[str] = ()
    ) -> None:
        """Do nothing: files are opened as fast one after the other."""

    def full_path(self, path: Path) -> Path:
        """Return an absolute path without links."""
        return path.resolve()

    def is_locked(self, path: Path) -> bool:
        """Tell whether a running broker or another writer holds this lock file."""
        return is_held(path)


LOCAL: Final[Storage] = LocalStorage()
