"""A storage that is not a file system: copies of files in memory, unmapped, with counted reads."""

from __future__ import annotations

import io
import mmap
import os
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from time import sleep
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from rmqstore.errors import UnreadableFileError
from rmqstore.storage.files.storage import A_FILE, A_FOLDER, AnyPath, Entry, Status

NOWHERE = Path("/nowhere")
_FILE_SYSTEM = [
    (os, name) for name in ("stat", "lstat", "open", "scandir", "listdir", "readlink")
] + [(io, "open")]


class MemoryFile:
    """The bytes of one file. A read returns a copy of just the requested bytes."""

    def __init__(self, storage: MemoryStorage, path: Path) -> None:
        self.path, self._storage, self._content = path, storage, storage.content(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        return len(self._content)

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        self._storage.request(self.path)
        return self._fetch(start, size)

    def _fetch(self, start: int, size: int) -> NDArray[np.uint8]:
        assert start >= 0
        assert size >= 0
        piece = np.frombuffer(self._content[start : start + size], np.uint8)
        self._storage.n_read[self.path] += len(piece)
        return piece

    def data_spans(
        self,
        start: int,
        end: int,
        *,
        is_appended: bool = False,  # noqa: ARG002 - no hole is known
    ) -> Iterator[tuple[int, int]]:
        if start < end:
            yield start, end

    def read_each(self, starts: NDArray[np.int64], size: int) -> NDArray[np.void]:
        self._storage.request(self.path)
        pieces = [self._fetch(start, size).tobytes() for start in starts.tolist()]
        return np.frombuffer(b"".join(pieces), f"V{size}") if size else np.empty(len(starts), "V0")

    def read_in_place(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        self._storage.request(self.path)
        if not self.size:
            return np.empty(0, np.uint8)
        # pages that nothing is written to take no memory
        whole = np.frombuffer(mmap.mmap(-1, self.size), np.uint8)
        counted_to = 0
        for start, end in sorted(zip(starts.tolist(), (starts + sizes).tolist(), strict=True)):
            if end > counted_to:
                low = max(start, counted_to)
                whole[low:end] = self._fetch(low, end - low)
                counted_to = end
        return whole

    def read_into(self, window: NDArray[np.uint8], start: int) -> int:
        piece = self.read(start, len(window))
        window[: len(piece)] = piece
        return len(piece)

    def prefetch(self, starts: NDArray[np.int64], size: int) -> None:
        assert not len(starts) or (starts.min() >= 0 and size > 0)

    def read_ahead(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        assert len(starts) == len(sizes)

    def written_end(self, size: int) -> int:
        return len(self._content[:size].rstrip(b"\0"))

    def is_outdated(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: nothing is held."""


class MemoryStorage:
    """Copies of the files below a folder, under paths below ``NOWHERE``, a folder of no disk.

    Args:
        folder: the folder to copy.
        delay: seconds that each request for bytes takes, as over a network.
    """

    def __init__(self, folder: Path, delay: float = 0.0) -> None:
        self.root, self._delay = serve(folder), delay
        self._status: dict[Path, Status] = {}
        self._contents: dict[Path, bytes] = {}
        self.n_read: Counter[Path] = Counter()  # bytes, by file
        # each would be waited for; spans asked for together are one
        self.n_requests: Counter[Path] = Counter()
        self.n_listed: Counter[Path] = Counter()
        for path in (folder, *folder.rglob("*")):
            status, is_folder = path.stat(), path.is_dir()
            kind, size = (A_FOLDER if is_folder else A_FILE), status.st_size
            self._status[serve(path)] = Status(
                kind, size, status.st_blocks * 512, status.st_mtime_ns
            )
            if not is_folder:
                self._contents[serve(path)] = path.read_bytes()

    window_bytes = 128 << 20

    def requests_made(self) -> str | None:
        return None

    def refresh(self) -> None:
        """Do nothing: the copies stay as they are."""

    def request(self, path: Path) -> None:
        self.n_requests[path] += 1
        sleep(self._delay)

    def content(self, path: Path) -> bytes:
        self.size(path)
        return self._contents[path]

    def list_folder(self, folder: AnyPath) -> list[Entry]:
        folder = Path(folder)
        self.n_listed[folder] += 1
        if folder in self._contents:
            raise UnreadableFileError(str(folder), A_FILE, A_FOLDER)
        return [
            Entry(path.name, status.is_folder)
            for path, status in self._status.items()
            if path.parent == folder
        ]

    def status(self, path: AnyPath) -> Status | None:
        return self._status.get(Path(path))

    def exists(self, path: AnyPath) -> bool:
        return Path(path) in self._status

    def size(self, path: AnyPath) -> int:
        status = self.status(path)
        if status is None:
            raise FileNotFoundError(str(path))
        if not status.is_file:
            raise UnreadableFileError(str(path), status.kind, A_FILE)
        return status.size

    def read_bytes(self, path: AnyPath, count: int) -> bytes:
        return MemoryFile(self, Path(path)).read(0, count).tobytes()

    def open(self, path: AnyPath, *, scattered: bool = False) -> MemoryFile:
        assert scattered in (True, False)
        return MemoryFile(self, Path(path))

    def prepare(
        self, files: set[str], *, first: Container[str] = (), last: Container[str] = ()
    ) -> None:
        """Do nothing: everything is at hand."""

    def full_path(self, path: Path) -> Path:
        return path

    def is_locked(self, path: Path) -> bool:
        assert path.parent == self.root
        return False


def serve(path: Path) -> Path:
    return NOWHERE / path.relative_to("/")


def refuse_direct_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if it looks at a path below ``NOWHERE`` other than through the storage."""
    for module, name in _FILE_SYSTEM:
        monkeypatch.setattr(module, name, _refusing(getattr(module, name)))


def _refusing(call: Any) -> Any:
    def refuse(*arguments: Any, **named: Any) -> Any:
        path = arguments[0] if arguments else named.get("path", "")
        if not isinstance(path, int) and os.fsdecode(path).startswith(str(NOWHERE)):
            pytest.fail(f"{call.__name__} of {path} goes round the storage")
        return call(*arguments, **named)

    return refuse
