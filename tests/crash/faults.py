"""A disk that dies at a chosen change, and what a kill or a power cut then leaves of the files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rmqstore.storage.broker.broker_run import read_checkpoint
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index_files import index_files, read_header
from rmqstore.write.writer import StoreWriter


class Cut(Exception):  # noqa: N818 - an event, not an error of ours
    """The machine is gone."""


class FaultyDisk(Disk):
    """Dies in the middle of change number ``at``; with ``at=None`` it only counts the changes.

    Args:
        power: also lose random unflushed writes and names of new files, as a power cut does.
        kept: the bytes of the write that is cut which are in its file; None for half of them.

    Attributes:
        writes: change, position and length of each write into a file that has its name already.
    """

    def __init__(
        self,
        at: int | None = None,
        power: random.Random | None = None,
        kept: int | None = None,
    ) -> None:
        super().__init__()
        self.n_changes = 0
        self.writes: list[tuple[int, int, int]] = []
        self.commit = -1  # number of the change that commits an append: the last one to the log
        self.done: list[str] = []
        self._at, self._power, self._kept, self._is_dead = at, power, kept, False
        self._unflushed: dict[Path, list[tuple[int, bytes]]] = {}  # what stood there before
        self._unnamed: dict[Path, Path] = {}  # new files and folders whose folder was not flushed
        # the new name, the old one, and what had the new name before
        self._renamed: list[tuple[Path, Path, bytes | None]] = []

    def _step(self, what: str, path: Path) -> bool:
        """Count a change; return whether it is the one that is cut in its middle."""
        if self._is_dead:
            raise Cut
        self.n_changes += 1
        self.done.append(f"{what} {path.name}")
        if (what == "write" and path.parent.name == "commitlog") or (
            what == "rename" and path.name == "commitlog"
        ):
            self.commit = self.n_changes - 1
        return self._at == self.n_changes - 1

    def _die(self) -> None:
        self._is_dead = True
        if self._power is not None:
            for path, writes in self._unflushed.items():
                for position, before in reversed(writes):
                    if path.exists() and self._power.random() < 0.5:
                        with path.open("r+b") as file:
                            file.seek(position)
                            file.write(before)
            for target, source, before in reversed(self._renamed):
                if self._power.random() < 0.5:
                    self._undo_rename(target, source, before)
            for path in self._unnamed:
                if self._power.random() >= 0.5:
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        raise Cut

    @staticmethod
    def _undo_rename(target: Path, source: Path, before: bytes | None) -> None:
        target.replace(source)
        if source.is_dir():
            target.mkdir()
        elif before is not None:
            target.write_bytes(before)

    def _remember(self, path: Path, position: int, length: int) -> None:
        with path.open("rb") as file:
            file.seek(position)
            self._unflushed.setdefault(path, []).append((position, file.read(length)))

    def create(self, path: Path, size: int, content: Iterable[Any] | None = None) -> None:
        if self._step("create", path):
            self._die()
        super().create(path, size, content)
        self._unnamed[path] = path.parent

    def write(self, path: Path, position: int, data: Any) -> None:
        is_cut = self._step("write", path)
        view = memoryview(data).cast("B")
        if path.suffix != ".tmp":  # which gets its name once it is whole
            self.writes.append((self.n_changes - 1, position, len(view)))
        self._remember(path, position, len(view))
        kept = len(view) // 2 if self._kept is None else self._kept
        super().write(path, position, view[:kept] if is_cut else view)
        if is_cut:
            self._die()

    def write_large(self, path: Path, position: int, data: Any) -> None:
        self.write(path, position, data)

    def write_through(self, path: Path, position: int, data: Any) -> None:
        self.write(path, position, data)
        self._unflushed[path].pop()

    def scatter(self, path: Path, positions: Any, values: Any) -> None:
        is_cut = self._step("scatter", path)
        width = values.dtype.itemsize
        for position in positions.tolist():
            self._remember(path, position, width)
        rows = np.arange(len(positions))[:: 2 if is_cut else 1]
        super().scatter(path, positions[rows], values[rows])
        if is_cut:
            self._die()

    def flush(self, path: Path) -> None:
        if self._step("flush", path):
            self._die()
        super().flush(path)
        self._unflushed.pop(path, None)

    def flush_folder(self, path: Path) -> None:
        if self._step("flush folder", path):
            self._die()
        super().flush_folder(path)
        self._unnamed = {file: folder for file, folder in self._unnamed.items() if folder != path}
        self._renamed = [rename for rename in self._renamed if rename[0].parent != path]

    def make_folder(self, path: Path, **settings: Any) -> None:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        self._unnamed.update({folder: folder.parent for folder in missing})
        super().make_folder(path, **settings)

    def flush_all(self, paths: Any) -> None:
        for path in paths:
            self.flush(path)
        for folder in {**dict.fromkeys(path.parent for path in paths), **self._unflushed_folders}:
            self.flush_folder(folder)
        self._unflushed_folders.clear()

    def rename(self, source: Path, target: Path) -> None:
        if self._step("rename", target):
            self._die()
        before = target.read_bytes() if target.is_file() else None
        super().rename(source, target)
        self._unnamed.pop(source, None)
        self._renamed.append((target, source, before))

    def delete(self, path: Path) -> None:
        if self._step("delete", path):
            self._die()
        super().delete(path)


class WatchedDisk(Disk):
    """Lets a test look at the files after each change, as somebody finds them after a kill there.

    Attributes:
        n_looks: how often it did.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self.n_looks = 0
        self._look_at = look

    def _look(self) -> None:
        self.n_looks += 1
        self._look_at()

    def create(self, path: Path, size: int, content: Iterable[Any] | None = None) -> None:
        super().create(path, size, content)
        self._look()

    def write(self, path: Path, position: int, data: Any) -> None:
        super().write(path, position, data)
        self._look()

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._look()


def require_kept_index(root: Path) -> None:
    """Require that a broker which recovers the store keeps all index files.

    It deletes those that end after the checkpoint, and does not build their older keys again.
    Source: IndexService.java#load.
    """
    paths = find_store(root)
    if paths.has_abort:  # otherwise there is no recovery
        ends = [int(read_header(path)["end_timestamp"]) for path in index_files(paths.index)]
        assert max(ends, default=0) <= read_checkpoint(paths).index_msg_timestamp


Act = Callable[[Path, FaultyDisk], object]


def counted(whole: Path, folder: Path, act: Act) -> FaultyDisk:
    """Return the disk of an act that nothing cuts, on a copy of a store."""
    disk = FaultyDisk()
    act(_copied(whole, folder / "count"), disk)
    return disk


def cut_copies(
    whole: Path, folder: Path, act: Act, places: Iterable[int], power: int | None = None
) -> Iterator[tuple[Path, str]]:
    """Yield copies of a store in which an act died at some of its changes, and where.

    Keys are random, so an append writes more slots in one run than in another and may live.
    """
    for at in places:
        root = _copied(whole, folder / f"{at}")
        disk = FaultyDisk(at, None if power is None else random.Random(power * 1000 + at))
        with suppress(Cut):
            act(root, disk)
        yield root, f"cut at change {at}: {disk.done[-1]}"
        shutil.rmtree(root)


def torn_copies(
    whole: Path, folder: Path, act: Act, page: int, of_each: int
) -> Iterator[tuple[Path, str]]:
    """Yield copies of a store in which a write of an act ended between two pages, and where.

    The kernel ends a write of a process that is killed after a whole page of the file. Nothing
    asks how large a page is, so with a small one each write ends within each of its entries.

    Args:
        whole, folder, act: as for :func:`cut_copies`.
        page: the bytes of a page.
        of_each: at how many borders of pages each write ends, counted from its own end.
    """
    torn = [
        (at, border - position)
        for at, position, length in counted(whole, folder, act).writes
        for border in range(position // page * page + page, position + length, page)[-of_each:]
    ]
    for at, kept in torn:
        root = _copied(whole, folder / f"{at}-{kept}")
        disk = FaultyDisk(at, kept=kept)
        with suppress(Cut):
            act(root, disk)
        yield root, f"cut after {kept} bytes of change {at}: {disk.done[-1]}"
        shutil.rmtree(root)


def _copied(whole: Path, folder: Path) -> Path:
    """Copy a store, which keeps its name."""
    return Path(shutil.copytree(whole, folder / whole.name))


@contextmanager
def mortal_writer(
    root: Path, disk: FaultyDisk, config: StoreConfig | None = None
) -> Iterator[StoreWriter]:
    """Give the writer of a process that may die anywhere, and close it."""
    with closing(disk):
        writer = StoreWriter(find_store(root), config or StoreConfig(), disk)
        try:
            yield writer
            writer.close()
        finally:
            writer._lock.release()  # what the kernel does for a process that died


def append_and_close(
    root: Path, disk: FaultyDisk, batch: pa.RecordBatch | pa.Table, *, verbatim: bool = False
) -> None:
    with mortal_writer(root, disk) as writer:
        writer.append(batch, verbatim=verbatim)
