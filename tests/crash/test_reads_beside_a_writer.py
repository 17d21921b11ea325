"""Reads beside a writer of ours: before any look at the store, a commit may have changed it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
from crash.faults import Cut
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LocalStorage, MappedFile
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import ConsumeQueue
from rmqstore.write.writer import StoreWriter
from written import stage

SIZES = StoreConfig().updated({"mappedFileSizeCommitLog": 65536, "messageIndexEnable": False})
BEFORE, APPENDED = 5, 50
# All that a reader learns of a store, it learns by one of these.
LOOKS: list[tuple[type, str]] = [
    *((LocalStorage, name) for name in ("list_folder", "status", "size", "read_bytes", "open")),
    *((CommitLog, name) for name in ("read_in_place", "refresh")),
    (MappedFile, "written_end"),
    *((ConsumeQueue, name) for name in ("unit", "units", "end")),
]


def rows(n: int) -> pa.RecordBatch:
    """Return messages of two queues, so that a read could take an append of one of them only."""
    queue_ids = [number % 2 for number in range(n)]
    return pa.RecordBatch.from_pydict(
        {"topic": ["T"] * n, "queueId": queue_ids, "body": [b"x" * 200] * n}
    )


def append_plainly(writer: StoreWriter) -> None:
    writer.append(rows(APPENDED))


def append_staged(writer: StoreWriter) -> None:
    writer.append_staged(stage(writer.paths.root, rows(APPENDED)), are_all=True)


class Looks:
    """Counts how often a reader looks at a store, and does things before some of the looks."""

    def __init__(self) -> None:
        self.n, self._is_acting = 0, False
        self._acts: dict[int, Callable[[], None]] = {}

    @contextmanager
    def act(self, acts: dict[int, Callable[[], None]]) -> Iterator[None]:
        self.n, self._acts = 0, acts
        yield
        self._acts = {}

    def look(self) -> None:
        if self._is_acting:  # the writer looks at the store too
            return
        self.n += 1
        if self.n in self._acts:
            self._is_acting = True
            self._acts[self.n]()
            self._is_acting = False


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    for owner, name in LOOKS:
        method = getattr(owner, name)

        def counted(self: Any, *args: Any, _method: Any = method, **kwargs: Any) -> Any:
            looks.look()
            return _method(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
    return looks


class KilledDisk(Disk):
    """Dies after an append was shown, before the queues get its units."""

    def delete(self, path: Path) -> None:
        if path.parent.name == "commitlog":
            raise Cut
        super().delete(path)


class Appending:
    """A writer that appends to a store once."""

    def __init__(
        self, root: Path, append: Callable[[StoreWriter], None], *, is_killed: bool
    ) -> None:
        self._root, self._append = root, append
        self._disk = KilledDisk() if is_killed else Disk()
        self._writer: StoreWriter | None = None

    def hide(self) -> None:
        """Open the store and append, without a commit."""
        self._writer = StoreWriter(find_store(self._root), SIZES, disk=self._disk)
        self._append(self._writer)

    def commit(self) -> None:
        if self._writer is None:
            self.hide()
        assert self._writer is not None
        with suppress(Cut):
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            with suppress(Cut):
                self._writer.close()


@pytest.mark.parametrize("scan", ["queue", "commitlog"])
@pytest.mark.parametrize("append", [append_plainly, append_staged])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("first_seen", ["closed", "hidden", "hiding"])
def test_a_commit_at_any_moment_of_a_read_is_seen_or_not(
    tmp_path: Path,
    looks: Looks,
    first_seen: str,
    append: Callable[[StoreWriter], None],
    scan: str,
    is_killed: bool,
) -> None:
    """The store was closed when the read began, or held an append that was not committed."""
    template = tmp_path / "template"
    with rmqstore.create(template, config=SIZES) as writer:
        writer.append(rows(BEFORE))
    seen = set[int]()
    at, n_looks = 0, 1
    while at <= n_looks:
        at += 1
        root = tmp_path / "store"
        shutil.copytree(template, root)
        appending = Appending(root, append, is_killed=is_killed)
        acts = {at: appending.commit}
        if first_seen == "hidden":
            appending.hide()
        elif first_seen == "hiding":
            acts = {at: appending.hide, at + 1 + at % 7: appending.commit}
        with looks.act(acts), rmqstore.open(root) as store:
            seen.add(store.scan(columns="body", scan=scan).read_all().num_rows)
            n_looks = looks.n
        appending.close()
        shutil.rmtree(root)
    assert seen == {BEFORE, BEFORE + APPENDED}
