"""Copies a store into a remote file system, which has neither renaming nor holes nor locks.

The files get their names at once. A marker in the folder says that the copy is not complete:
readers refuse such a folder, and the copy ends with the deletion of the marker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import uuid4

import numpy as np

from rmqstore.copying.checks import (
    NOTED_BYTES,
    NOTED_FILES,
    CopySteps,
    config_content,
    entry_of,
    findings_of,
    require_apart,
    require_same,
)
from rmqstore.copying.plan import (
    CopyPlan,
    CopyRequest,
    PlannedFile,
    copy_until_stable,
    plan_copy,
    require_possible,
)
from rmqstore.errors import FileDeletedError, Finding, StoreStateError, UnsupportedFeatureError
from rmqstore.format.columns.walk import cut_batches
from rmqstore.storage.broker.topic_table import content_of_kept
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import UNFINISHED_COPY
from rmqstore.storage.files.remote_storage import Content, RemoteFolder, RemoteStorage
from rmqstore.storage.files.storage import UriPath
from rmqstore.store.message_store import MessageStore
from rmqstore.store.opening import open_for

_JOURNAL: Final = ".rmqstore/copying"  # a folder of numbered parts
_PART: Final = re.compile(re.escape(_JOURNAL) + r"/\d{8}")
_ATTEMPT: Final = f"{_JOURNAL}/attempt"  # has the name of the call that copies
_CHUNK_BYTES: Final = 4 << 20
_FILES_AT_ONCE: Final = 8
_NO_SIZE: Final = -1  # of a file that is being written, perhaps in part
_ZEROS: Final = np.zeros(_CHUNK_BYTES, np.uint8)


@dataclass
class RemoteCopier:
    """One call that makes a copy, or continues one.

    Attributes:
        open_source: opens the store that is copied.
        storage: the file system that gets the copy.
        request: what of the store is copied.
        head: what distinguishes the copy from another; see ``checks.head_of``.
        steps: receives how far the copy is.

    Raises:
        StoreStateError: the folder has files of something else.
    """

    open_source: Callable[[], MessageStore]
    storage: RemoteStorage
    request: CopyRequest
    head: Mapping[str, object]
    steps: CopySteps

    def __post_init__(self) -> None:
        """Begin the copy, or read how far an earlier call came."""
        self._folder: RemoteFolder = self.storage.folder()
        self._sizes = self._folder.sizes()
        self._done: dict[str, list[object]] = {}
        self._n_parts = 0
        self._opening = Lock()
        self._attempt = uuid4().hex.encode()
        is_marked = UNFINISHED_COPY in self._sizes
        if self._sizes and not is_marked:
            raise StoreStateError(
                f"{self._folder.root} exists already: a copy is made in a new folder"
            )
        earlier = _parsed(self._folder.read(UNFINISHED_COPY)) if is_marked else None
        if earlier is None and len(self._sizes) <= 1:
            self._write(UNFINISHED_COPY, json.dumps(self.head).encode())
        else:
            require_same(self._folder.root, earlier, self.head)
        for name in sorted(name for name in self._sizes if _PART.fullmatch(name)):
            for line in self._folder.read(name).splitlines():
                match _parsed(line):
                    case [str(file), *state]:
                        self._done[file] = state
            self._n_parts = int(name.rpartition("/")[2]) + 1
        self._write(_ATTEMPT, self._attempt)

    def _require_ours(self) -> None:
        """Refuse to continue beside another call that has begun to copy into the same folder.

        Raises:
            StoreStateError: there is one.
        """
        try:
            attempt = self._folder.read(_ATTEMPT)
        except FileNotFoundError:
            attempt = b""
        if attempt != self._attempt:
            raise StoreStateError(
                f"another copy into {self._folder.root} has begun, or has ended, meanwhile: two at "
                "once would mix their files; check what it made with `rmqstore verify`"
            )

    def _write(self, name: str, content: bytes) -> None:
        self._folder.write(name, lambda: iter([content]))

    def run(self, *, verify: bool) -> tuple[CopyPlan, tuple[Finding, ...]]:
        """Copy all files; return them, and what a verification of the copy finds.

        Raises:
            UnsupportedFeatureError: the store is open, or was not closed.
            StoreStateError: it changes all the time, or another call has put files into the folder.
        """
        plan = copy_until_stable(self.open_source, self.request, self._copy, "stop its broker")
        findings = self._check() if verify else ()
        self._require_ours()
        stored = self._folder.sizes()
        notes = [name for name in stored if name.startswith(f"{_JOURNAL}/")]
        sizes = {file.name: file.size for file in plan.files if not _is_config(file)}
        others = stored.keys() - sizes - {UNFINISHED_COPY, *notes}
        wrong = [name for name in sizes if stored.get(name) != sizes[name]]
        wrong += [name for name in others if not name.startswith("config/")]
        if wrong:
            raise StoreStateError(
                f"{self._folder.root}/{min(wrong)} was written, or deleted, by something else "
                "while the copy was made; the same call continues it"
            )
        for name in notes:
            self._folder.delete(name)
        self._folder.delete(UNFINISHED_COPY)  # the last of the notes
        return plan, findings

    def _check(self) -> tuple[Finding, ...]:
        self.storage.refresh()
        self.storage.hide(UNFINISHED_COPY)
        with open_for(UriPath(self._folder.root), storage=self.storage) as store:
            return findings_of(store, self.request, self.steps, self._folder.root)

    def _copy(self, store: MessageStore) -> CopyPlan:
        require_closed(store, self._folder.root)
        plan = plan_copy(store.parts, self.request, None)
        names = {file.name for file in plan.files}
        for name in sorted(set(self._sizes) - names - {UNFINISHED_COPY}):
            if not name.startswith(f"{_JOURNAL}/"):
                self._folder.delete(name)
        if not any(name.startswith("commitlog/") for name in names):
            self._folder.make("commitlog")  # a folder without it is not a store
        self.steps.begin(plan.n_bytes)
        done = 0
        sizes = np.array([file.size for file in plan.files], np.int64)
        with ThreadPoolExecutor(_FILES_AT_ONCE, "rmqstore-copy") as pool:
            for noted in cut_batches(sizes, NOTED_FILES, NOTED_BYTES):
                together = plan.files[noted]
                missing = [file for file in together if not self._is_there(file)]
                for file in missing:
                    self._sizes[file.name] = _NO_SIZE
                for _ in pool.map(lambda file: self._copy_file(store, file), missing):
                    pass
                self._require_ours()
                # The files are noted as copied.
                lines = [json.dumps(entry_of(file)) for file in missing if file.is_final]
                for file in missing:
                    self._sizes[file.name] = file.size
                    self._done[file.name] = entry_of(file)[1:]
                if lines:
                    self._write(f"{_JOURNAL}/{self._n_parts:08}", "\n".join(lines).encode())
                    self._n_parts += 1
                done += sum(file.end for file in together)
                self.steps.copied(done)
        return plan

    def _is_there(self, file: PlannedFile) -> bool:
        is_noted = file.is_final and self._done.get(file.name) == entry_of(file)[1:]
        return is_noted and (_is_config(file) or self._sizes.get(file.name) == file.size)

    def _copy_file(self, store: MessageStore, file: PlannedFile) -> None:
        if not _is_config(file):
            self._folder.write(file.name, lambda: self._chunks(store, file))
            return
        leaves_topics_out = self.request.topics is not None
        if leaves_topics_out and file.name == "config/topics.json.bak":
            return  # it has the topics that are left out
        if leaves_topics_out and file.name == "config/topics.json":
            content = content_of_kept(store.paths, self.request.has)
        else:
            content = config_content(store.paths.storage, file.source)
        self._write(file.name, content)

    def _chunks(self, store: MessageStore, file: PlannedFile) -> Iterator[Content]:
        """Yield the bytes of a file, zeros for its holes."""
        with self._opening:
            opened = store.paths.storage.open(file.source)
        position = 0
        with opened:
            for low, high in opened.data_spans(0, file.end, is_appended=file.is_appended):
                yield from _zeros(low - position)
                for start in range(low, high, _CHUNK_BYTES):
                    chunk = np.empty(min(_CHUNK_BYTES, high - start), np.uint8)
                    if opened.read_into(chunk, start) < len(chunk):
                        raise FileDeletedError(str(file.source))
                    yield chunk
                position = high
        yield from _zeros(file.size - position)


def require_copyable(
    store: MessageStore, storage: RemoteStorage, request: CopyRequest, target: str
) -> None:
    """Refuse what cannot be copied, before anything is written.

    Raises:
        OptionError: the store has no queues of a topic that is named.
        StoreStateError: the target lies in the store, or the store in it.
        UnsupportedFeatureError: the store was not closed, or is of a kind that cannot be copied.
    """
    store.parts.require("a copy")
    if storage.filesystem.type_name == "local":
        folder = LOCAL.full_path(Path(storage.key))
        require_apart(store, folder, folder)
    if storage.overlaps(store.paths.storage):
        raise StoreStateError(
            f"{target} lies in the store that is copied, or the store in it: choose another target"
        )
    require_possible(store.parts, request)
    require_closed(store, target)


def require_closed(store: MessageStore, target: str) -> None:
    """Refuse a store that needs a repair, because repairs need a local disk.

    Raises:
        UnsupportedFeatureError: the store is open, or was not closed.
    """
    if store.log_end is not None:
        raise UnsupportedFeatureError(
            f"{store.paths.root} is in use, or was not closed: its copy has to be repaired, which "
            f"is done on a local disk only. Copy it to a local folder, and that copy to {target}"
        )


def _parsed(text: bytes) -> object:
    """Return the value of a JSON text, None if it was cut where its writer was interrupted."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_config(file: PlannedFile) -> bool:
    return file.name.startswith("config/")


def _zeros(count: int) -> Iterator[Content]:
    for start in range(0, count, _CHUNK_BYTES):
        yield _ZEROS[: min(_CHUNK_BYTES, count - start)]
