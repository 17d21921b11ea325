"""The storage of a store on a local disk: files are mapped, and locks can be queried.

Holes are not read through a mapping: in a tmpfs, the first read of one allocates a page of the file
system. If no page is free, the kernel ends the process with SIGBUS. Other file systems show the
hole as zeros and allocate nothing.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore import platforms
from rmqstore.errors import UnreadableFileError
from rmqstore.storage.files.lock import is_held
from rmqstore.storage.files.regular import KINDS, open_regular, require_regular, unreadable
from rmqstore.storage.files.storage import (
    A_DANGLING_LINK,
    A_FILE,
    A_FOLDER,
    AnyPath,
    Closing,
    Entry,
    Status,
    Storage,
    StoredFile,
    items_at,
)

_BLOCK_BYTES = 64 << 10
_ZEROS = bytes(_BLOCK_BYTES)
_MAX_BYTES = (1 << 31) - 1  # RocketMQ counts the bytes of a file in a Java int
_FEW_PAGES = 8  # fewer pages are read as fast one after the other


def lacks_room_for_holes(descriptor: int) -> bool:
    """Return whether reading all holes of a file by a mapping could exhaust its file system."""
    status = os.fstat(descriptor)
    missing = status.st_size - platforms.allocated_bytes(status)
    return missing > 0 and platforms.fills_memory(descriptor, missing)


def map_without_holes(
    descriptor: int, size: int, data_ranges: Iterable[tuple[int, int]]
) -> mmap.mmap:
    """Map a file read-only, with zeros in place of its holes, also if these are filled later.

    Args:
        descriptor: descriptor of the file.
        size: number of bytes to map.
        data_ranges: the parts of the file that are not holes.

    Raises:
        OSError: the kernel refuses one of the mappings.
    """
    mapped = platforms.pages_to_map_over(size)
    base = int(np.frombuffer(mapped, np.uint8).ctypes.data)
    for start, stop in data_ranges:
        start -= start % mmap.PAGESIZE  # noqa: PLW2901 - the page that holds it
        platforms.map_over(base + start, stop - start, descriptor, start)
    return mapped


class MappedFile(Closing):
    """A file whose later changes by a broker are visible, because its bytes are read as they are.

    The file is mapped on the first read. The mapping lives until the last array over it is
    released; :meth:`close` only drops our own reference. If another process *truncates* a mapped
    file, this process ends with SIGBUS. RocketMQ deletes files instead, which is harmless.

    A sparse file on a tmpfs that is nearly full is mapped without its holes: :mod:`.sparse` says
    why. Bytes written into a hole then become visible only after the file is opened again;
    :meth:`is_outdated` says when.

    Raises:
        FileNotFoundError: there is no such file; retention may just have deleted it.
        UnreadableFileError: it is not a regular file, or longer than RocketMQ can make one.

    Source: DefaultMappedFile.java.
    """

    __slots__ = ("_data", "_descriptor", "_identity", "_is_scattered", "_without_holes", "path")

    def __init__(self, path: AnyPath, *, scattered: bool = False) -> None:
        """Open the file.

        Args:
            path: the file to open.
            scattered: only few, scattered bytes will be read, so the kernel must not read ahead.
        """
        self.path = path
        self._is_scattered = scattered
        self._descriptor = -1
        self._data: NDArray[np.uint8] | None = None
        # The status of the file when it was mapped without holes.
        self._without_holes: os.stat_result | None = None
        self._descriptor, status = open_regular(path)
        if status.st_size > _MAX_BYTES:
            self.close()
            actual = f"{status.st_size} bytes long"
            expected = f"at most {_MAX_BYTES}, what a broker can write,"
            raise UnreadableFileError(str(path), actual, expected)
        self._identity = _identity(status)

    def __del__(self) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Length of the file in bytes or, once it is mapped, the length that it was mapped with."""
        return os.fstat(self._descriptor).st_size if self._data is None else len(self._data)

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return a view of the bytes ``[start, start + size)``, fewer only at the file's end."""
        return self.data[start : start + size]

    def read_in_place(
        self, _starts: NDArray[np.int64], _sizes: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return the mapping, which holds all spans of the file in their places."""
        return self.data

    def read_each(self, starts: NDArray[np.int64], size: int) -> NDArray[np.void]:
        """Return ``size`` bytes from each of the starts (n,), void (n,), all inside the file."""
        if not len(starts):
            return np.empty(0, f"V{size}")
        return items_at(self.data, starts, size)

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes, uint8 (nbytes,), mapped."""
        data = self._data
        if data is None:
            size = os.fstat(self._descriptor).st_size
            mapped: mmap.mmap | bytes = b""
            if size and lacks_room_for_holes(self._descriptor):
                self._without_holes = os.fstat(self._descriptor)
                spans = list(self.data_spans(0, size))
                mapped = map_without_holes(self._descriptor, size, spans)
            elif size:
                mapped = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ)
                if self._is_scattered:
                    platforms.will_read_few(mapped)
            data = self._data = np.frombuffer(mapped, np.uint8)
        return data

    def close(self) -> None:
        """Release the mapping and close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._data = None

    def is_outdated(self) -> bool:
        """Return whether the file has to be opened again.

        This is so if another file now has its name, if its length has changed, or if its holes
        were filled or cannot be read.
        """
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return False  # a deleted file can be read until it is closed
        if self._without_holes is not None:
            return _content(status) != _content(self._without_holes)
        return _identity(status) != self._identity or lacks_room_for_holes(self._descriptor)

    def written_end(self, size: int) -> int:
        """Return the position after the last byte before ``size`` that is not zero, or 0.

        The holes of a sparse file are skipped: reading them would fill the page cache with zeros.
        """
        end = size
        for start, stop in reversed(list(self.data_spans(0, size))):
            end = stop
            while end > start:
                block = np.empty(min(_BLOCK_BYTES, end - start), np.uint8)
                n_read = self.read_into(block, end - len(block))
                data = block[:n_read].tobytes()
                # Where holes are not known most blocks are zeros, which compare at once.
                if data != _ZEROS[: len(data)]:
                    return end - len(block) + len(data.rstrip(b"\0"))
                end -= len(block)
        return 0

    def data_spans(
        self,
        start: int,
        end: int,
        *,
        is_appended: bool = False,  # noqa: ARG002 - holes are known
    ) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that are not holes of a sparse file, rising.

        A hole reads as zeros, and reading it fills the page cache with them.
        """
        position = start
        while position < end:
            try:
                position = platforms.next_data(self._descriptor, position)
            except OSError as err:
                if err.errno == errno.ENXIO:
                    return  # only a hole follows
                yield position, end  # a system or a file system that knows no holes
                return
            if position >= end:
                return
            stop = end
            with suppress(OSError):  # the file was cut in the meantime
                stop = platforms.next_hole(self._descriptor, position)
            yield position, min(stop, end)
            position = stop

    def prefetch(self, starts: NDArray[np.int64], _size: int) -> None:
        """Start to read the pages at all starts, (n,), together; the kernel reads on from there."""
        if len(starts) < _FEW_PAGES or not platforms.CAN_ADVISE:
            return
        for page in np.unique(starts // mmap.PAGESIZE).tolist():
            platforms.will_read(self._descriptor, page * mmap.PAGESIZE, mmap.PAGESIZE)

    def read_ahead(self, _starts: NDArray[np.int64], _sizes: NDArray[np.int64]) -> None:
        """Do nothing: the kernel reads ahead by itself."""

    def read_into(self, window: NDArray[np.uint8], start: int) -> int:
        """Copy bytes from ``start`` on into a window; return their number, less only at the end."""
        done = 0
        while done < len(window):
            count = platforms.read_at(self._descriptor, window[done:].data, start + done)
            if not count:
                break
            done += count
        return done


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_size


def _content(status: os.stat_result) -> tuple[int, ...]:
    return *_identity(status), platforms.allocated_bytes(status), status.st_mtime_ns


def _status(status: os.stat_result) -> Status:
    kind = KINDS[stat.S_IFMT(status.st_mode)]
    allocated = platforms.allocated_bytes(status)
    return Status(kind, status.st_size, allocated, status.st_mtime_ns)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one; a dangling link is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


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
        try:
            with os.scandir(folder) as entries:
                return [
                    Entry(entry.name, _is_folder(entry), entry.is_symlink()) for entry in entries
                ]
        except FileNotFoundError:
            return []
        except OSError as err:
            raise unreadable(folder, err, A_FOLDER) from err

    def status(self, path: AnyPath) -> Status | None:
        """Return kind, size and times of a path; see :class:`Storage`."""
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as err:
            raise unreadable(path, err, "a file or a folder") from err
        if not stat.S_ISLNK(status.st_mode):
            return _status(status)
        try:
            return _status(os.stat(path))
        except OSError:
            return _status(status)._replace(kind=A_DANGLING_LINK)

    def exists(self, path: AnyPath) -> bool:
        """Return whether the path exists; a dangling link does not count. See :class:`Storage`."""
        status = self.status(path)
        return status is not None and status.kind != A_DANGLING_LINK

    def size(self, path: AnyPath) -> int:
        """Return the length of a regular file; see :class:`Storage`."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise
        except OSError as err:
            raise unreadable(path, err, A_FILE) from err
        require_regular(path, status)
        return status.st_size

    def read_bytes(self, path: AnyPath, count: int) -> bytes:
        """Return the first bytes of a file; see :class:`Storage`."""
        descriptor, status = open_regular(path)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(min(count, status.st_size))

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
        """Return whether a running broker or another writer holds this lock file."""
        return is_held(path)


LOCAL: Final[Storage] = LocalStorage()
