"""The folders in which tasks leave records for the driver.

Each job has a folder of its own under ``.rmqstore/staging``; ``write.staged`` has the files in it.
The commit only uses the files that the messages of the tasks name; other files in the folder are of
failed attempts.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from time import time

from rmqstore.storage.files.disk import Disk, named_os_errors
from rmqstore.storage.files.local import LOCAL

logger = logging.getLogger(__name__)

_FOLDER = Path(".rmqstore", "staging")
_ABANDONED_SECONDS = 24 * 60 * 60
_MAX_RETRIES = 100


def job_folder(root: str, job_id: str) -> Path:
    """Return the folder of a job."""
    return Path(root) / _FOLDER / job_id


def job_ids(root: str) -> list[str]:
    """Return the ids of the jobs that have a folder."""
    return [entry.name for entry in LOCAL.list_folder(Path(root) / _FOLDER)]


def begin(root: str, job_id: str) -> None:
    """Make the folder of a job, and remove the folders of jobs whose driver died.

    Only the driver makes the folder, so a task that still runs when its job is aborted cannot write
    any more.
    """
    join(root, job_id)


def join(root: str, job_id: str) -> None:
    """Make the folder of a job unless another task has made it.

    Tasks of a stream do this, because its driver does not know the id of the query.
    """
    disk = disk_of(root)
    with named_os_errors(Path(root), "the job wrote nothing and can be repeated"):
        _make_folder(disk, job_folder(root, job_id))
        _sweep_abandoned(disk, root, job_id)


def _make_folder(disk: Disk, folder: Path) -> None:
    for n_left in reversed(range(_MAX_RETRIES)):
        try:
            disk.make_folder(folder)
        except (FileExistsError, FileNotFoundError):  # a job that has ended removes empty folders
            if not n_left:
                raise
        else:
            return


def disk_of(root: str) -> Disk:
    """Return what changes a store's files; it does not follow links inside the store."""
    disk = Disk()
    disk.keep_within(Path(root))
    return disk


def _sweep_abandoned(disk: Disk, root: str, job_id: str) -> None:
    folder = job_folder(root, job_id)
    for other in folder.parent.iterdir():
        if other != folder and time() - _last_change(other) > _ABANDONED_SECONDS:
            logger.warning("%s was left by a job that never ended; it is removed", other)
            disk.delete_tree(other)


def _last_change(folder: Path) -> float:
    """Return when something in a folder was last changed.

    If the folder is being removed, this is the present time.
    """
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except FileNotFoundError:
        return time()


def sweep(root: str, job_id: str) -> None:
    """Remove the folder of a job, and the folders above it that are empty then.

    If this fails, nothing is lost: a later job removes the folder.
    """
    folder = job_folder(root, job_id)
    disk = disk_of(root)
    # a task that is being killed may still make a file while the others are removed
    for _ in range(_MAX_RETRIES):
        disk.delete_tree(folder)
        if not folder.exists():
            break
    else:
        logger.warning("%s could not be removed; a later job removes it", folder)
    for above in (folder.parent, folder.parent.parent):
        with suppress(OSError):  # the folder of another job is in it
            above.rmdir()
