"""The checks before and after a copy, and the journal of its complete files."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from rmqstore.copying.plan import CopyRequest, PlannedFile
from rmqstore.errors import (
    READS_AFTER_END,
    CorruptRecordError,
    Finding,
    StoreLockedError,
    StoreStateError,
)
from rmqstore.inspect.verify import verify
from rmqstore.progress import Progress
from rmqstore.query.arguments import FolderArguments
from rmqstore.storage.broker.config_files import MAX_TABLE_BYTES, is_table
from rmqstore.storage.broker.folders import root_for
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.lock import StoreLock
from rmqstore.storage.files.remote_location import is_uri, local_path
from rmqstore.storage.files.storage import Storage, read_small
from rmqstore.storage.recovery.log_end import LogEnd
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

JOURNAL: Final = Path(".rmqstore", "copying")
LOCK: Final = JOURNAL.with_name("copying.lock")
NOTED_BYTES: Final = 256 << 20  # copied before they are noted as done
NOTED_FILES: Final = 512
_MAX_BYTES: Final = 1 << 30


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
            resolved[name] = [str(LOCAL.full_path(Path(path))) for path in resolved[name]]
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
    """Refuse a path of the unfinished copy that holds something else."""
    status = LOCAL.status(partial)
    if status is None:
        return
    is_link = LOCAL.full_path(partial) != partial
    if not is_link and status.is_folder:
        has_journal = LOCAL.exists(partial / JOURNAL)
        names = {entry.name for entry in LOCAL.list_folder(partial)}
        # Without a journal, a call was killed before it had one.
        if has_journal or not names - {JOURNAL.parent.name}:
            return
    raise StoreStateError(
        f"{partial}, where the copy would grow, exists already and is not an unfinished copy: "
        "move it away, or choose another target"
    )


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
        (
            f"{end.reason}; {n_records} good records follow, which a valid copy would not have: "
            f"export them ({READS_AFTER_END}), then copy with `truncate=True` (rmqstore copy "
            "--truncate), which leaves them out"
        ),
    )


class Journal:
    """The complete files of a copy, each with the state of its source when it was copied.

    Args:
        disk: performs all changes.
        folder: the folder of the unfinished copy.
        head: what distinguishes the copy from another; see :func:`head_of`.

    Raises:
        StoreStateError: the folder holds an unfinished copy of something else.
    """

    def __init__(self, disk: Disk, folder: Path, head: Mapping[str, object]) -> None:
        self._disk = disk
        self._path = folder / JOURNAL
        self._done: dict[str, list[object]] = {}
        if not LOCAL.exists(self._path):
            disk.make_folder(self._path.parent)
            disk.create(self._path, 0)
        # The last line is ignored if the earlier attempt that noted the files did not finish it.
        text = LOCAL.read_bytes(self._path, _MAX_BYTES)
        whole = text[: text.rfind(b"\n") + 1]
        self._end = len(whole)
        lines = whole.splitlines()
        if not lines:
            self._append([json.dumps(head)])
            disk.flush_folder(self._path.parent)
            return
        try:
            entries = [json.loads(line) for line in lines]
        except ValueError as err:
            raise StoreStateError(
                f"{self._path} is damaged ({err}): delete {folder}, and copy again"
            ) from err
        require_same(str(folder), entries[0], head)
        for name, *state in entries[1:]:
            self._done[name] = state

    def has(self, file: PlannedFile) -> bool:
        """Return whether a file was copied, and has not changed since."""
        return file.is_final and self._done.get(file.name) == entry_of(file)[1:]

    def add(self, files: Iterable[PlannedFile]) -> None:
        """Note, durably, that files are copied and on the disk."""
        self._append([json.dumps(entry_of(file)) for file in files if file.is_final])

    def _append(self, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines).encode()
        if text:
            self._disk.write(self._path, self._end, text)
            self._disk.flush(self._path)
            self._end += len(text)


def head_of(source: str, request: CopyRequest, folders: Mapping[str, object]) -> dict[str, object]:
    """Return what distinguishes a copy from another: the first entry of its journal."""
    topics = None if request.topics is None else sorted(request.topics)
    since = request.named or request.since
    head: dict[str, object] = {"source": source, "since": since, "topics": topics}
    named = {name: value for name, value in sorted(folders.items()) if value}
    return head | ({"folders": json.loads(json.dumps(named, default=str))} if named else {})


def require_same(folder: str, noted: object, head: Mapping[str, object]) -> None:
    """Refuse to continue another copy than was begun in a folder.

    Raises:
        StoreStateError: what was noted of it is something else.
    """
    if noted != head:
        raise StoreStateError(
            f"{folder} holds an unfinished copy of {noted}, not of {head}: "
            "finish that one with the same arguments, or delete the folder"
        )


def entry_of(file: PlannedFile) -> list[object]:
    """Return the journal's entry of a copied file: its name and the state of its source."""
    return [file.name, file.size, file.end, file.modified_ns]


_ATTEMPTS: Final = 5

_PAUSE_SECONDS: Final = 0.05  # in which a broker writes such a file


class CopySteps:
    """The progress of a copy: its bytes count once for copying and, if it is checked, once more."""

    def __init__(self, progress: Progress, *, verify: bool) -> None:
        self._progress = progress
        self._n_steps = 2 if verify else 1
        self._n_bytes = 0

    def begin(self, n_bytes: int) -> None:
        """Note how many bytes the copy has."""
        self._n_bytes = n_bytes

    def copied(self, done: int) -> None:
        """Note how many bytes are copied."""
        self._progress(done, self._n_steps * self._n_bytes)

    def checked(self, done: int, total: int) -> None:
        """Note how far the check is."""
        checked = self._n_bytes * done // max(total, 1)
        self._progress(self._n_bytes + checked, self._n_steps * self._n_bytes)


def findings_of(
    copy: MessageStore, request: CopyRequest, steps: CopySteps, name: str
) -> tuple[Finding, ...]:
    """Return what a verification of a copy finds.

    Args:
        copy: the copy.
        request: what of the source it has.
        steps: receives how far the check is.
        name: the name that the copy gets when it is complete, which findings show.
    """
    own_name = str(copy.paths.root)
    found = []
    for finding in verify(copy, steps.checked):
        place = finding.place.replace(own_name, name)
        # The records of a queue that is left out have no unit.
        if finding.part != "queue" or request.has(place.rpartition("-")[0]):
            text = finding.text.replace(own_name, name)
            found.append(finding._replace(place=place, text=text))
    return tuple(found)


def tables_of(files: Iterable[PlannedFile]) -> set[tuple[object, ...]]:
    """Return what shows whether a RocksDB database has changed its tables.

    Its log is only appended to, so a part of it is as good as all of it.
    """
    state: set[tuple[object, ...]] = set()
    for file in files:
        name = file.name.rpartition("/")[2]
        if name.startswith("MANIFEST-") or name == "CURRENT" or name.endswith((".sst", ".blob")):
            state.add((name, file.size, file.modified_ns))
        elif name.endswith(".log"):
            state.add((name,))
    return state


def config_content(storage: Storage, path: Path) -> bytes:
    """Return a file of ``config/``, read again if a broker was just writing it.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableFileError: it is longer than a broker makes such files.
    """
    for attempt in range(_ATTEMPTS):
        content = read_small(storage, path, MAX_TABLE_BYTES)
        is_json = path.suffix == ".json" or path.name.endswith(".json.bak")
        if not is_json or is_table(content):
            return content
        if attempt < _ATTEMPTS - 1:
            time.sleep(_PAUSE_SECONDS)
    logger.warning("%s is not JSON that a broker writes; it is copied as it is", path)
    return content
