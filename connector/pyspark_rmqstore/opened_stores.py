"""Opens the stores that options name, each for itself, on the driver and in tasks."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from rmqstore.errors import NotAStoreError, StoreStateError
from rmqstore.query.selection import Selection, require_named
from rmqstore.read.store_parts import StoreParts, open_ref
from rmqstore.read.store_ref import StoreRef
from rmqstore.read.views.stores import stores_that_are_read
from rmqstore.storage.recovery.store_ends import PlannedEnds

T = TypeVar("T")

_STORES_AT_ONCE = 8  # while they are planned

_REMEDY = "mount the store under the same path on every host, or run Spark where it lies"


def each_store(stores: Sequence[StoreRef], plan: Callable[[StoreRef], T]) -> Iterator[T]:
    """Yield what a function returns for each store, in their order; some run side by side.

    Planning reads little of each store, so from a slow disk it mostly waits.
    """
    if len(stores) == 1:
        yield plan(stores[0])
        return
    with ThreadPoolExecutor(_STORES_AT_ONCE) as pool:
        yield from pool.map(plan, stores)


def plan_stores(
    stores: Sequence[StoreRef],
    plan: Callable[[StoreRef, StoreParts], Iterable[T]],
    selection: Selection | None,
) -> list[T]:
    """Return what a function plans of each open store, one store after the other.

    Args:
        stores: the stores.
        plan: plans one of them.
        selection: some store must have the topics and queues that it names; None for any.

    Raises:
        OptionError: no store has one of them.
    """

    def plan_one(ref: StoreRef) -> tuple[Iterable[T], dict[str, set[int]]]:
        with open_ref(ref) as store:
            planned = plan(ref, store)
            return planned, {} if selection is None else store.ranges.named_queues(selection)

    plans = [*each_store(stores, plan_one)]
    if selection is not None:
        known = [known for _, known in plans]
        require_named(selection, known, ", ".join(ref.path for ref in stores))
    return [item for planned, _ in plans for item in planned]


def stores_to_read(stores: Sequence[StoreRef]) -> tuple[StoreRef, ...]:
    """Return the stores without replicas of others: the master, or else the longest log.

    Raises:
        OptionError: two stores have the same broker name and are not replicas of each other.
    """
    if len(stores) == 1:
        return tuple(stores)
    names = [*each_store(stores, _broker_name)]
    counts = Counter(names)
    shared = {ref.path: ref for ref, name in zip(stores, names, strict=True) if counts[name] > 1}
    with ExitStack() as stack:
        opened = {path: stack.enter_context(open_ref(ref)) for path, ref in shared.items()}
        are_read = stores_that_are_read([*opened.values()])
        unread = {path for path, store in opened.items() if store not in are_read}
    return tuple(ref for ref in stores if ref.path not in unread)


def _broker_name(ref: StoreRef) -> str:
    if ref.broker_name is not None:
        return ref.broker_name
    with open_ref(ref) as store:
        return store.view_broker_name


def this_host() -> str:
    """Return the name of this host."""
    return socket.gethostname()


@contextmanager
def naming_this_host() -> Iterator[None]:
    """Add the host of a task to the error of a store that it does not see."""
    try:
        yield
    except NotAStoreError as err:
        raise NotAStoreError(
            f"{err}. This is what a task sees on host {this_host()}, where an executor runs; the "
            f"driver found the store. To repair it, {_REMEDY}, or read a URI"
        ) from err


def require_folder(folder: Path) -> None:
    """Refuse to stage rows in a folder that the driver has made on another host only.

    Raises:
        StoreStateError: this host does not see the folder.
    """
    if not folder.is_dir():
        raise StoreStateError(
            f"{folder}: the driver has made this folder, and a task on host {this_host()} does not "
            f"see it. Nothing was written; {_REMEDY}"
        )


def require_staged(path: str, host: str) -> None:
    """Refuse to append what a task staged on another host only.

    Raises:
        StoreStateError: this host does not see the file.
    """
    if not Path(path).is_file():
        raise StoreStateError(
            f"{path}: a task on host {host} has staged rows in this file, and the driver on host "
            f"{this_host()} does not see it. Nothing was written; {_REMEDY}"
        )


def open_in_task(ref: StoreRef, planned: PlannedEnds | None = None) -> StoreParts:
    """Open a store in a task, whose error names the host; see ``open_ref``."""
    with naming_this_host():
        return open_ref(ref, planned)
