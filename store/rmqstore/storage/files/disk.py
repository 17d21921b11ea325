"""All changes that this package makes to files: create, write, flush, rename, delete.

Nothing here interprets bytes. Every change is one method, so that a test can stop a writer at each
of them (tests/crash).

Large writes bypass the page cache: to bring new pages into it can take ten times the processor time
of the disk's own transfer, and they are written to the disk soon after in any case.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rmqstore import platforms
from rmqstore.errors import StoreStateError
from rmqstore.storage.files.regular import open_new, open_to_change

# Positions, lengths and addresses of direct writes are multiples of this on all common disks.
BLOCK: Final = 4096
_WINDOW_BYTES = 4 << 20

_OPEN_FILES = 64
_FLUSH_THREADS = 16
_ZEROS_AT_ONCE = 8 << 20


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Return new bytes whose address is a multiple of :data:`BLOCK`, (size,)."""
    data = np.empty(size + BLOCK, np.uint8)
    first = -data.ctypes.data % BLOCK
    return data[first : first + size]


def write_all(descriptor: int, position: int, parts: Iterable[bytes | NDArray[Any]]) -> None:
    """Write parts one after the other."""
    for data in parts:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # an array is a buffer
        while len(view):
            count = os.pwrite(descriptor, view, position)
            view = view[count:]
            position += count


class DirectWrites:
    """Writes to files in a thread, one write at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "rmqstore-write")
        self._pending: Future[None] | None = None
        self._direct: int | None = None  # the file, opened to go round the page cache
        self._window = aligned_bytes(_WINDOW_BYTES)  # for bytes that do not lie as in the file

    def begin(self, path: Path, descriptor: int, position: int, data: NDArray[np.uint8]) -> None:
        """Wait for the write before, then begin to write; ``data`` must not change meanwhile.

        Args:
            path: the file, which is that of the write before until :meth:`close_file` is called.
            descriptor: the file, open for writing.
            position: of the first byte in the file.
            data: the bytes.

        Raises:
            OSError: the write before failed, or the file cannot be opened.
        """
        self.wait()
        if self._direct is None and platforms.DIRECT:
            try:
                self._direct = open_to_change(path, platforms.DIRECT)
            except OSError as err:
                if err.errno != errno.EINVAL:  # the file system has no direct writes
                    raise
        self._pending = self._pool.submit(self._write, descriptor, self._direct, position, data)

    def close_file(self) -> None:
        """Close the files that the last write opened."""
        if self._direct is not None:
            direct, self._direct = self._direct, None
            os.close(direct)

    def wait(self) -> None:
        """Wait until the bytes are written.

        Raises:
            OSError: they could not be written. It is raised until :meth:`forget` is called.
        """
        if self._pending is not None:
            self._pending.result()  # it stays pending if this fails or is interrupted
            self._pending = None

    def forget(self) -> None:
        """Wait for the last write, whether or not it succeeds, and forget its error."""
        if self._pending is not None:
            wait([self._pending])
            self._pending = None

    def close(self) -> None:
        """Wait for the last write, whether or not it succeeds, and end the thread."""
        self._pool.shutdown()
        self._pending = None
        self.close_file()

    def _write(
        self, descriptor: int, direct: int | None, position: int, data: NDArray[np.uint8]
    ) -> None:
        first = min(-position % BLOCK, len(data))
        last = len(data) - (len(data) - first) % BLOCK
        if direct is None or first >= last:
            write_all(descriptor, position, [data])
            return
        write_all(descriptor, position, [data[:first]])
        is_aligned = (data.ctypes.data + first) % BLOCK == 0
        for start in range(first, last, _WINDOW_BYTES):
            window = data[start : min(start + _WINDOW_BYTES, last)]
            if not is_aligned:
                copied = self._window[: len(window)]
                copied[:] = window
                window = copied
            try:
                write_all(direct, position + start, [window])
            except OSError as err:
                if err.errno != errno.EINVAL:  # this disk has larger blocks
                    raise
                write_all(descriptor, position + start, [window])
        write_all(descriptor, position + last, [data[last:]])


@contextmanager
def named_os_errors(root: Path, consequence: str | Callable[[], str]) -> Iterator[None]:
    """Turn an ``OSError`` into a ``StoreStateError`` that names the store and the consequence."""
    try:
        yield
    except OSError as err:
        then = consequence() if callable(consequence) else consequence
        is_full = err.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "CREATE_MAPPED_FILE_FAILED: the disk is full" if is_full else str(err)
        raise StoreStateError(f"{root}: {why}; {then}") from err


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in an ``OSError`` of a system call that only takes its descriptor."""
    try:
        yield
    except OSError as err:
        if err.filename is None and err.errno is not None:
            raise OSError(err.errno, err.strerror, str(path)) from err
        raise


def _flush(path: Path, flags: int) -> None:
    """Wait until what is written of a file or folder is on the disk.

    Args:
        path: the file or folder.
        flags: how it is opened.
    """
    descriptor = os.open(path, flags)
    try:
        with _named(path):
            platforms.flush(descriptor)
    finally:
        os.close(descriptor)


def _close(path: Path, descriptor: int) -> None:
    with _named(path):
        os.close(descriptor)


class Disk:
    """Performs all changes to files; keeps the last few of them open until :meth:`close`."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()
        self._folders: list[tuple[str, ...]] = []  # the parts of their paths
        self._real_folders: set[Path] = set()  # neither they nor what leads to them are links
        self._unflushed_folders: dict[Path, None] = {}  # with new names, for flush_all
        self._direct_writes: DirectWrites | None = None
        self._last_large = Path()

    def keep_within(self, *folders: Path, checked: Iterable[Path] = ()) -> None:
        """Refuse any later change outside of these folders, or through a link below them.

        A store of unknown origin may hold links to anywhere. The folders themselves were named by
        the user and may be links. A link is deleted or replaced like any other file; its target is
        left alone.

        Args:
            folders: where changes are allowed.
            checked: paths that must be allowed, which are looked at now.

        Raises:
            StoreStateError: one of these is refused.
        """
        self._folders = sorted((folder.parts for folder in folders), key=len, reverse=True)
        for path in checked:
            self._require_within(path)

    def _require_within(self, path: Path) -> None:
        """Refuse a path outside of the folders, and one that is or goes through a link below them.

        Raises:
            StoreStateError: the path is refused; nothing was changed.
            UnsupportedFeatureError: this system does not write stores.
        """
        platforms.require_writes()
        parts = path.parts
        depths = (len(base) for base in self._folders if parts[: len(base)] == base)
        depth = next(depths, None)
        if depth is None:
            if self._folders:
                raise StoreStateError(f"{path} is outside of the store and is not changed")
            return
        folder = path.parent
        for _ in parts[depth:]:
            if path in self._real_folders:
                break
            if path.is_symlink():
                raise StoreStateError(
                    f"{path} is a symbolic link, which is not followed to change a store: "
                    "put what it points at in its place, "
                    "or for a folder of the log, the queues or the index, name its target"
                )
            path = path.parent
        self._real_folders.add(folder)

    def make_folder(
        self,
        path: Path,
        *,
        is_flushed: bool = True,
        like: Path | None = None,
        is_private: bool = False,
    ) -> None:
        """Create a folder and its missing parents.

        Args:
            path: the folder to create.
            is_flushed: wait until the new names are on the disk; else the next :meth:`flush_all`
                does, so that many folders of one parent cost one flush of it.
            like: a folder whose mode it gets.
            is_private: only its owner may use it, if it is new.
        """
        self._require_within(path)
        missing = [*takewhile(lambda folder: not folder.exists(), (path, *path.parents))]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700 if is_private and folder == path else 0o777, exist_ok=True)
            if is_flushed:
                self.flush_folder(folder.parent)
            else:
                self._unflushed_folders[folder.parent] = None
        if like is not None:
            path.chmod(stat.S_IMODE(like.stat().st_mode))

    def create(self, path: Path, size: int, content: Iterable[NDArray[Any]] | None = None) -> None:
        """Create a sparse file of zeros, which takes no space on the disk until it is written to.

        The file gets its name only after it has its full length: a broker refuses a store with a
        file of another length.

        Args:
            path: the file to create.
            size: length of the file in bytes.
            content: arrays that the file begins with instead of zeros; they are on the disk before
                the file gets its name.

        Raises:
            FileExistsError: the file already exists.
        """
        self._require_within(path)
        descriptor, has_name = open_new(path)
        try:
            with _named(path):
                os.ftruncate(descriptor, size)
                if content is not None:
                    write_all(descriptor, 0, content)
                    platforms.flush(descriptor)
            if not has_name:
                platforms.name_unnamed(descriptor, path)
        except BaseException:  # raised again: whatever happened, the file is not to stay half made
            os.close(descriptor)
            if has_name:
                path.unlink(missing_ok=True)
            raise
        self._keep(path, descriptor)

    def reserve(self, path: Path, position: int, size: int) -> None:
        """Allocate space on the disk for bytes that will be written; they are zeros until then.

        One allocation is much cheaper than one for every page of a sparse file, and a full disk is
        noticed before anything is written.
        """
        with _named(path):
            platforms.reserve(self._open(path), position, size)

    def shorten(self, path: Path, size: int) -> None:
        """Cut a file of our own to a size, which frees the space after it."""
        with _named(path):
            os.ftruncate(self._open(path), size)

    def resize(self, path: Path, size: int) -> None:
        """Give an existing file a length, which cuts it or adds zeros, and wait for the disk."""
        self._require_within(path)
        self.shorten(path, size)
        self.flush(path)

    def write(self, path: Path, position: int, data: bytes | NDArray[Any]) -> None:
        """Write bytes into an existing file."""
        with _named(path):
            write_all(self._open(path), position, [data])

    def write_through(self, path: Path, position: int, data: NDArray[Any]) -> None:
        """Write a few bytes into an existing file, and wait until they are on the disk.

        Other bytes of the file need not be; where the system cannot distinguish them, all are.
        """
        with _named(path):
            is_written = platforms.write_through(self._open(path), data.data, position)
        if not is_written:
            self.write(path, position, data)
            self.flush(path)

    def write_large(self, path: Path, position: int, data: NDArray[np.uint8]) -> None:
        """Begin to write many bytes into an existing file, round the page cache if possible.

        The next change waits for them, and raises the error if they could not be written.
        ``data`` must not change until then.
        """
        if self._direct_writes is None:
            self._direct_writes = DirectWrites()
        descriptor = self._open(path)
        if path != self._last_large:
            self._direct_writes.close_file()
            self._last_large = path
        self._direct_writes.begin(path, descriptor, position, data)

    def _wait_for_large_write(self) -> None:
        """Wait for the last large write.

        Raises:
            OSError: it failed. Each change raises it until :meth:`forget_large_write` is called.
        """
        if self._direct_writes is not None:
            with _named(self._last_large):
                self._direct_writes.wait()

    def forget_large_write(self) -> None:
        """Wait for the last large write, and continue even if it failed."""
        if self._direct_writes is not None:
            self._direct_writes.forget()

    def clear_append(self, path: Path, start: int, stop: int) -> None:
        """Write zeros over an append that was not committed, durably.

        Its first 8 bytes may be a blank, which hides all records after it, so they go last.
        """
        first = min(start + 8, stop)
        clear(self, path, first, stop)
        self.flush(path)
        clear(self, path, start, first)
        self.flush(path)

    def scatter(self, path: Path, positions: NDArray[np.int64], values: NDArray[np.void]) -> None:
        """Write values of one width at many positions, (n,) each, where bytes were written before.

        The values go through a mapping, because one system call for each would be slow. No position
        may lie in a hole of a sparse file: if the disk is full, writing to the mapping there ends
        the process.
        """
        width = values.dtype.itemsize
        low = int(positions.min()) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        high = int(positions.max()) + width
        with mmap.mmap(self._open(path), high - low, offset=low) as mapped:
            view = np.ndarray((high - low - width + 1,), f"V{width}", mapped, 0, (1,))
            view[positions - low] = values
            del view
            platforms.end_mapped_writes(mapped)

    def flush(self, path: Path) -> None:
        """Wait until a file's bytes are on the disk."""
        with _named(path):
            platforms.flush(self._open(path))

    def flush_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        _flush(path, platforms.TO_FLUSH_FOLDER)

    def flush_all(self, paths: Collection[Path]) -> None:
        """Wait until the bytes of many files, and their names in their folders, are on the disk.

        So are then the names of all folders that :meth:`make_folder` made without a flush. The
        flushes run in parallel, because a disk can complete several of them together.
        """
        self._wait_for_large_write()
        folders = {**dict.fromkeys(path.parent for path in paths), **self._unflushed_folders}
        names = [(path, platforms.TO_FLUSH) for path in paths]
        names += [(folder, platforms.TO_FLUSH_FOLDER) for folder in folders]

        def flush_each(names: list[tuple[Path, int]]) -> None:
            for path, flags in names:
                self._require_within(path)
                _flush(path, flags)

        n_threads = min(len(names), _FLUSH_THREADS)
        with ThreadPoolExecutor(_FLUSH_THREADS) as pool:
            list(pool.map(flush_each, [names[first::n_threads] for first in range(n_threads)]))
        self._unflushed_folders.clear()

    def replace(self, path: Path, text: bytes) -> None:
        """Replace a small file atomically: a new file is written, flushed and renamed over it."""
        self._require_within(path.parent)
        fresh = path.with_name(path.name + ".tmp")
        fresh.unlink(missing_ok=True)
        self.create(fresh, 0)
        self.write(fresh, 0, text)
        self.flush(fresh)
        self._forget(fresh)
        self._forget(path)
        self.rename(fresh, path)
        self.flush_folder(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder, replacing an existing target; a link is refused."""
        self._require_within(source)
        self._require_within(target.parent)
        self._forget(self._last_large)
        self._real_folders.clear()
        for path in [path for path in self._descriptors if path.is_relative_to(source)]:
            self._forget(path)
        source.replace(target)

    def delete(self, path: Path) -> None:
        """Delete a file if it exists; of a link, delete the link itself."""
        self._require_within(path.parent)
        self._forget(path)
        path.unlink(missing_ok=True)

    def delete_tree(self, path: Path) -> None:
        """Delete a folder and its contents as far as possible; links in it are not followed."""
        self._require_within(path.parent)
        self._real_folders.clear()
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                self.delete(path)

    def close(self) -> None:
        """Close all open files.

        Raises:
            OSError: closing one of them failed, as a file system of a network may say that bytes
                written before were lost. The others are closed all the same.
        """
        with ExitStack() as stack:
            if self._direct_writes is not None:
                stack.callback(self._direct_writes.close)
                self._direct_writes.forget()
                self._direct_writes = None
            for path, descriptor in self._descriptors.items():
                stack.callback(_close, path, descriptor)
            self._descriptors.clear()

    def _open(self, path: Path) -> int:
        self._wait_for_large_write()
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            self._require_within(path)
            return self._keep(path, open_to_change(path))
        self._descriptors.move_to_end(path)
        return descriptor

    def _keep(self, path: Path, descriptor: int) -> int:
        self._forget(path)
        self._descriptors[path] = descriptor
        if len(self._descriptors) > _OPEN_FILES:
            _close(*self._descriptors.popitem(last=False))
        return descriptor

    def _forget(self, path: Path) -> None:
        self._wait_for_large_write()
        if self._direct_writes is not None and path == self._last_large:
            self._direct_writes.close_file()
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            _close(path, descriptor)


def clear(disk: Disk, path: Path, start: int, stop: int) -> None:
    """Write zeros over ``[start, stop)`` of a file, block by block from the end to the start.

    A crash then leaves the first bytes of the range, and never stale records after zeros, which a
    later append could lead up to.
    """
    for position in reversed(range(start, stop, _ZEROS_AT_ONCE)):
        disk.write(path, position, bytes(min(_ZEROS_AT_ONCE, stop - position)))
