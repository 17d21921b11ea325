"""A storage that reads through ``pyarrow.fs``: object storage, HDFS, or any other file system."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import OptionError, RmqStoreError, UnreadableFileError
from rmqstore.storage.files.recent import Recent
from rmqstore.storage.files.remote_object import BlockCache, RemoteObject
from rmqstore.storage.files.remote_requests import Counts, RemoteRequests
from rmqstore.storage.files.storage import (
    A_FILE,
    A_FOLDER,
    AnyPath,
    Closing,
    Entry,
    Status,
    UriPath,
    empty_array,
    items_at,
)

Content: TypeAlias = bytes | NDArray[np.uint8]

_WITHOUT_FOLDERS: Final = ("s3", "gcs", "abfs")  # a name there needs no folder that was made

_LAST_BYTES: Final = 4 << 10  # read first, because most files are full
_PROBE_BYTES: Final = 4 << 10
_NEAR_BYTES: Final = 512 << 10  # of the written end; these are fetched by one request
_SHORT_BYTES: Final = 8 << 20  # such a file is of a queue, which has no long run of zeros
_NEAR_IN_LONG_BYTES: Final = 4 << 20
_PARTS_OF_LONG: Final = 4  # that a longer file is searched by, with a request each, all at once
_LONG_BYTES: Final = 4 << 20  # of a span, for which pages are best large
_GUESSED_BYTES: Final = 64 << 10  # on both sides of a guess
_DISTANCES: Final = _NEAR_BYTES << np.arange(0, 20, 2)  # bytes, at which later data is looked for

_MAX_BYTES: Final = (1 << 31) - 1  # RocketMQ counts the bytes of a file in a Java int
_OBJECTS_AT_ONCE: Final = 320
_FILES_TOGETHER: Final = 16  # opened at the same time
_FOLDERS_APART: Final = 16  # listed one by one, before everything is listed together
_KEEP_TIMES = ("local", "hdfs")  # file systems that a copy can keep the times of files in


class RemoteFolder:
    """Writes, lists and deletes the files below one folder.

    A file appears when it is complete, or, in some file systems, is cut where its writer was
    interrupted. Nothing can be renamed, or be written to again.

    Args:
        requests: makes the requests to the file system.
        root: name of the folder, a URI.
        key: the path of the folder in the file system.
    """

    def __init__(self, requests: RemoteRequests, root: str, key: str) -> None:
        self._requests = requests
        self.root = root
        self._key = key
        self._filesystem = requests.filesystem
        self._needs_folders = self._filesystem.type_name not in _WITHOUT_FOLDERS

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files by their names below the folder.

        Raises:
            RemoteReadError: the folder cannot be listed.
        """
        infos = self._requests.list(self._key, self.root, recursive=True)
        prefix = f"{self._key}/"
        return {
            info.path.removeprefix(prefix): info.size or 0
            for info in infos
            if info.type.name == "File"
        }

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: there is no such file.
            RemoteReadError: it cannot be read.
        """

        def read() -> bytes:
            with self._filesystem.open_input_stream(f"{self._key}/{name}") as stream:
                content: bytes = stream.read()
            return content

        return self._requests.repeated(read, f"{self.root}/{name}")

    def write(self, name: str, chunks: Callable[[], Iterator[Content]]) -> None:
        """Write a file.

        Args:
            name: its name below the folder.
            chunks: returns its bytes; called again if the file has to be written again.

        Raises:
            RemoteReadError: it cannot be written.
        """
        key = f"{self._key}/{name}"

        def write() -> None:
            if self._needs_folders:
                self._filesystem.create_dir(key.rpartition("/")[0], recursive=True)
            with self._filesystem.open_output_stream(key) as stream:
                for chunk in chunks():
                    stream.write(chunk)

        self._requests.repeated(write, f"writing {self.root}/{name}")

    def make(self, name: str) -> None:
        """Make an empty folder, in object storage by an object that stands for it.

        Raises:
            RemoteReadError: it cannot be made.
        """
        key = f"{self._key}/{name}"
        self._requests.repeated(
            lambda: self._filesystem.create_dir(key, recursive=True), f"writing {self.root}/{name}"
        )

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens if there is none.

        Raises:
            RemoteReadError: it cannot be deleted.
        """

        def delete() -> None:
            with suppress(FileNotFoundError):
                self._filesystem.delete_file(f"{self._key}/{name}")

        self._requests.repeated(delete, f"deleting {self.root}/{name}")


class RemoteFile(Closing):
    """One version of an object. The storage keeps it open for others who read it.

    Args:
        path: name of the file.
        stored: the object.
        storage: knows whether the object is still that of the name.
        ends: where the last searched file of each length ended, shared by all files of a storage.
    """

    __slots__ = ("_guesses", "_object", "_storage", "path")

    def __init__(
        self, path: AnyPath, stored: RemoteObject, storage: RemoteStorage, ends: dict[int, int]
    ) -> None:
        self.path = path
        self._object = stored
        self._storage = storage
        self._guesses = ends

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return self._object.size

    def read(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return the bytes ``[start, start + size)``, fewer only at the end."""
        data = np.empty(max(min(size, self.size - start), 0), np.uint8)
        self.read_into(data, start)
        return data

    def read_into(self, window: NDArray[np.uint8], start: int) -> int:
        """Copy bytes from ``start`` on into a window; return their number, less only at the end."""
        n_bytes = max(min(len(window), self.size - start), 0)
        end = start + n_bytes

        def copy(position: int, data: NDArray[np.uint8]) -> None:
            low, high = max(position, start), min(position + len(data), end)
            if low < high:
                window[low - start : high - start] = data[low - position : high - position]

        self._object.fetch(np.array([start], np.int64), np.array([end], np.int64), copy)
        return n_bytes

    def read_in_place(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return an array as long as the file, which holds some spans, and zeros elsewhere."""
        return self._in_place(starts, sizes, is_last=True)

    def _in_place(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64], *, is_last: bool
    ) -> NDArray[np.uint8]:
        is_long = int(sizes.max(initial=0)) > _LONG_BYTES
        whole = empty_array(self.size, in_large_pages=is_long)

        def copy(position: int, data: NDArray[np.uint8]) -> None:
            whole[position : position + len(data)] = data

        self._object.fetch(*self._spans(starts, sizes), copy, is_last=is_last)
        return whole

    def read_each(self, starts: NDArray[np.int64], size: int) -> NDArray[np.void]:
        """Return ``size`` bytes from each of the starts (n,), void (n,), all inside the file."""
        if not len(starts) or not size:
            return np.empty(len(starts), f"V{size}")
        whole = self.read_in_place(starts, np.full(len(starts), size, np.int64))
        return items_at(whole, starts, size)

    def prefetch(self, starts: NDArray[np.int64], size: int) -> None:
        """Begin to fetch ``size`` bytes from each of the starts, (n,)."""
        sizes = np.full(len(starts), size, np.int64)
        self._object.prefetch(*self._spans(starts, sizes))

    def read_ahead(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Begin to fetch spans, (n,), that a long read comes to soon, and reads once."""
        self._object.prefetch(*self._spans(starts, sizes), is_passing=True)

    def _spans(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where spans begin and end, cut off at the end of the file."""
        return np.minimum(starts, self.size), np.minimum(starts + sizes, self.size)

    def data_spans(
        self, start: int, end: int, *, is_appended: bool = False
    ) -> Iterator[tuple[int, int]]:
        """Yield a range, or its part before the written end of a file that is only appended to.

        Where something was written just before ``end``, the written end is after it, and is not
        looked for.
        """
        end = min(end, self.size)
        if is_appended and start < end:
            found = self._object
            is_open = found.written_until < end < self.size and self.size not in found.ends
            if is_open and self._last_byte(max(end - _PROBE_BYTES, 0), end):
                found.note_written(end)
            if found.written_until < end:
                end = min(end, self.written_end(self.size))
        if start < end:
            yield start, end

    def written_end(self, size: int) -> int:
        """Return the position after the last byte before ``size`` that is not zero, or 0.

        A file is written from its start on, so the end is searched by halves, or by quarters in a
        long file. A long run of zeros in a record can mislead the search, so places after the end
        that it finds are looked at as well, each twice as far as the one before.
        """
        size = min(size, self.size)
        found = self._object.ends.get(size)
        if found is not None:
            return found
        # Queues that take turns are filled alike, so the end in one short file is near that in
        # another.
        end = 0
        low, high = self._around(self._guesses.get(size, 0), size)
        if low < high:
            near = self._last_byte(low, high)
            if near + _PROBE_BYTES <= high or near == size:
                end = near
        if not end:
            low = 0
            high = max(size - _LAST_BYTES, 0)
            end = self._last_byte(high, size)
            while not end and low < high:
                end = self._by_parts(low, high)
                is_long = size > _SHORT_BYTES
                positions = end + _DISTANCES[is_long & (_DISTANCES < high - end)]  # noqa: SIM300
                later = positions[self._hold_data(positions)]
                if len(later):
                    low, end = int(later[-1]), 0
                elif not end:
                    break
            if end < size:  # a full file says nothing of others
                self._guesses[size] = end
        self._object.ends[size] = end
        self._object.note_written(end)
        return end

    def look(self, *, at_start: bool, at_end: bool) -> None:
        """Fetch the first bytes and, around the place where they are expected, the last ones."""
        low, high = self._around(self._guesses.get(self.size, 0) if at_end else 0, self.size)
        starts = np.array([0, low], np.int64)
        ends = np.array([min(_PROBE_BYTES, self.size) if at_start else 0, high], np.int64)
        self._object.fetch(starts, ends, _ignore)
        if at_end:
            self.written_end(self.size)

    def _around(self, guess: int, size: int) -> tuple[int, int]:
        """Return the range of positions in which the end is expected; an empty one for none."""
        if not 0 < guess <= size <= _SHORT_BYTES:
            return 0, 0
        return max(guess - _GUESSED_BYTES, 0), min(guess + _GUESSED_BYTES, size)

    def _by_parts(self, low: int, high: int) -> int:
        """Return the end of the written bytes in ``[low, high)``, after which all is zero."""
        start, near, n_parts = low, _NEAR_IN_LONG_BYTES, _PARTS_OF_LONG
        if high <= _SHORT_BYTES:
            near, n_parts = _NEAR_BYTES, 2
        while high - low > near:
            positions = low + (high - low) * np.arange(1, n_parts, dtype=np.int64) // n_parts
            data = np.flatnonzero(self._hold_data(positions, is_last=False))
            last = int(data[-1]) if len(data) else -1
            bounds = [low, *positions.tolist(), high]
            low, high = bounds[last + 1], bounds[last + 2]
        end = self._last_byte(low, high)
        return end or (low if low > start else 0)

    def _hold_data(
        self, positions: NDArray[np.int64], *, is_last: bool = True
    ) -> NDArray[np.bool_]:
        """Return at which positions, (n,), some of the next bytes are not zero."""
        if not len(positions):
            return np.empty(0, np.bool_)
        sizes = np.full(len(positions), _PROBE_BYTES, np.int64)
        whole = self._in_place(positions, sizes, is_last=is_last)
        rows = [whole[position : position + _PROBE_BYTES].any() for position in positions.tolist()]
        return np.array(rows, np.bool_)

    def _last_byte(self, start: int, end: int) -> int:
        """Return the position after the last byte in a range that is not zero, or 0."""
        n_written = len(self.read(start, end - start).tobytes().rstrip(b"\0"))
        return start + n_written if n_written else 0

    def is_outdated(self) -> bool:
        """Return whether another object now has the name."""
        return self._object.is_gone or self._storage.is_outdated(str(self.path))

    def close(self) -> None:
        """Do nothing: the storage closes objects that are not used for long."""


def _ignore(_position: int, _data: NDArray[np.uint8]) -> None:
    """Take no note of bytes, which stay in the cache for their readers."""


@dataclass(slots=True)
class _Listing:
    """What was listed since the last refresh."""

    number: int  # how often the listings were renewed before
    folders: dict[str, dict[str, Any]] = field(default_factory=dict)  # FileInfo by key and name
    is_whole: bool = False  # whether all below the root is in it
    is_stale: bool = False  # an object was found deleted or replaced


class RemoteStorage:
    """Files of a remote file system, read-only.

    Folders are listed once until :meth:`refresh`, and the listings also answer for the sizes of
    files. Where many folders are asked for, all below the root is listed together.

    Args:
        filesystem: a ``pyarrow.fs.FileSystem``.
        root: name of the store's folder, a URI.
        key: the path of that folder in the file system.
        secrets: texts that no error may show.

    Attributes:
        key: the path of the folder, without a slash at its end.
    """

    window_bytes: Final = 8 << 20

    def __init__(
        self,
        filesystem: Any,  # noqa: ANN401
        root: str,
        key: str,
        secrets: Iterable[str] = (),
    ) -> None:
        self._requests = RemoteRequests(filesystem, secrets)
        self._root = root.rstrip("/")
        self.key = key.rstrip("/")
        whole = filesystem
        while hasattr(whole, "base_fs"):  # it is a part of another one
            whole = whole.base_fs
        self._keeps_times = whole.type_name in _KEEP_TIMES
        self._cache = BlockCache()
        self._objects: Recent[str, RemoteObject] = Recent(_OBJECTS_AT_ONCE)
        self._ends: dict[int, int] = {}
        self._hidden = ""  # a key
        self._listing = _Listing(0)  # which a thread that lists keeps to its end

    def __repr__(self) -> str:
        return f"RemoteStorage({self._root!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemoteStorage):
            return NotImplemented
        return self._root == other._root and bool(self.filesystem.equals(other.filesystem))

    def __hash__(self) -> int:
        return hash(self._root)

    @property
    def counts(self) -> Counts:
        """The requests so far."""
        return self._requests.counts

    @property
    def filesystem(self) -> Any:  # noqa: ANN401
        """The ``pyarrow.fs.FileSystem``."""
        return self._requests.filesystem

    def folder(self) -> RemoteFolder:
        """Return the root as a folder that can be written to."""
        return RemoteFolder(self._requests, self._root, self.key)

    def hide(self, name: str) -> None:
        """Leave a file of the root out of all listings."""
        self._hidden = f"{self.key}/{name}"

    def overlaps(self, other: object) -> bool:
        """Return whether another storage has this one's root below its own, or the other way."""
        if not isinstance(other, RemoteStorage) or not self.filesystem.equals(other.filesystem):
            return False
        mine, others = f"{self.key}/", f"{other.key}/"
        return mine.startswith(others) or others.startswith(mine)

    def requests_made(self) -> str | None:
        """Return how many requests were made so far, in words."""
        return str(self.counts)

    def refresh(self) -> None:
        """Forget the listed files, so that they are listed again."""
        self._listing = _Listing(self._listing.number + 1)

    def list_folder(self, folder: AnyPath) -> list[Entry]:
        """Return the names in a folder; see :class:`Storage`."""
        infos = self._listed(self._key(folder), str(folder))
        status = None if infos else self.status(folder)
        if status is not None and status.is_file:
            raise UnreadableFileError(str(folder), A_FILE, A_FOLDER)
        return [Entry(name, _is_folder(info)) for name, info in infos.items()]

    def _listed(self, key: str, name: str) -> dict[str, Any]:
        """Return what is in a folder: FileInfo by name."""
        if self._listing.is_stale:
            self.refresh()
        listing = self._listing
        folders = listing.folders
        found = folders.get(key)
        if found is not None:
            return found
        is_below = key.startswith(self.key + "/")
        if is_below and not listing.is_whole and len(folders) >= _FOLDERS_APART:
            folders |= self._list_below(self.key, self._root)
            listing.is_whole = True
        if is_below and listing.is_whole:
            return folders.get(key, {})
        # Where a folder above is listed, it shows whether what leads to this one is there.
        above = key
        while is_below and above != self.key:
            above, _, child = above.rpartition("/")
            if above in folders:
                if child not in folders[above]:
                    return {}
                break
        parent, _, own_name = key.rpartition("/")
        if is_below and parent.removeprefix(self.key).count("/") > 1:
            # Whoever looks at one queue of a topic looks at the others next.
            folders |= self._list_below(parent, name.removesuffix(f"/{own_name}"))
            return folders.setdefault(key, {})
        infos = self._requests.list(key, name, recursive=False)
        found = folders[key] = _by_name(info for info in infos if info.path != self._hidden)
        return found

    def _list_below(self, key: str, name: str) -> dict[str, dict[str, Any]]:
        folders: dict[str, dict[str, Any]] = {}
        for info in self._requests.list(key, name, recursive=True):
            parent = info.path.rstrip("/").rpartition("/")[0]
            if info.path != self._hidden:
                _add(folders.setdefault(parent, {}), info)
            if _is_folder(info):
                folders.setdefault(info.path.rstrip("/"), {})
        return folders

    def _info(self, path: AnyPath) -> Any:  # noqa: ANN401
        """Return the FileInfo of a path, None if it does not exist."""
        key = self._key(path)
        parent, _, name = key.rpartition("/")
        if key == self.key or not parent:
            info = self._requests.info(key, str(path))
            if info.type.name == "File" and not info.size and self._listed(key, str(path)):
                return type(info)(key, type(info.type).Directory)  # an object that marks a folder
            return info if info.type.name != "NotFound" else None
        return self._listed(parent, str(path).rpartition("/")[0]).get(name)

    def status(self, path: AnyPath) -> Status | None:
        """Return kind, size and times of a path; see :class:`Storage`."""
        info = self._info(path)
        if info is None:
            return None
        size = info.size or 0
        time = info.mtime_ns if self._keeps_times else 0
        return Status(A_FOLDER if _is_folder(info) else A_FILE, size, size, time or 0)

    def exists(self, path: AnyPath) -> bool:
        """Return whether the path exists; see :class:`Storage`."""
        return self._info(path) is not None

    def size(self, path: AnyPath) -> int:
        """Return the length of a regular file; see :class:`Storage`."""
        status = self.status(path)
        if status is None:
            raise FileNotFoundError(str(path))
        if not status.is_file:
            raise UnreadableFileError(str(path), status.kind, A_FILE)
        return status.size

    def read_bytes(self, path: AnyPath, count: int) -> bytes:
        """Return the first bytes of a file; see :class:`Storage`."""
        return self._open(path).read(0, count).tobytes()

    def open(self, path: AnyPath, *, scattered: bool = False) -> RemoteFile:  # noqa: ARG002
        """Open a file, or reuse one that is open already; see :class:`Storage`."""
        file = self._open(path)
        if file.size > _MAX_BYTES:
            expected = f"at most {_MAX_BYTES}, what a broker can write,"
            raise UnreadableFileError(str(path), f"{file.size} bytes long", expected)
        return file

    def _open(self, path: AnyPath) -> RemoteFile:
        self.size(path)  # refuses what is not a file
        name = str(path)
        found = self._objects.get(name)
        if found is None or found.is_gone or self.is_outdated(name):
            try:
                found = self._new_object(name)
            except FileNotFoundError:
                self.refresh()
                raise
        return RemoteFile(path, self._objects.put(name, found), self, self._ends)

    def prepare(
        self, files: set[str], *, first: Container[str] = (), last: Container[str] = ()
    ) -> None:
        """Open files together, and fetch the first and the last written bytes of some.

        What fails is tried again, and said, when the file is read.
        """
        sizes: dict[str, int] = {}
        for name in files:
            with suppress(FileNotFoundError, UnreadableFileError):
                if self._objects.get(name) is None:
                    sizes[name] = self.size(name)

        def look(name: str) -> None:
            with suppress(FileNotFoundError, RmqStoreError):
                found = self._new_object(name)
                file = RemoteFile(name, found, self, self._ends)
                file.look(at_start=name in first, at_end=name in last)
                self._objects.put(name, found)

        names = sorted(sizes)
        for size in {sizes[name] for name in names if name in last} - set(self._ends):
            # The end in one file shows where to look in others of its length.
            name = next(name for name in names if name in last and sizes[name] == size)
            names.remove(name)
            look(name)
        with ThreadPoolExecutor(_FILES_TOGETHER, "rmqstore-look") as pool:
            list(pool.map(look, names))

    def _new_object(self, name: str) -> RemoteObject:
        return RemoteObject(
            self._requests,
            self._cache,
            self._key(name),
            name,
            listing=self._listing.number,
            on_gone=self._note_gone,
        )

    def _note_gone(self) -> None:
        """Let the folders be listed again before they are looked at, as any thread may ask."""
        self._listing.is_stale = True

    def is_outdated(self, name: str) -> bool:
        """Return whether an object that was opened is another since the listings were renewed."""
        found = self._objects.get(name)
        if found is None or found.is_gone or self._info(name) is None:
            return False  # what is gone says so when it is read
        return not found.is_same_in(self._listing.number)

    def full_path(self, path: Path) -> Path:
        """Return the path: every name is absolute."""
        return path

    def is_locked(self, _path: Path) -> bool:
        """Return that no broker holds this lock file: a copy has no running broker."""
        return False

    def _key(self, path: AnyPath) -> str:
        """Return the path of a name in the file system."""
        name = str(path).rstrip("/")
        if name == self._root or name.startswith(self._root + "/"):
            return self.key + name[len(self._root) :]
        own, other = _split(self._root), _split(str(UriPath(name)))
        if own[0] != other[0]:
            raise OptionError(f"{name} does not lie in the storage of {self._root}")
        base = self.key.removesuffix(own[1]).rstrip("/")
        return f"{base}{other[1]}"


def _split(name: str) -> tuple[str, str]:
    """Return scheme and host of a URI, and the path after them."""
    scheme, _, rest = name.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash + path


def _by_name(infos: Iterable[Any]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for info in infos:
        _add(names, info)
    return names


def _add(names: dict[str, Any], info: Any) -> None:  # noqa: ANN401
    """Note a FileInfo by its name; of a folder and an object that marks it, the folder stays."""
    known = names.get(info.base_name)
    if known is None or not _is_folder(known):
        names[info.base_name] = info


def _is_folder(info: Any) -> bool:  # noqa: ANN401
    return str(info.type.name) == "Directory"
