"""The saved state of a copy, ``.rmqstore/follow.json``, its epochs, its status and its progress.

The file names the broker that the copy is of, and the end of what is on the disk. It is never ahead
of the bytes that it describes.

Source: EpochFileCache.java#appendEntry, #truncateSuffixByOffset, #truncatePrefixByOffset.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmqstore.errors import CorruptConfigError, StoreStateError, UnreadableFileError
from rmqstore.replica.broker import Source
from rmqstore.storage.broker.epochs import Epoch, read_epochs, stored_epochs
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import MAX_OFFSET, StorePaths
from rmqstore.storage.files.storage import read_small

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_NAME: Final = "follow.json"
_MAX_BYTES: Final = 64 << 10
_LEARNER_IDS: Final = 1 << 61
_OURS: Final = {"lock", ".rmqstore"}  # what there is before the state was written the first time


def epochs_within(epochs: Sequence[Epoch], begin: int, end: int) -> list[Epoch]:
    """Return the epochs that have a part between two physical offsets."""
    stops = [*(epoch.start_offset for epoch in epochs[1:]), end]
    return [
        epoch
        for epoch, stop in zip(epochs, stops, strict=False)  # without an epoch there is one stop
        if epoch.start_offset < end and stop > begin
    ]


def noted_epochs(paths: StorePaths) -> list[Epoch]:
    """Return the epochs that were noted of a copy."""
    try:
        return read_epochs(paths)
    except CorruptConfigError as err:  # comparing the logs needs none
        logger.warning("%s; the epochs are asked for again", err)
        return []


def note_epochs(disk: Disk, paths: StorePaths, epochs: Sequence[Epoch]) -> None:
    """Replace the file of the epochs; without one there is no file."""
    if epochs:
        disk.replace(paths.epochs, stored_epochs(epochs))
    else:
        disk.delete(paths.epochs)
        disk.flush_folder(paths.epochs.parent)


def new_learner_id() -> int:
    """Return an id for a replica that no controller gives: these count up from 1.

    As an offset it is as far below every log as ``NEVER``.
    """
    return -_LEARNER_IDS - 1 - secrets.randbelow(_LEARNER_IDS)


@dataclass(frozen=True, slots=True)
class FollowState:
    """A copy and its source.

    Attributes:
        cluster: name of the cluster that the broker belongs to, empty if it is not known.
        broker: name of the broker, empty if it is not known; its id may change.
        address: where it was reached the last time.
        file_size: bytes of each file of the log.
        begin: physical offset of the first byte of the copy.
        end: physical offset after the last record that is on the disk.
        built: physical offset up to which queues and index are on the disk.
        is_closed: whether the follower ended properly.
        store_type: how the source keeps its queues; the copy has them in files.
        n_cuts: how many times an end of the copy was cut because the source does not have it.
        last_cut: where it was cut the last time, -1 if never.
        last_cut_bytes: how many bytes that were.
        last_cut_at: when, epoch ms.
        last_cut_kept: the folder with the bytes that were cut.
        tables_at: when the tables were written, epoch ms, 0 if never.
        source_end: physical offset of the end of the source's log when it was last known.
        source_at: when the source reported that, epoch ms, 0 if never.
        behind_seconds: how old the last record was, in seconds, if the source had more.
        n_connections: how many connections the follower has made since it was started.
        updated_at: when this was written, epoch ms.
        mode: how the source serves its replicas, default or controller.
        learner_id: the id of the copy among the replicas of a group in controller mode, 0 if a
            former version made the copy and it was not opened since.
        epoch: the epoch of the last record in controller mode, -1 without one.
        builds_queues: whether the follower that opened the copy last builds queues and index.
        confirm_offset: physical offset up to which no switch of masters takes records back, as the
            source reported it in controller mode; -1 if it did not.
    """

    cluster: str
    broker: str
    address: str
    file_size: int
    begin: int
    end: int
    built: int
    is_closed: bool = False
    store_type: str = ""
    n_cuts: int = 0
    last_cut: int = -1
    last_cut_bytes: int = 0
    last_cut_at: int = 0
    last_cut_kept: str = ""
    tables_at: int = 0
    source_end: int = 0
    source_at: int = 0
    behind_seconds: float = 0.0
    n_connections: int = 0
    updated_at: int = 0
    mode: str = "default"
    learner_id: int = 0
    builds_queues: bool = True
    epoch: int = -1
    confirm_offset: int = -1

    def opened(self, begin: int, *, builds_queues: bool) -> FollowState:
        """Return the state of a continued copy, whose first file is known."""
        return replace(
            self,
            begin=begin,
            is_closed=False,
            n_connections=0,
            learner_id=self.learner_id or new_learner_id(),
            builds_queues=builds_queues,
        )

    def confirmed(self, source: Source, address: str) -> FollowState:
        """Return the state after the log of a broker was found to be the copy's."""
        return replace(
            self,
            cluster=source.cluster,
            broker=source.broker,
            address=address,
            store_type=source.store_type,
            mode=source.mode,
        )

    def with_cut(self, end: int, n_bytes: int, at: int, kept: Path) -> FollowState:
        """Return the state after an end of the copy was cut."""
        return replace(
            self,
            end=end,
            built=min(self.built, end),
            n_cuts=self.n_cuts + 1,
            last_cut=end,
            last_cut_bytes=n_bytes,
            last_cut_at=at,
            last_cut_kept=str(kept),
        )


def first_state(source: Source, address: str, begin: int) -> FollowState:
    """Return the state of a copy without a record.

    Args:
        source: the broker.
        address: where it was reached.
        begin: physical offset where the copy begins.
    """
    return FollowState(
        source.cluster, source.broker, address, source.file_size, begin, begin, begin,
        store_type=source.store_type,
    )  # fmt: skip


def require_new(root: Path) -> None:
    """Refuse a folder without a state if it holds anything else.

    Raises:
        StoreStateError: it does.
    """
    if {entry.name for entry in LOCAL.list_folder(root)} - _OURS:
        raise StoreStateError(
            f"{root} exists already and is not a copy that a follower made: name a new folder"
        )


def copy_paths(root: Path) -> StorePaths:
    """Return the files of a copy, which is always in one folder."""
    return StorePaths(root, (root / "commitlog",), root / "consumequeue", root / "index")


def cut_folder(root: Path, epoch_ms: int) -> Path:
    """Return the folder of a copy for what is cut at a time."""
    name = time.strftime("%Y%m%dT%H%M%S", time.gmtime(epoch_ms / 1000))
    return copy_paths(root).own.folder / "cut" / f"{name}.{epoch_ms % 1000:03d}"


def state_path(paths: StorePaths) -> Path:
    """Return the path of the file."""
    return paths.own.folder / _NAME


def write_state(disk: Disk, paths: StorePaths, state: FollowState) -> None:
    """Replace the file, and wait until it is on the disk."""
    content = json.dumps({"version": _VERSION, **asdict(state)}, indent=1)
    disk.replace(state_path(paths), content.encode())


def read_state(paths: StorePaths) -> FollowState | None:
    """Return the state of a copy, None if the store is not a copy of a follower.

    Raises:
        StoreStateError: the file is damaged, or of a later version.
    """
    path = state_path(paths)
    try:
        stored: Any = json.loads(read_small(paths.storage, path, _MAX_BYTES))
        version = stored.pop("version")
        names = {field.name for field in fields(FollowState)}
        state = FollowState(**{name: value for name, value in stored.items() if name in names})
    except FileNotFoundError:
        return None
    except (UnreadableFileError, ValueError, TypeError, KeyError, AttributeError) as err:
        raise StoreStateError(
            f"{path} is damaged ({err}): copy the broker into a new folder"
        ) from err
    except RecursionError as err:
        raise StoreStateError(f"{path} is damaged: copy the broker into a new folder") from err
    if version != _VERSION:
        raise StoreStateError(f"{path} is of version {version}, which this package does not know")
    types = {"str": str, "int": int, "bool": bool, "float": (int, float)}
    if not all(
        isinstance(getattr(state, field.name), types[str(field.type)])  # type: ignore[arg-type]
        for field in fields(FollowState)
    ):
        raise StoreStateError(f"{path} is damaged: a value has the wrong type")
    if not 0 <= state.begin <= state.end < MAX_OFFSET or state.file_size < 1:
        raise StoreStateError(f"{path} is damaged: {state.begin} to {state.end} is not a log")
    if state.learner_id and not -2 * _LEARNER_IDS <= state.learner_id < -_LEARNER_IDS:
        raise StoreStateError(f"{path} is damaged: {state.learner_id} is not an id of a learner")
    return state


def require_same_source(root: Path, state: FollowState, source: Source) -> None:
    """Refuse another source than a copy has.

    Raises:
        StoreStateError: the copy is of another broker, or the broker's files have other sizes.
    """
    if state.broker and (state.cluster, state.broker) != (source.cluster, source.broker):
        raise StoreStateError(
            f"{root} is a copy of broker {state.broker!r} of cluster {state.cluster!r}, not of "
            f"{source.broker!r} of {source.cluster!r}"
        )
    if state.file_size != source.file_size:
        raise StoreStateError(
            f"{root} has files of {state.file_size} bytes, and the broker now makes files of "
            f"{source.file_size}: follow it into a new folder"
        )


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


def follow_cluster_status(target: str | os.PathLike[str]) -> dict[str, tuple[FollowState, bool]]:
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
