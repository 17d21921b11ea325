"""A small protocol for reading files, so that a store need not lie on a local disk.

Readers access a file system only through a :class:`Storage`, which the paths of a store carry.
Paths are names in that storage, and their own methods that read the local disk may not be used.
Readers of many files give names as text, because to make a ``Path`` takes longer than to look at a
file. Changes go through ``disk``, which is local.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from pathlib import Path, PosixPath, PurePath
from typing import Final, NamedTuple, Protocol, Self, TypeAlias

from numpy import frombuffer, int64, ndarray, uint8, void
from numpy.typing import NDArray

from rmqstore import platforms
from rmqstore.errors import UnreadableFileError

AnyPath: TypeAlias = Path | str

A_FILE: Final = "a regular file"
A_FOLDER: Final = "a folder"
A_DANGLING_LINK: Final = "a symbolic link that leads nowhere"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


class UriPath(PosixPath):
    """A name in a storage that is a URI, such as ``s3://bucket/store``."""

    def __new__(cls, *names: AnyPath) -> Self:
        """Make such a name on Windows too, where a local ``PosixPath`` cannot be."""
        return PurePath.__new__(cls, *names)

    def __str__(self) -> str:
        return _SCHEME.sub(r"\1://", super().__str__(), count=1)


def path_of(name: AnyPath) -> Path:
    """Return a name in a storage as a path; one that is a URI stays one."""
    if isinstance(name, str) and "://" in name:
        return UriPath(name)
    return Path(name) if isinstance(name, str) else name


class Entry(NamedTuple):
    """A name in a folder."""

    name: str
    is_folder: bool  # or a link to one
    is_link: bool = False


class Status(NamedTuple):
    """Kind, size and times of a path; those of the target if it is a link that has one."""

    kind: str  # in words: A_FILE, A_FOLDER or another kind
    size: int
    allocated: int  # bytes on the disk; equal to the size in a storage without sparse files
    modified_ns: int  # ns since the epoch; 0 if the storage knows only when it got a copy

    @property
    def is_file(self) -> bool:
        return self.kind == A_FILE

    @property
    def is_folder(self) -> bool:
        return self.kind == A_FOLDER


class StoredFile(Protocol):
    """The bytes of one file, which are read as they are now. A context manager.

    Threads share it, so whoever keeps files open for others does not close them: a file is closed
    as well when nothing refers to it any more.
    """

    @property
    def path(self) -> AnyPath:
        """The name of the file in its storage."""

    @property
    def size(self) -> int:
        """Length of the file in bytes."""

    def read(self, start: int, size: int) -> NDArray[uint8]:
        """Return the bytes ``[start, start + size)``, fewer only at the end; do not change them.

        A mapped file gives a view of its mapping, which costs nothing. Any other file fetches the
        bytes, so read no more than is needed.
        """

    def read_in_place(self, starts: NDArray[int64], sizes: NDArray[int64]) -> NDArray[uint8]:
        """Return an array as long as the file, which holds some spans at their positions.

        A mapped file gives its mapping. Any other file fetches the spans together and nothing else;
        the rest of the array is zero, and should take no memory. Spans may overlap, and may reach
        beyond the end of the file.

        Args:
            starts: positions in the file, (n,), not negative.
            sizes: bytes from each of them on, (n,), not negative.
        """

    def read_into(self, window: NDArray[uint8], start: int) -> int:
        """Copy bytes from ``start`` on into a window; return their number, less only at the end."""

    def read_each(self, starts: NDArray[int64], size: int) -> NDArray[void]:
        """Return ``size`` bytes from each of the starts (n,), void (n,), all inside the file."""

    def prefetch(self, starts: NDArray[int64], size: int) -> None:
        """Begin to fetch ``size`` bytes from each of the starts (n,), which are read next.

        A remote file fetches them together, where separate reads would wait for one another.
        """

    def read_ahead(self, starts: NDArray[int64], sizes: NDArray[int64]) -> None:
        """Begin to fetch spans that a long read comes to soon, and reads once.

        Args:
            starts: positions in the file, (n,), not negative.
            sizes: bytes from each of them on, (n,).
        """

    def data_spans(
        self, start: int, end: int, *, is_appended: bool = False
    ) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that may hold other bytes than zeros, rising.

        A storage that does not know the holes of its files yields all of it, or of a file that is
        only appended to, what lies before its written end.

        Args:
            start: a position.
            end: the position after the range.
            is_appended: whether the file is filled from its start on, as those of the log and of
                queues are. An index file and a timer wheel have bytes anywhere.
        """

    def written_end(self, size: int) -> int:
        """Return the position after the last byte before ``size`` that is not zero, or 0."""

    def is_outdated(self) -> bool:
        """Return whether the file has to be opened again.

        This is so if another file now has its name, or if its length has changed.
        """

    def close(self) -> None:
        """Close the file, which nobody else may be reading. Arrays that were read stay valid."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


class Storage(Protocol):
    """Files by their paths, read-only."""

    @property
    def window_bytes(self) -> int:
        """How many bytes of a long file are best read at once."""

    def requests_made(self) -> str | None:
        """Return how many requests were made so far, in words; None if none need to be."""

    def refresh(self) -> None:
        """Forget the listed files, so that they are listed again."""

    def list_folder(self, folder: AnyPath) -> list[Entry]:
        """Return the names in a folder, in any order; [] if there is no such folder.

        Raises:
            UnreadableFileError: it is not a folder, or it cannot be listed.
        """

    def status(self, path: AnyPath) -> Status | None:
        """Return kind, size and times of a path, None if it does not exist.

        Raises:
            UnreadableFileError: the storage refuses to say.
        """

    def exists(self, path: AnyPath) -> bool:
        """Return whether the path exists; raises as :meth:`status` does."""

    def size(self, path: AnyPath) -> int:
        """Return the length of a regular file in bytes.

        Raises:
            FileNotFoundError: there is no such file.
            UnreadableFileError: it is not a regular file, or it cannot be read.
        """

    def read_bytes(self, path: AnyPath, count: int) -> bytes:
        """Return the first bytes of a file, fewer only if it is shorter.

        Raises as :meth:`size` does.
        """

    def open(self, path: AnyPath, *, scattered: bool = False) -> StoredFile:
        """Open a file for reading.

        Raises as :meth:`size` does, and for a file that is longer than any of RocketMQ's.

        Args:
            path: the file to open.
            scattered: only few, scattered bytes will be read, so fetch nothing around them.
        """

    def prepare(
        self, files: set[str], *, first: Container[str] = (), last: Container[str] = ()
    ) -> None:
        """Prepare for many files that are opened next.

        They can then be opened together, where one would wait for the other.

        Args:
            files: the files.
            first: those of them whose first bytes will be read.
            last: those of them whose last written bytes will be searched and read.
        """

    def full_path(self, path: Path) -> Path:
        """Return an absolute path without links."""

    def is_locked(self, path: Path) -> bool:
        """Return whether a running broker or another writer holds this lock file."""


def empty_array(size: int, *, in_large_pages: bool = False) -> NDArray[uint8]:
    """Return zeros, uint8 (size,), of which only the pages that are written to take memory.

    Args:
        size: length in bytes.
        in_large_pages: long parts of it will be written to, which takes a fraction of the time in
            large pages, where the system has them.
    """
    if not size:
        return frombuffer(b"", uint8)
    return frombuffer(platforms.empty_pages(size, in_large_pages=in_large_pages), uint8)


def items_at(data: NDArray[uint8], starts: NDArray[int64], size: int) -> NDArray[void]:
    """Return ``size`` bytes from each of the starts (n,), void (n,), all inside the data."""
    every: NDArray[void] = ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
    return every[starts]


def read_small(storage: Storage, path: AnyPath, max_bytes: int) -> bytes:
    """Return the content of a small file.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableFileError: it is not a regular file, or it is longer than ``max_bytes``.
    """
    content = storage.read_bytes(path, max_bytes + 1)
    if len(content) > max_bytes:
        actual = f"longer than {max_bytes} bytes"
        raise UnreadableFileError(str(path), actual, "a file of at most that length")
    return content


def read_start(storage: Storage, path: AnyPath, count: int) -> bytes:
    """Return the first bytes of a file, b"" if there is no such file.

    Raises:
        UnreadableFileError: it is not a regular file, or it cannot be read.
    """
    try:
        return storage.read_bytes(path, count)
    except FileNotFoundError:
        return b""


def is_folder(storage: Storage, path: AnyPath) -> bool:
    """Return whether a path is a folder or a link to one; raises as :meth:`Storage.status` does."""
    status = storage.status(path)
    return status is not None and status.is_folder


class Closing(ABC):
    """A context manager that calls :meth:`close` at the end, even after an error."""

    __slots__ = ()

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _require_open(self) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuse to be used after :meth:`close`."""

    @abstractmethod
    def close(self) -> None:
        """Release what is open."""
