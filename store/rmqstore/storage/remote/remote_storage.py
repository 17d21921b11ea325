"""A storage that reads through ``pyarrow.fs``: object storage, HDFS, or any other file system."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rmqstore.errors import OptionError, RmqStoreError, UnreadableFileError
from rmqstore.storage.files.storage import A_FILE, A_FOLDER, AnyPath, Entry, Status, UriPath
from rmqstore.storage.remote.remote_file import RemoteFile
from rmqstore.storage.remote.remote_folder import RemoteFolder
from rmqstore.storage.remote.remote_object import BlockCache, RemoteObject
from rmqstore.storage.remote.requests import Counts, Requests

_MAX_BYTES: Final = (1 << 31) - 1  # RocketMQ counts the bytes of a file in a Java int
_OBJECTS_AT_ONCE: Final = 320
_FILES_TOGETHER: Final = 16  # opened at the same time
_FOLDERS_APART: Final = 16  # listed one by one, before everything is listed together
_KEEP_TIMES = ("local", "hdfs")  # file systems that a copy can keep the times of files in


class RemoteStorage:
    """Files of a remote file system, read-only.

    Folders are listed once until :meth:`refresh`, and the listings also answer for the sizes of
    files. Where many folders are asked for, all below the root is listed together.

    Args:
        filesystem: a ``pyarrow.fs.FileSystem``.
        root: name of the store's folder, a URI.
        key: the path of that folder in the file system.
        secrets: texts that no error may show.
    """

    window_bytes: Final = 8 << 20

    def __init__(
        self,
        filesystem: Any,  # noqa: ANN401
        root: str,
        key: str,
        secrets: Iterable[str] = (),
    ) -> None:
        self._requests = Requests(filesystem, secrets)
        self._root, self._root_key = root.rstrip("/"), key.rstrip("/")
        self._keeps_times = _base(filesystem).type_name in _KEEP_TIMES
        self._cache = BlockCache()
        self._objects: OrderedDict[str, RemoteObject] = OrderedDict()
        self._folders: dict[str, dict[str, Any]] = {}  # FileInfo by name, by the key of the folder
        self._ends: dict[int, int] = {}
        self._has_listed_all = False
        self._hidden = ""  # a key
        self._listing = 0  # how often the listings were renewed
        self._is_stale = False  # an object was found deleted or replaced

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

    @property
    def key(self) -> str:
        """The path of the root in the file system."""
        return self._root_key

    def folder(self) -> RemoteFolder:
        """Return the root as a folder that can be written to."""
        return RemoteFolder(self._requests, self._root, self._root_key)

    def hide(self, name: str) -> None:
        """Leave a file of the root out of all listings."""
        self._hidden = f"{self._root_key}/{name}"

    def overlaps(self, other: object) -> bool:
        """Tell whether another storage has this one's root below its own, or the other way."""
        if not isinstance(other, RemoteStorage) or not self.filesystem.equals(other.filesystem):
            return False
        mine, others = f"{self.key}/", f"{other.key}/"
        return mine.startswith(others) or others.startswith(mine)

    def requests_made(self) -> str | None:
        """Return how many requests were made so far, in words."""
        return str(self.counts)

    def refresh(self) -> None:
        """Forget which files there are, so that they are listed again."""
        self._is_stale = False
        self._listing += 1
        self._folders.clear()
        self._has_listed_all = False

    def list_folder(self, folder: AnyPath) -> list[Entry]:
        """Return the names in a folder; see :class:`Storage`."""
        infos = self._listed(self._key(folder), str(folder))
        if not infos and self._info(folder) is not None and not self._is_folder(folder):
            raise UnreadableFileError(str(folder), A_FILE, A_FOLDER)
        return [Entry(name, _is_folder(info)) for name, info in infos.items()]

    def _listed(self, key: str, name: str) -> dict[str, Any]:
        """Return what is in a folder: FileInfo by name."""
        if self._is_stale:
            self.refresh()
        found = self._folders.get(key)
        if found is not None:
            return found
        is_below = key.startswith(self._root_key + "/")
        if self._has_listed_all and is_below:
            return {}
        if len(self._folders) >= _FOLDERS_APART and is_below:
            self._list_below(self._root_key, self._root)
            self._has_listed_all = True
            return self._folders.get(key, {})
        if is_below and self._is_known_to_be_missing(key):
            return {}
        parent, _, own_name = key.rpartition("/")
        if is_below and parent.removeprefix(self._root_key).count("/") > 1:
            # Whoever looks at one queue of a topic looks at the others next.
            self._list_below(parent, name.removesuffix(f"/{own_name}"))
            return self._folders.setdefault(key, {})
        infos = self._requests.list(key, name, recursive=False)
        found = self._folders[key] = {
            info.base_name: info for info in infos if info.path != self._hidden
        }
        return found

    def _is_known_to_be_missing(self, key: str) -> bool:
        """Tell whether a folder above is listed and does not have what leads to a folder."""
        while key != self._root_key:
            key, _, name = key.rpartition("/")
            if key in self._folders:
                return name not in self._folders[key]
        return False

    def _list_below(self, key: str, name: str) -> None:
        for info in self._requests.list(key, name, recursive=True):
            parent = info.path.rstrip("/").rpartition("/")[0]
            if info.path != self._hidden:
                self._folders.setdefault(parent, {})[info.base_name] = info
            if _is_folder(info):
                self._folders.setdefault(info.path.rstrip("/"), {})

    def _info(self, path: AnyPath) -> Any:  # noqa: ANN401
        """Return the FileInfo of a path, None if it does not exist."""
        key = self._key(path)
        parent, _, name = key.rpartition("/")
        if key == self._root_key or not parent:
            info = self._requests.info(key, str(path))
            return info if _exists(info) else None
        return self._listed(parent, str(path).rpartition("/")[0]).get(name)

    def _is_folder(self, path: AnyPath) -> bool:
        info = self._info(path)
        return info is not None and _is_folder(info)

    def status(self, path: AnyPath) -> Status | None:
        """Return kind, size and times of a path; see :class:`Storage`."""
        info = self._info(path)
        if info is None:
            return None
        size = info.size or 0
        time = info.mtime_ns if self._keeps_times else 0
        return Status(A_FOLDER if _is_folder(info) else A_FILE, size, size, time or 0)

    def exists(self, path: AnyPath) -> bool:
        """Tell whether the path exists; see :class:`Storage`."""
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
        """Open a file, or go on with one that is open already; see :class:`Storage`."""
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
        self._add(name, found)
        self._objects.move_to_end(name)
        return RemoteFile(path, found, self, self._ends)

    def prepare(
        self, files: set[str], *, first: Container[str] = (), last: Container[str] = ()
    ) -> None:
        """Open files together, and fetch the first and the last written bytes of some.

        What fails is tried again, and said, when the file is read.
        """
        sizes: dict[str, int] = {}
        for name in files:
            with suppress(FileNotFoundError, UnreadableFileError):
                if name not in self._objects:
                    sizes[name] = self.size(name)

        def look(name: str) -> RemoteObject | None:
            with suppress(FileNotFoundError, RmqStoreError):
                found = self._new_object(name)
                file = RemoteFile(name, found, self, self._ends)
                file.look(at_start=name in first, at_end=name in last)
                return found
            return None

        names = sorted(sizes)
        for size in {sizes[name] for name in names if name in last} - set(self._ends):
            # The end in one file tells where to look in others of its length.
            name = next(name for name in names if name in last and sizes[name] == size)
            names.remove(name)
            self._add(name, look(name))
        with ThreadPoolExecutor(_FILES_TOGETHER, "rmqstore-look") as pool:
            for name, found in zip(names, pool.map(look, names), strict=True):
                self._add(name, found)

    def _new_object(self, name: str) -> RemoteObject:
        found = RemoteObject(self._requests, self._cache, self._key(name), name)
        found.checked_in, found.on_gone = self._listing, self._note_gone
        return found

    def _note_gone(self) -> None:
        """Let the folders be listed again before they are looked at, as any thread may ask."""
        self._is_stale = True

    def _add(self, name: str, found: RemoteObject | None) -> None:
        if found is not None:
            self._objects[name] = found
            if len(self._objects) > _OBJECTS_AT_ONCE:
                self._objects.popitem(last=False)

    def is_outdated(self, name: str) -> bool:
        """Tell whether an object that was opened is another one since the listings were renewed."""
        found = self._objects.get(name)
        if found is None or found.is_gone or self._info(name) is None:
            return False  # what is gone says so when it is read
        if found.checked_in != self._listing and not found.is_same():
            return True
        found.checked_in = self._listing
        return False

    def full_path(self, path: Path) -> Path:
        """Return the path: every name is absolute."""
        return path

    def is_locked(self, _path: Path) -> bool:
        """Tell that no broker holds this lock file: a copy has no running broker."""
        return False

    def _key(self, path: AnyPath) -> str:
        """Return the path of a name in the file system."""
        name = str(path).rstrip("/")
        if name == self._root or name.startswith(self._root + "/"):
            return self._root_key + name[len(self._root) :]
        own, other = _split(self._root), _split(str(UriPath(name)))
        if own[0] != other[0]:
            raise OptionError(f"{name} does not lie in the storage of {self._root}")
        base = self._root_key.removesuffix(own[1]).rstrip("/")
        return f"{base}{other[1]}"


def _split(name: str) -> tuple[str, str]:
    """Return scheme and host of a URI, and the path after them."""
    scheme, _, rest = name.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash + path


def _base(filesystem: Any) -> Any:  # noqa: ANN401
    """Return the file system that a part of it belongs to."""
    while hasattr(filesystem, "base_fs"):
        filesystem = filesystem.base_fs
    return filesystem


def _exists(info: Any) -> bool:  # noqa: ANN401
    return str(info.type.name) != "NotFound"


def _is_folder(info: Any) -> bool:  # noqa: ANN401
    return str(info.type.name) == "Directory"
