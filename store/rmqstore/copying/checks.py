"""The check of a copy, and how far its steps have come."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rmqstore.copying.plan import CopyRequest, PlannedFile
from rmqstore.errors import Finding
from rmqstore.inspect.verify import verify
from rmqstore.progress import Progress
from rmqstore.storage.broker.config_files import MAX_TABLE_BYTES, is_table
from rmqstore.storage.files.storage import Storage, read_small
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.05  # in which a broker writes such a file


class CopySteps:
    """The progress of a copy: its bytes count once for copying and, if it is checked, once more.

    Attributes:
        n_bytes: the bytes of the copy.
    """

    def __init__(self, progress: Progress, *, verify: bool) -> None:
        self._progress, self._n_steps = progress, 2 if verify else 1
        self.n_bytes = 0

    def copied(self, done: int) -> None:
        """Note how many bytes are copied."""
        self._progress(done, self._n_steps * self.n_bytes)

    def checked(self, done: int, total: int) -> None:
        """Note how far the check is."""
        checked = self.n_bytes * done // max(total, 1)
        self._progress(self.n_bytes + checked, self._n_steps * self.n_bytes)


def findings_of(
    copy: MessageStore, request: CopyRequest, steps: CopySteps, name: str
) -> tuple[Finding, ...]:
    """Return what a verification of a copy finds.

    Args:
        copy: the copy.
        request: what of the source it has.
        steps: told how far the check is.
        name: the name that the copy gets when it is complete, which findings show.
    """
    own_name = str(copy.paths.root)

    def renamed(text: str) -> str:
        return text.replace(own_name, name)

    found = [
        Finding(one.part, renamed(one.place), renamed(one.text))
        for one in verify(copy, steps.checked)
    ]
    return tuple(one for one in found if not _is_of_left_out(one, request))


def _is_of_left_out(finding: Finding, request: CopyRequest) -> bool:
    """Tell whether a finding says that the records of a queue that is left out have no unit."""
    topic = finding.place.rpartition("-")[0]
    return finding.part == "queue" and not request.has(topic)


def tables_of(files: Iterable[PlannedFile]) -> set[tuple[object, ...]]:
    """Return what tells whether a RocksDB database has changed its tables.

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
