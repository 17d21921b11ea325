"""A storage without a file: that of the local store where tiered storage is read alone."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Final

from rmqstore.storage.files.storage import AnyPath, Entry, Status, Storage, StoredFile


class NoFiles:
    """A storage in which no path exists; see :class:`Storage` for the methods."""

    window_bytes = 1 << 20  # never asked for

    def list_folder(self, _folder: AnyPath) -> list[Entry]:
        return []

    def status(self, _path: AnyPath) -> Status | None:
        return None

    def exists(self, _path: AnyPath) -> bool:
        return False

    def size(self, path: AnyPath) -> int:
        raise FileNotFoundError(path)

    def read_bytes(self, path: AnyPath, _count: int) -> bytes:
        raise FileNotFoundError(path)

    def open(self, path: AnyPath, *, scattered: bool = False) -> StoredFile:
        raise FileNotFoundError(path, scattered)

    def prepare(
        self, files: set[str], *, first: Container[str] = (), last: Container[str] = ()
    ) -> None:
        pass

    def full_path(self, path: Path) -> Path:
        return path

    def is_locked(self, _path: Path) -> bool:
        return False

    def requests_made(self) -> str | None:
        return None

    def refresh(self) -> None:
        pass


NO_FILES: Final[Storage] = NoFiles()
