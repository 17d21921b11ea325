"""RocksDB databases that a broker keeps in a store, read without a change in their folders.

The library puts a file beside the tables that it opens, so it opens a folder of our own; see
``snapshot``. A database of unknown origin is first opened by a child process, which it may end.

Source: AbstractRocksDBStorage.java.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from rmqstore.errors import CorruptDatabaseError, UnsupportedFeatureError
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Storage
from rmqstore.storage.rocksdb.snapshot import Fingerprint, Snapshot, fingerprint, snapshot

if TYPE_CHECKING:
    from rocksdict import Rdict

INSTALL_ROCKSDB = "to read it, pip install rocksdict (extra rocksdb)"

_TRIAL_SECONDS = 60
_ATTEMPTS = 20  # to open a database that changes, which a busy computer may take many of
_PAUSE_SECONDS = 0.05
_DATABASES_AT_ONCE = 16


def can_read_rocksdb() -> bool:
    """Tell whether the library is installed: extra ``rocksdb``."""
    return find_spec("rocksdict") is not None


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
        program = files(__package__).joinpath("trial.py").read_text(encoding="utf-8")
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
        """Tell whether the files of the database are still those that were opened.

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
        """Tell whether the database has a family of that name."""
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
_opened: OrderedDict[tuple[Path, Storage], RocksDb] = OrderedDict()
_opening = Lock()


def open_rocksdb(folder: Path, storage: Storage = LOCAL, small: Sequence[str] = ()) -> RocksDb:
    """Return a database as it is now; it is opened again only if its files have changed.

    Raises as :class:`RocksDb` does.
    """
    key = folder, storage
    with _opening:
        database = _opened.pop(key, None)
        if database is None or not database.is_current(storage):
            database = RocksDb(folder, storage, small)
        _opened[key] = database
        if len(_opened) > _DATABASES_AT_ONCE:
            _opened.popitem(last=False)
    return database


def require_rocksdb(folder: Path) -> None:
    """Refuse a database if the library is not installed.

    Raises:
        UnsupportedFeatureError: it is not.
    """
    if not can_read_rocksdb():
        raise UnsupportedFeatureError(f"{folder} is a RocksDB database; {INSTALL_ROCKSDB}")
