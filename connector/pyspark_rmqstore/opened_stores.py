"""Opens the stores that options name, each for itself, on the driver and in tasks."""

from __future__ import annotations

from pyspark_rmqstore.hosts import naming_this_host
from pyspark_rmqstore.store_options import StoreRef
from rmqstore.read.session import StoreSession
from rmqstore.read.tiered.opening import open_session, paths_for
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.remote.location import locate


def open_ref(ref: StoreRef) -> StoreSession:
    """Open a store as the options name it."""
    path, storage = locate(ref.path, dict(ref.storage_options))
    return open_session(
        path,
        broker_name=ref.broker_name,
        ignore_log_end=ref.ignore_log_end,
        storage=storage,
        tiered=ref.tiered,
        **ref.folders,
    )


def open_in_task(ref: StoreRef) -> StoreSession:
    """Open a store in a task, whose error names the host."""
    with naming_this_host():
        return open_ref(ref)


def paths_of(ref: StoreRef) -> StorePaths:
    """Return where the parts of a store lie; raises as :func:`open_ref` does."""
    path, storage = locate(ref.path, dict(ref.storage_options))
    return paths_for(path, storage, **ref.folders)
