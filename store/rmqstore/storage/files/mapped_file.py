"""One file, read-only: mapped as bytes, or read in pieces. Knows no meaning of the bytes."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import UnreadableFileError
from rmqstore.storage.files.closing import Closing
from rmqstore.storage.files.regular import open_regular
from rmqstore.storage.files.sparse import lacks_room_for_holes, map_without_holes

_PIECE_BYTES = 64 << 10
_MAX_BYTES = (1 << 31) - 1  # RocketMQ counts the bytes of a file in a Java int
_FEW_PAGES = 8  # are as fast one after the other


class MappedFile(Closing):
    """A file whose bytes are read as they are now: what a broker writes later into the same file is seen.

    It is mapped when bytes of it are first read. The mapping ends when the last array over it is gone;
    :meth:`close` only lets go of ours. A file that another process *cuts* under a mapping ends this process with
    SIGBUS; RocketMQ deletes files, which is harmless.

    A sparse file of a tmpfs that is nearly full is mapped without its holes: :mod:`.sparse` says why.
    What is written into a hole then shows only after the file is opened again, which :meth:`is_outdated` asks for.

    Raises:
        FileNotFoundError: there is no such file; retention may have been faster.
        UnreadableFileError: it is not a regular file, or longer than RocketMQ can make one.

    Source: DefaultMappedFile.java.
    """

    __slots__ = ("_data", "_descriptor", "_identity", "_is_scattered", "_without_holes", "path")

    def __init__(self, path: Path, *, scattered: bool = False) -> None:
        """Open it.

        Args:
            path: of the file.
            scattered: few bytes are read, here and there: what lies around them is not to be fetched.
        """
        self.path, self._is_scattered = path, scattered
        self._descriptor = -1
        self._data: NDArray[np.uint8] | None = None
        self._without_holes: os.stat_result | None = None  # the file as it was when it was mapped so
        self._descriptor = open_regular(path)
        status = os.fstat(self._descriptor)
        if status.st_size > _MAX_BYTES:
            self.close()
            found, wanted = f"{status.st_size} bytes long", f"at most {_MAX_BYTES}, what RocketMQ can write,"
            raise UnreadableFileError(str(path), found, wanted)
        self._identity = _identity(status)

    def __del__(self) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Bytes of the file, or of its mapping where it was cut or went on since it was mapped."""
        return os.fstat(self._descriptor).st_size if self._data is None else len(self._data)

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return the bytes ``[start, start + size)``, fewer only where the file ends: a view of the mapping."""
        return self.data[start : start + size]

    def read_in_place(self, _starts: NDArray[np.int64], _sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the mapping, which holds all spans of the file in their places."""
        return self.data

    def read_each(self, starts: NDArray[np.int64], size: int) -> NDArray[np.void]:
        """Return as many bytes from each of the starts (n,) on, void (n,); all of them lie inside the file."""
        if not len(starts):
            return np.empty(0, f"V{size}")
        every = np.ndarray((len(self.data) - size + 1,), f"V{size}", self.data, 0, (1,))
        found: NDArray[np.void] = every[starts]
        return found

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes, uint8 (nbytes,), mapped."""
        if self._data is None:
            size = os.fstat(self._descriptor).st_size
            self._data = np.frombuffer(self._map(size) if size else b"", np.uint8)
        return self._data

    def _map(self, size: int) -> mmap.mmap:
        if lacks_room_for_holes(self._descriptor):
            self._without_holes = os.fstat(self._descriptor)
            return map_without_holes(self._descriptor, size, self._data_ranges(size))
        mapped = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ)
        if self._is_scattered:
            mapped.madvise(mmap.MADV_RANDOM)
        return mapped

    def close(self) -> None:
        """Let go of the mapping and the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self._data = -1, None

    def is_outdated(self) -> bool:
        """Tell whether the mapping is not to be used any more.

        Another file has this name by now, this one has another length, or holes have been filled or cannot be read.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False  # deleted, and good to be read until we let go of it
        if self._without_holes is not None:
            return _content(status) != _content(self._without_holes)
        return _identity(status) != self._identity or lacks_room_for_holes(self._descriptor)

    def written_end(self, size: int) -> int:
        """Return the position behind the last byte before ``size`` that is not zero, 0 if all are.

        The holes of a sparse file are not looked into: reading them would fill the page cache with zeros.
        """
        end = size
        for start, stop in reversed(self._data_ranges(size)):
            end = stop
            while end > start:
                piece = np.empty(min(_PIECE_BYTES, end - start), np.uint8)
                found = np.flatnonzero(piece[: self.read_into(piece, end - len(piece))])
                if len(found):
                    return end - len(piece) + int(found[-1]) + 1
                end -= len(piece)
        return 0

    def _data_ranges(self, size: int) -> list[tuple[int, int]]:
        ranges, at = [], 0
        while at < size:
            try:
                start = os.lseek(self._descriptor, at, os.SEEK_DATA)
            except OSError as err:
                if err.errno != errno.ENXIO:
                    raise
                break  # no data behind
            at = os.lseek(self._descriptor, start, os.SEEK_HOLE)
            if start < size:
                ranges.append((start, min(at, size)))
        return ranges

    def want(self, starts: NDArray[np.int64], _size: int) -> None:
        """Ask for the pages where ranges start, (n,), at once; what follows the kernel reads ahead."""
        if len(starts) < _FEW_PAGES:
            return
        for page in np.unique(starts // mmap.PAGESIZE).tolist():
            os.posix_fadvise(self._descriptor, page * mmap.PAGESIZE, mmap.PAGESIZE, os.POSIX_FADV_WILLNEED)

    def read_into(self, window: NDArray[np.uint8], start: int) -> int:
        """Copy the bytes from ``start`` on into a window; return how many there were, fewer only at the file's end."""
        done = 0
        while done < len(window):
            count = os.preadv(self._descriptor, [window[done:].data], start + done)
            if not count:
                break
            done += count
        return done


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_size


def _content(status: os.stat_result) -> tuple[int, ...]:
    return *_identity(status), status.st_blocks, status.st_mtime_ns
