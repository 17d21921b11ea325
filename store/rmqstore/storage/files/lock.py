"""The store's ``lock`` file, held as the broker holds it: a POSIX record lock on its first byte."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from rmqstore import platforms
from rmqstore.errors import StoreLockedError, StoreStateError, UnreadableFileError
from rmqstore.storage.files.disk import named_os_errors
from rmqstore.storage.files.regular import open_regular, open_to_change

# A POSIX lock belongs to a *process*: a second writer in the same process would get it too, and
# closing any descriptor of the file would release it. So the process keeps its own list of held
# files, by process, device and inode: a child holds none of those that it inherits.
_held: set[tuple[int, int, int]] = set()
_guard = threading.Lock()
platforms.keep_over_forks(_guard)


class StoreLock:
    """The lock of a store, held from construction until :meth:`release`.

    A file that is missing is made, and stays; only a broker writes into it.

    Raises:
        StoreLockedError: a broker or another writer holds the store, perhaps in this process.
        StoreStateError: the folder cannot be written to.
        UnsupportedFeatureError: this system does not write stores.
        UnreadableFileError: the lock is a link, or not a regular file.

    Source: DefaultMessageStore.java#start locks the same byte with ``FileChannel.tryLock(0, 1)``.
    """

    def __init__(self, path: Path) -> None:
        self._is_held = False
        platforms.require_writes()
        with _guard:
            if path.exists() and self.identity(path.stat()) in _held:
                raise StoreLockedError(
                    f"{path}: a writer of this process has the store already; close it first"
                )
            try:
                self._descriptor = open_to_change(path, os.O_CREAT)
            except OSError as err:
                raise StoreStateError(f"{path.parent} cannot be written to: {err}") from err
            try:
                platforms.lock_first_byte(self._descriptor)
            except OSError as err:
                os.close(self._descriptor)
                raise StoreLockedError(
                    f"{path}: a running broker or another writer has the store; "
                    "stop it, or write to another store"
                ) from err
            try:
                with named_os_errors(path, "the store could not be opened"):
                    self._key = self.identity(os.fstat(self._descriptor))
            except StoreStateError:
                self._close()
                raise
            _held.add(self._key)
            self._is_held = True

    @staticmethod
    def identity(status: os.stat_result) -> tuple[int, int, int]:
        """Return this process, and device and inode, which identify a file whatever its path."""
        return os.getpid(), status.st_dev, status.st_ino

    def release(self) -> None:
        """Release the lock; a lock that was released stays so, whoever has taken it since."""
        with _guard:
            if self._is_held:
                self._is_held = False
                _held.discard(self._key)
                self._close()

    def _close(self) -> None:
        """Close the file, which releases the lock even if it fails."""
        with suppress(OSError):
            os.close(self._descriptor)


def is_held(path: Path) -> bool:
    """Return whether a running broker or another writer holds this lock; does not take it."""
    with _guard:
        try:
            if StoreLock.identity(path.stat()) in _held:
                return True  # without opening the file: closing it again would release the lock
            descriptor, _ = open_regular(path)
        except (OSError, UnreadableFileError):
            return False
        try:
            return platforms.is_first_byte_locked(descriptor)
        except OSError:  # a file system without locks
            return False
        finally:
            os.close(descriptor)
