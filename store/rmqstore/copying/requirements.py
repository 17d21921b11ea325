"""What a copy requires of its source and of its target, checked before anything is changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from rmqstore.copying.journal import JOURNAL
from rmqstore.errors import (
    READS_AFTER_END,
    Argument,
    CorruptRecordError,
    StoreLockedError,
    StoreStateError,
    Text,
)
from rmqstore.query.arguments import FolderArguments
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.lock import StoreLock
from rmqstore.storage.folders.part_of_store import root_for
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.storage.remote.location import is_uri, local_path
from rmqstore.store.message_store import MessageStore

LOCK: Final = JOURNAL.with_name("copying.lock")


def name_of(source: str | os.PathLike[str], filesystem: object) -> str | Path:
    """Return a source as it is opened: a full path if it is on the local disk."""
    if filesystem is not None or is_uri(source):
        return os.fspath(source)
    return root_for(LOCAL.full_path(Path(local_path(source))), LOCAL)


def resolved(folders: FolderArguments) -> FolderArguments:
    """Return folders on the local disk by their full paths, by which a plan knows them."""
    resolved: dict[str, Any] = dict(folders)
    for name in ("commitlogs", "dledger_logs"):
        if resolved.get(name):
            resolved[name] = [str(LOCAL.full_path(Path(one))) for one in resolved[name]]
    for name in ("consumequeue", "index", "conf"):
        if resolved.get(name):
            resolved[name] = str(LOCAL.full_path(Path(resolved[name])))
    return cast("FolderArguments", resolved)


def require_apart(store: MessageStore, goal: Path, partial: Path) -> None:
    """Refuse a target in which parts of the source lie, or the other way round, or in a store."""
    is_local = store.paths.storage is LOCAL
    for folder in store.paths.given_folders() if is_local else ():
        full = LOCAL.full_path(folder)
        for path in (goal, partial, LOCAL.full_path(partial)):
            if path.is_relative_to(full) or full.is_relative_to(path):
                raise StoreStateError(
                    f"{path}, where the copy would grow, lies in the store that is copied, or the "
                    f"store in it ({full}): choose another target"
                )
    for folder in goal.parents:
        if LOCAL.exists(folder / "commitlog"):
            raise StoreStateError(
                f"{goal}, where the copy would grow, lies in a store ({folder}): choose another "
                "target"
            )


def require_ours(partial: Path) -> None:
    """Refuse a folder in the place of the unfinished copy that is none of ours."""
    status = LOCAL.status(partial)
    if status is None:
        return
    is_link = LOCAL.full_path(partial) != partial
    is_ours = not is_link and status.is_folder and LOCAL.exists(partial / JOURNAL)
    # a call that was killed before it had a journal
    is_begun = not is_link and status.is_folder and not _names(partial) - {JOURNAL.parent.name}
    if not is_ours and not is_begun:
        raise StoreStateError(
            f"{partial}, where the copy would grow, exists already and is not an unfinished copy: "
            "move it away, or choose another target"
        )


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in LOCAL.list_folder(folder)}


def take_lock(partial: Path) -> StoreLock:
    """Take the unfinished copy for this call alone."""
    try:
        return StoreLock(partial / LOCK)
    except StoreLockedError as err:
        raise StoreLockedError(f"{partial}: another call makes this copy at the moment") from err


def refuse_records_after(end: LogEnd, n_records: int) -> NoReturn:
    """Refuse to copy a log without the good records that follow damage.

    Raises:
        CorruptRecordError: always.
    """
    raise CorruptRecordError(
        end.path,
        end.physical_offset,
        Text(
            f"{end.reason}; {n_records} good records follow, which a sound copy would not have: "
            "export them (",
            READS_AFTER_END,
            "), then copy with ",
            Argument("truncate", value=True),
            " (rmqstore copy --truncate), which leaves them out",
        ),
    )
