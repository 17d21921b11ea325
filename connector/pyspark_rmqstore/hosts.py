"""Files that the driver and the tasks must both see, and the hosts that do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname

from rmqstore.errors import NotAStoreError, StoreStateError

_REMEDY = "mount the store under the same path on every host, or run Spark where it lies"


@contextmanager
def naming_this_host() -> Iterator[None]:
    """Add the host of a task to the error of a store that it does not see."""
    try:
        yield
    except NotAStoreError as err:
        raise NotAStoreError(
            f"{err}. This is what a task sees on host {gethostname()}, where an executor runs; the "
            f"driver found the store. To repair it, {_REMEDY}, or read a URI"
        ) from err


def require_folder(folder: Path) -> None:
    """Refuse to stage rows in a folder that the driver has made on another host only.

    Raises:
        StoreStateError: this host does not see the folder.
    """
    if not folder.is_dir():
        raise StoreStateError(
            f"{folder}: the driver has made this folder, and a task on host {gethostname()} does "
            f"not see it. Nothing was written; {_REMEDY}"
        )


def require_staged(path: str, host: str) -> None:
    """Refuse to append what a task staged on another host only.

    Raises:
        StoreStateError: this host does not see the file.
    """
    if not Path(path).is_file():
        raise StoreStateError(
            f"{path}: a task on host {host} has staged rows in this file, and the driver on host "
            f"{gethostname()} does not see it. Nothing was written; {_REMEDY}"
        )
