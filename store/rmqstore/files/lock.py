"""The store's ``lock`` file, held as the broker holds it: a POSIX record lock on its first byte."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from rmqstore.errors import StoreLockedError, StoreStateError

_CONTENT = b"lock"

# POSIX gives a lock to a *process*: a second writer in this one would get it too, and closing any descriptor of the
# file would drop it. So the process keeps its own list, by the file itself and not by its name.
_held: set[tuple[int, int]] = set()
_guard = threading.Lock()


class StoreLock:
    """Held from its making until :meth:`release`.

    Raises:
        StoreLockedError: a broker or another writer, of this process too, has the store.
        StoreStateError: the folder cannot be written to.

    Source: DefaultMessageStore.java#start, which locks the same byte by FileChannel.tryLock(0, 1).
    """

    def __init__(self, path: Path) -> None:
        with _guard:
            if path.exists() and self._identity(path.stat()) in _held:
                raise StoreLockedError(f"{path}: a writer of this process has the store already; close it first")
            try:
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as err:
                raise StoreStateError(f"{path.parent} cannot be written to: {err}") from err
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError as err:
                os.close(self._descriptor)
                raise StoreLockedError(
                    f"{path}: a running broker or another writer has the store; stop it, or write to another store"
                ) from err
            os.pwrite(self._descriptor, _CONTENT, 0)
            self._key = self._identity(os.fstat(self._descriptor))
            _held.add(self._key)

    @staticmethod
    def _identity(status: os.stat_result) -> tuple[int, int]:
        return status.st_dev, status.st_ino

    def release(self) -> None:
        """Let go of the store."""
        with _guard:
            if self._key in _held:
                _held.discard(self._key)
                os.close(self._descriptor)
