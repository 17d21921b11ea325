"""Which files of an unfinished copy are complete, as a file of JSON lines in the copy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from rmqstore.copying.plan import CopyRequest, PlannedFile
from rmqstore.errors import StoreStateError
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL

JOURNAL: Final = Path(".rmqstore", "copying")
_MAX_BYTES: Final = 1 << 30


class Journal:
    """The complete files of a copy, each with the state of its source when it was copied.

    Args:
        disk: performs all changes.
        folder: the folder of the unfinished copy.
        source: what names the store that is copied.
        request: what of it is copied.
        folders: the parts of the store that lie elsewhere, by argument.

    Raises:
        StoreStateError: the folder holds an unfinished copy of something else.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        source: str,
        request: CopyRequest,
        folders: Mapping[str, object],
    ) -> None:
        self._disk, self._path = disk, folder / JOURNAL
        head = head_of(source, request, folders)
        self._done: dict[str, list[object]] = {}
        self._end = 0
        if LOCAL.exists(self._path):
            self._read(folder, head)
        else:
            disk.make_folder(self._path.parent)
            disk.create(self._path, 0)
            self._append([json.dumps(head)])
            disk.flush_folder(self._path.parent)

    def _read(self, folder: Path, head: Mapping[str, object]) -> None:
        """Take what an earlier attempt noted; a last line that it did not finish is ignored."""
        text = LOCAL.read_bytes(self._path, _MAX_BYTES)
        whole = text[: text.rfind(b"\n") + 1]
        self._end = len(whole)
        lines = whole.splitlines()
        if not lines:
            self._append([json.dumps(head)])
            return
        try:
            entries = [json.loads(line) for line in lines]
        except ValueError as err:
            raise StoreStateError(
                f"{self._path} is damaged ({err}): delete {folder}, and copy again"
            ) from err
        if entries[0] != head:
            raise StoreStateError(
                f"{folder} holds an unfinished copy of {entries[0]}, not of {head}: "
                "finish that one with the same arguments, or delete the folder"
            )
        for name, *state in entries[1:]:
            self._done[name] = state

    def has(self, file: PlannedFile) -> bool:
        """Tell whether a file was copied, and has not changed since."""
        return file.is_final and self._done.get(file.name) == entry_of(file)[1:]

    def add(self, files: Iterable[PlannedFile]) -> None:
        """Note, durably, that files are copied and on the disk."""
        final = [file for file in files if file.is_final]
        self._append([json.dumps(entry_of(file)) for file in final])

    def _append(self, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines).encode()
        if text:
            self._disk.write(self._path, self._end, text)
            self._disk.flush(self._path)
            self._end += len(text)


def head_of(source: str, request: CopyRequest, folders: Mapping[str, object]) -> dict[str, object]:
    """Return what tells a copy from another: the first entry of its journal."""
    topics = None if request.topics is None else sorted(request.topics)
    since = request.named or request.since
    head: dict[str, object] = {"source": source, "since": since, "topics": topics}
    named = {name: value for name, value in sorted(folders.items()) if value}
    return head | ({"folders": json.loads(json.dumps(named, default=str))} if named else {})


def entry_of(file: PlannedFile) -> list[object]:
    """Return the entry of a file that is copied: its name, and what its source was then."""
    return [file.name, file.size, file.end, file.modified_ns]
