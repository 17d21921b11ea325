"""RocksDB databases that a broker keeps in a store, read without a change in their folders.

The library puts a file beside the tables that it opens, so it opens a folder of our own; see
``snapshot``. A database of unknown origin is first opened by a child process, which it may end.

Source: AbstractRocksDBStorage.java.

A broker that flushes its queues appends to the MANIFEST, and deletes tables that it has merged into
others. So a snapshot has a copy of the MANIFEST, and holds every table open: its link leads to the
open file, which stays readable after the broker has deleted its name.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from rmqstore import platforms
from rmqstore.errors import CorruptDatabaseError, UnsupportedFeatureError, install
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import DATABASE_FILE
from rmqstore.storage.files.recent import Recent
from rmqstore.storage.files.storage import Storage

if TYPE_CHECKING:
    from rocksdict import Rdict

_THAT_NAME_TABLES = ("CURRENT", "MANIFEST")
# The library reads these into memory. They hold the name of a manifest, and a number.
_SHORT_FILES = ("CURRENT", "IDENTITY")
_MAX_SHORT_BYTES = 4096
_MAX_FILES = 400  # all of them are open as long as the database is
_MAX_COPIED_BYTES = 1 << 30
_MAX_COPIED_MANIFEST = 64 << 20  # a longer one is linked
_COPIED_AT_ONCE = 1 << 20

Fingerprint = tuple[tuple[str, int, int], ...]

INSTALL_ROCKSDB = f"to read it, {install('rocksdb')}"
NEED_ROCKSDB = f"which need the extra rocksdb: {install('rocksdb')}"
if not platforms.CAN_READ_ROCKSDB:
    INSTALL_ROCKSDB = f"on {platforms.NAME} it is not read (docs/install.md)"
    NEED_ROCKSDB = f"which are not read on {platforms.NAME} (docs/install.md)"

_TRIAL_SECONDS = 60
_ATTEMPTS = 20  # to open a database that changes, which a busy computer may take many of
_PAUSE_SECONDS = 0.05
_DATABASES_AT_ONCE = 16


def fingerprint(folder: Path, storage: Storage) -> Fingerprint:
    """Return the names, sizes and times of the files of a database.

    Raises:
        UnreadableFileError: an entry is not a regular file.
    """
    files = []
    for entry in storage.list_folder(folder):
        # The library writes to its lock, and perhaps to files of other names, through their links.
        if entry.is_folder or entry.name == "LOCK" or not DATABASE_FILE.fullmatch(entry.name):
            continue
        with suppress(FileNotFoundError):  # a broker deletes tables
            status = storage.status(folder / entry.name)
            if status is not None:
                files.append((entry.name, storage.size(folder / entry.name), status.modified_ns))
    return tuple(sorted(files))


class Snapshot:
    """The files of a database in a folder of our own, until the context of :func:`snapshot` ends.

    Attributes:
        folder: the folder.
        fingerprint: that of the database from before its files were opened.
        open_files: descriptors that the links of the folder lead to; a child process that opens the
            database needs them too.
    """

    def __init__(self, database: Path, storage: Storage, folder: Path, stack: ExitStack) -> None:
        self._database = database
        self._storage = storage
        self._stack = stack
        self.folder = folder
        self.open_files: list[int] = []
        self.fingerprint: Fingerprint = ()
        if storage is LOCAL:
            self._link()
            return
        self.fingerprint = self._list()
        if sum(size for _, size, _ in self.fingerprint) > _MAX_COPIED_BYTES:
            raise UnsupportedFeatureError(
                f"{self._database} is a database of more than {_MAX_COPIED_BYTES >> 30} GiB "
                "in a remote storage: copy the store to a local disk, or use "
                "`scan=commitlog`"
            )
        for name, size, _ in self.fingerprint:
            content = storage.read_bytes(database / name, size)
            (folder / name).write_bytes(content)

    def _list(self) -> Fingerprint:
        listed = fingerprint(self._database, self._storage)
        if len(listed) > _MAX_FILES:
            raise UnsupportedFeatureError(
                f"{self._database} has {len(listed)} files; at most {_MAX_FILES} can be "
                "open at once"
            )
        for name, size, _ in listed:
            if name in _SHORT_FILES and size > _MAX_SHORT_BYTES:
                reason = f"{name} has {size} bytes instead of one line"
                raise CorruptDatabaseError(str(self._database), reason)
        return listed

    def _link(self) -> None:
        """Open the files, again if the broker has changed the MANIFEST meanwhile.

        If it has not, none of the tables that the copy names was deleted before it was opened. If
        it has each time, the last attempt may still have all of them, and the library names one
        that is missing. It does not miss a write-ahead log, so that one is looked for here.
        """
        deleted: list[str] = []
        for _ in range(_ATTEMPTS):
            self._stack.close()
            self.open_files = []
            for link in self.folder.iterdir():
                link.unlink()
            self.fingerprint = self._list()
            deleted = [
                name for name, size, _ in self.fingerprint if not self._link_file(name, size)
            ]
            now = fingerprint(self._database, self._storage)
            if _naming_tables(now) == _naming_tables(self.fingerprint):
                return
        if any(name.endswith(".log") for name in deleted):
            reason = "its write-ahead log was deleted while it was opened"
            raise CorruptDatabaseError(str(self._database), reason)

    def _link_file(self, name: str, size: int) -> bool:
        """Link a file, or copy its head; return whether it was there."""
        path = self._storage.full_path(self._database / name)
        link = self.folder / name
        try:
            descriptor = os.open(path, platforms.TO_READ)
        except FileNotFoundError:
            return False
        except OSError:  # too many open files
            link.symlink_to(path)
            return True
        self._stack.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        if name.startswith(_THAT_NAME_TABLES) and size <= _MAX_COPIED_MANIFEST:
            with link.open("wb") as copy:
                for start in range(0, size, _COPIED_AT_ONCE):
                    copy.write(os.pread(descriptor, min(_COPIED_AT_ONCE, size - start), start))
        elif platforms.OPEN_FILES is not None and platforms.OPEN_FILES.is_dir():
            link.symlink_to(platforms.OPEN_FILES / str(descriptor))
            self.open_files.append(descriptor)
        else:
            link.symlink_to(path)
        return True


def _naming_tables(files: Fingerprint) -> Fingerprint:
    return tuple(file for file in files if file[0].startswith(_THAT_NAME_TABLES))


@contextmanager
def snapshot(folder: Path, storage: Storage) -> Iterator[Snapshot]:
    """Give the files of a database as of one moment.

    Args:
        folder: the folder that holds ``CURRENT``.
        storage: the storage that holds the folder; files of another one than the local disk are
            copied.

    Raises:
        CorruptDatabaseError: a file of one line is huge, or a broker deleted a write-ahead log in
            each attempt to open all files.
        UnreadableFileError: an entry is not a regular file.
        UnsupportedFeatureError: the database is too large, or there is no temporary folder.
    """
    try:
        temporary = tempfile.TemporaryDirectory(prefix="rmqstore-")
    except OSError as err:
        raise UnsupportedFeatureError(
            f"a RocksDB database is opened through a temporary folder: {err}; set TMPDIR"
        ) from err
    with temporary as name, ExitStack() as stack:
        yield Snapshot(folder, storage, Path(name), stack)


def can_read_rocksdb() -> bool:
    """Return whether the library is installed, extra ``rocksdb``, on a system where it is used."""
    return platforms.CAN_READ_ROCKSDB and find_spec("rocksdict") is not None


class RocksDb:
    """One database as of the moment it was opened. It is closed when nothing refers to it.

    Args:
        folder: the folder that holds ``CURRENT``.
        storage: the storage that holds the folder; files of another one than the local disk are
            copied.
        small: families that have few keys, which the trial reads.

    Raises:
        CorruptDatabaseError: the library cannot open the database.
        UnsupportedFeatureError: the library is not installed, or the database is too large.
    """

    def __init__(self, folder: Path, storage: Storage = LOCAL, small: Sequence[str] = ()) -> None:
        require_rocksdb(folder)
        self.folder = folder
        self._storage = storage
        self.fingerprint: Fingerprint = ()
        self._links = str(folder)
        self._database = self._open_unchanged(small)
        self._families: dict[str, Any] = {}

    def _open_unchanged(self, small: Sequence[str]) -> Rdict:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self.fingerprint = fingerprint(self.folder, self._storage)
                with snapshot(self.folder, self._storage) as opened:
                    self.fingerprint = opened.fingerprint
                    self._links = str(opened.folder)
                    self._try_out(opened, small)
                    return self._open()
            except (CorruptDatabaseError, FileNotFoundError) as err:
                if self.is_current(self._storage):
                    raise
                if attempt == _ATTEMPTS:
                    reason = err.reason if isinstance(err, CorruptDatabaseError) else err
                    raise self._corrupt(
                        f"{reason}; a broker changed it during each of {_ATTEMPTS} attempts"
                    ) from err
            time.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last attempt returns or raises")

    def _try_out(self, opened: Snapshot, small: Sequence[str]) -> None:
        if not sys.executable:
            raise UnsupportedFeatureError("to open a RocksDB database takes a path of Python")
        program = files(__package__).joinpath("rocksdb_trial.py").read_text(encoding="utf-8")
        command = [sys.executable, "-c", program, self._links, *small]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                command,
                env=environment,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                pass_fds=opened.open_files,
                timeout=_TRIAL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as err:
            raise self._corrupt(f"opening it took more than {_TRIAL_SECONDS} s") from err
        if done.stdout.strip() != b"opened":
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            ended = f"the process that opened it ended with code {done.returncode}"
            why = lines[-1] if lines else ended
            raise self._corrupt(why)

    def _open(self) -> Rdict:
        from rocksdict import AccessType, Options, Rdict

        def options() -> Options:
            chosen = Options(raw_mode=True)
            chosen.set_max_open_files(-1)  # all are opened now: their links are removed
            return chosen

        try:
            families = {name: options() for name in Rdict.list_cf(self._links)}
            return Rdict(self._links, options(), families, AccessType.read_only(False))  # noqa: FBT003
        except Exception as err:  # the library raises nothing more precise, here and below
            raise self._corrupt(err) from err

    def is_current(self, storage: Storage) -> bool:
        """Return whether the files of the database are still those that were opened.

        Args:
            storage: lists the files. It is that of the caller, because another one, which has
                opened the database, may have listed them long ago.
        """
        return fingerprint(self.folder, storage) == self.fingerprint

    @property
    def n_entries(self) -> int:
        """The number of entries in the tables: no family has more keys than that."""
        in_tables = sum(int(file["num_entries"]) for file in self._database.live_files())
        in_log = self._database.property_int_value("rocksdb.num-entries-active-mem-table") or 0
        return in_tables + in_log

    def has_family(self, name: str) -> bool:
        """Return whether the database has a family of that name."""
        return self._family(name) is not None

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, None without it.

        Raises:
            CorruptDatabaseError: its block is damaged.
        """
        return self._guarded(lambda opened: opened.get(key), family)  # type: ignore[no-any-return]

    def get_each(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys, None where there is none."""
        if not keys:
            return []
        return self._guarded(lambda opened: opened.get(keys), family)  # type: ignore[no-any-return]

    def first_key(self, family: str, start: bytes, stop: bytes) -> bytes | None:
        """Return the first key in ``[start, stop)``, None without one."""
        return next(iter(self.keys(family, start, stop)), None)

    def keys(self, family: str, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys in ``[start, stop)``, rising."""
        yield from self._range("keys", family, start, stop)

    def values(self, family: str, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the values of the keys in ``[start, stop)``, in the order of the keys."""
        yield from self._range("values", family, start, stop)

    def items(self, family: str, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys in ``[start, stop)`` and their values, rising."""
        yield from self._range("items", family, start, stop)

    def require_items(self, family: str, start: bytes, stop: bytes) -> None:
        """Read the keys in ``[start, stop)``, whose blocks have their values too.

        Raises:
            CorruptDatabaseError: one of the blocks is damaged.
        """
        deque(self.keys(family, start, stop), maxlen=0)

    def _range(self, what: str, family: str, start: bytes, stop: bytes) -> Iterator[Any]:
        from rocksdict import ReadOptions

        bounded = ReadOptions()
        bounded.set_iterate_upper_bound(stop)
        opened = self._guarded(
            lambda opened: getattr(opened, what)(from_key=start, read_opt=bounded), family
        )
        try:
            yield from opened or ()
        except Exception as err:
            raise self._corrupt(err) from err

    def _corrupt(self, reason: object) -> CorruptDatabaseError:
        return CorruptDatabaseError(
            str(self.folder), str(reason).strip().replace(self._links, str(self.folder))
        )

    def _family(self, name: str) -> Any:  # noqa: ANN401 - the library has no types
        if name not in self._families:
            try:
                self._families[name] = self._database.get_column_family(name)
            except Exception:  # noqa: BLE001 - the library raises nothing more precise
                self._families[name] = None
        return self._families[name]

    def _guarded(self, read: Any, family: str) -> Any:  # noqa: ANN401
        opened = self._family(family)
        if opened is None:
            return None
        try:
            return read(opened)
        except Exception as err:
            raise self._corrupt(err) from err


# Two storages may have different databases by one name, such as a URI at two endpoints.
_opened: Recent[tuple[Path, Storage], RocksDb] = Recent(_DATABASES_AT_ONCE)
_opening = Lock()
platforms.keep_over_forks(_opening)


def open_rocksdb(folder: Path, storage: Storage = LOCAL, small: Sequence[str] = ()) -> RocksDb:
    """Return a database as it is now; it is opened again only if its files have changed.

    Raises as :class:`RocksDb` does.
    """
    key = folder, storage
    with _opening:
        database = _opened.get(key)
        if database is None or not database.is_current(storage):
            database = _opened.put(key, RocksDb(folder, storage, small))
    return database


def require_rocksdb(folder: Path) -> None:
    """Refuse a database if the library is not installed, or not used on this system.

    Raises:
        UnsupportedFeatureError: it is not.
    """
    if not can_read_rocksdb():
        raise UnsupportedFeatureError(f"{folder} is a RocksDB database; {INSTALL_ROCKSDB}")
