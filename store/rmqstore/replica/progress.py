"""Progress and status of copies, in numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from rmqstore.errors import StoreStateError
from rmqstore.replica.background import Metadata
from rmqstore.replica.copy_store import CopyStore
from rmqstore.replica.state import FollowState, copy_paths, read_state, state_path
from rmqstore.storage.files.local import LOCAL


def follow_status(target: str | os.PathLike[str]) -> tuple[FollowState, bool]:
    """Return what a follower noted of its copy last, and whether one is running.

    Raises:
        StoreStateError: the folder is not a copy that a follower made.
    """
    paths = copy_paths(LOCAL.full_path(Path(target)))
    state = read_state(paths)
    if state is None:
        raise StoreStateError(f"{target} is not a copy that a follower made")
    return state, LOCAL.is_locked(paths.lock)


def copies_in(target: str | os.PathLike[str]) -> dict[str, Path]:
    """Return a copy, by an empty name, or the copies in a folder, by the names of their folders.

    What is noted of a copy may be damaged; :func:`follow_status` says so.

    Raises:
        StoreStateError: it is neither.
    """
    root = LOCAL.full_path(Path(target))
    if LOCAL.exists(state_path(copy_paths(root))):
        return {"": root}
    copies = {
        entry.name: root / entry.name
        for entry in sorted(LOCAL.list_folder(root), key=lambda entry: entry.name)
        if entry.is_folder and LOCAL.exists(state_path(copy_paths(root / entry.name)))
    }
    if not copies:
        raise StoreStateError(f"{target} is not a copy that a follower made, and holds none")
    return copies


def follow_cluster_status(
    target: str | os.PathLike[str],
) -> dict[str, tuple[FollowState, bool]]:
    """Return what followers noted of each copy in a folder, by the names of their folders.

    A folder that is a copy itself has an empty name.

    Raises:
        StoreStateError: the folder holds no copy that a follower made, or what is noted of one is
            damaged.
    """
    return {name: follow_status(path) for name, path in copies_in(target).items()}


class FollowProgress(NamedTuple):
    """How far a copy is.

    Attributes:
        begin: physical offset where the copy begins.
        end: physical offset after the last record that is on the disk.
        source_end: where the log of the broker ended when it was last asked.
        bytes_behind: what the copy is known to lack.
        seconds_behind: how old the newest record of the copy is; 0 if nothing is lacking.
        queues_end: physical offset up to which queues and index are built; it stays where it is
            while they are not.
        n_connections: connections so far.
        n_cuts: how many times an end of the copy was cut because the broker does not have it.
        source_at: when the broker reported that the last time, epoch ms; 0 if it has not.
        is_connected: whether bytes of its log are being received.
    """

    begin: int
    end: int
    source_end: int
    bytes_behind: int
    seconds_behind: float
    queues_end: int
    n_connections: int
    n_cuts: int
    source_at: int = 0
    is_connected: bool = False


def progress_of(store: CopyStore, metadata: Metadata, *, is_connected: bool) -> FollowProgress:
    """Return how far a copy is.

    Args:
        store: the copy.
        metadata: what the broker reported.
        is_connected: whether bytes of its log are being received.
    """
    state = store.state
    if state is None:
        return FollowProgress(0, 0, 0, 0, 0.0, 0, 0, 0)
    if not store.is_open:  # the broker has not answered yet
        high = max(state.source_end, state.end)
        return FollowProgress(
            state.begin, state.end, high, high - state.end, state.behind_seconds, state.built,
            0, state.n_cuts, state.source_at,
        )  # fmt: skip
    end, high = store.log.durable_end, max(metadata.bounds.high, store.log.end)
    return FollowProgress(
        state.begin,
        end,
        high,
        high - end,
        store.seconds_behind(),
        store.built,
        state.n_connections,
        state.n_cuts,
        metadata.answered_at,
        is_connected,
    )
