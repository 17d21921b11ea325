"""What followers noted of their copies last."""

from __future__ import annotations

import os
from pathlib import Path

from rmqstore.copying.following.state import FollowState, copy_paths, read_state, state_path
from rmqstore.errors import StoreStateError
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

    What is noted of a copy may be damaged; :func:`follow_status` tells.

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
