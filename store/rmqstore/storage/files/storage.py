"""Where the bytes of a store are read from: a small protocol, so that a store need not lie on a local disk.

Every look that a reader takes at a file system goes through a :class:`Storage`, which the paths of a store carry. Paths
are names in that storage, and nothing else may be asked of them. Changes go through ``disk``, which is local.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from numpy import int64, uint8, void
from numpy.typing import NDArray

from rmqstore.errors import UnreadableFileError

A_FILE: Final = "a regular file"
A_FOLDER: Final = "a folder"
A_DANGLING_LINK: Final = "a symbolic link that leads nowhere"


class Entry(NamedTuple):
    """A name in a folder."""

    name: str
    is_folder: bool  # or a link to one
    is_link: bool = False


class Status(NamedTuple):
    """What a storage knows of a name; of a link what it knows of its target, if there is one."""

    kind: str  # in words, A_FILE, A_FOLDER or what else there is
    size: int
    allocated: int  # bytes that it takes; as many as its size where a storage has no holes
    modified_ns: int  # since the epoch

    @property
    def is_file(self) -> bool:
        return self.kind == A_FILE

    @property
    def is_folder(self) -> bool:
        return self.kind == A_FOLDER


class StoredFile(Protocol):
    """The bytes of one file, which are read as they are now. A context manager."""

    @property
    def path(self) -> Path:
        """The name of the file in its storage."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    def read(self, start: int, size: int) -> NDArray[uint8]:
        """Return the bytes ``[start, start + size)``, fewer only where the file ends; they are not to be changed.

        A mapped file gives a view of its mapping, which costs nothing. Any other file fetches the bytes, so ask for
        no more than is needed.
        """

    def read_in_place(self, starts: NDArray[int64], sizes: NDArray[int64]) -> NDArray[uint8]:
        """Return an array as long as the file that holds some spans of it where they are in the file.

        A mapped file gives its mapping. Any other file fetches the spans together and nothing else; the rest of the
        array is zero, and should take no memory. Spans may overlap, and may reach beyond the end of the file.

        Args:
            starts: positions in the file, (n,), not negative.
            sizes: bytes from each of them on, (n,), not negative.
        """

    def read_into(self, window: NDArray[uint8], start: int) -> int:
        """Copy the bytes from ``start`` on into a window; return how many there were, fewer only at the file's end."""

    def read_each(self, starts: NDArray[int64], size: int) -> NDArray[void]:
        """Return as many bytes from each of the starts (n,) on, void (n,); all of them lie inside the file."""

    def want(self, starts: NDArray[int64], size: int) -> None:
        """Say early that so many bytes from each of the starts (n,) on will be read next.

        They are fetched together; read one after the other, each would be waited for.
        """

    def written_end(self, size: int) -> int:
        """Return the position after the last byte before ``size`` that is not zero, 0 if all are."""

    def is_outdated(self) -> bool:
        """Tell whether the file has to be opened again: another one has its name by now, or it has another length."""

    def close(self) -> None:
        """Let go of the file. Arrays that were read stay valid."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


class Storage(Protocol):
    """Files by their paths, read-only."""

    def list_folder(self, folder: Path) -> list[Entry]:
        """Return the names in a folder, in any order; [] where there is no such folder.

        Raises:
            UnreadableFileError: it is not a folder, or it cannot be listed.
        """

    def status(self, path: Path) -> Status | None:
        """Return what is known of a name, None where nothing has it.

        Raises:
            UnreadableFileError: nothing can be known of it.
        """

    def exists(self, path: Path) -> bool:
        """Tell whether something has the name; raises as :meth:`status` does."""

    def size(self, path: Path) -> int:
        """Return the length of a regular file in bytes.

        Raises:
            FileNotFoundError: there is no such file.
            UnreadableFileError: something else has the name, or it cannot be read.
        """

    def read_bytes(self, path: Path, count: int) -> bytes:
        """Return the first bytes of a file, fewer only where it is shorter; raises as :meth:`size` does."""

    def open(self, path: Path, *, scattered: bool = False) -> StoredFile:
        """Open a file for reading; raises as :meth:`size` does, also where a file is longer than RocketMQ makes one.

        Args:
            path: of the file.
            scattered: few bytes are read, here and there: what lies around them is not to be fetched.
        """

    def full_path(self, path: Path) -> Path:
        """Return an absolute path without links."""

    def is_locked(self, path: Path) -> bool:
        """Tell whether a running broker, or another writer, holds the store with this lock file."""


def read_small(storage: Storage, path: Path, max_bytes: int) -> bytes:
    """Return the content of a small file.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableFileError: it is not a regular file, or it is longer than files of its kind can be.
    """
    content = storage.read_bytes(path, max_bytes + 1)
    if len(content) > max_bytes:
        raise UnreadableFileError(str(path), f"longer than {max_bytes} bytes", "a file of at most that length")
    return content


def is_folder(storage: Storage, path: Path) -> bool:
    """Tell whether a folder, or a link to one, has the name; raises as :meth:`Storage.status` does."""
    status = storage.status(path)
    return status is not None and status.is_folder
