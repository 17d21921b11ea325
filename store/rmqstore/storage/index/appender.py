"""Appends index items, file after file."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np

from rmqstore.storage.files.disk import Disk
from rmqstore.storage.index.file_appender import IndexFileAppender, IndexKeys, next_name
from rmqstore.storage.index.index_file import IndexFile, index_files
from rmqstore.storage.index.sizes import IndexSizes

_KEYS_AT_ONCE = 1 << 18


class IndexAppender:
    """The end of the index: the last file and, once it is full, a new one.

    Source: IndexService.java.
    """

    def __init__(self, disk: Disk, folder: Path, sizes: IndexSizes) -> None:
        self._disk = disk
        self._folder = folder
        self._sizes = sizes
        files = index_files(folder)
        self._last = IndexFileAppender(disk, files[-1], sizes) if files else None
        self._waiting: list[IndexKeys] = []
        self._n_waiting = 0
        # All records before the last one of the index are in it. Some keys of the last record may
        # have been in a file that is lost, so its items are counted.
        # Source: IndexService.java#buildIndex.
        self._last_record = -1  # physical offset
        self._n_items_of_last_record = 0
        if self._last is not None and self._last.end_timestamp:
            self._last_record = self._last.end_phy_offset
            self._n_items_of_last_record = _items_of(self._last_record, files, sizes)

    def add(self, keys: IndexKeys) -> None:
        """Add keys, skipping those that the index already has.

        They are written in groups, and by :meth:`flush`.
        """
        self._waiting.append(keys)
        self._n_waiting += len(keys)
        if self._n_waiting >= _KEYS_AT_ONCE:
            self._put_waiting()

    def _put_waiting(self) -> None:
        """Put many keys together, because each put costs some time of its own."""
        if self._n_waiting:
            columns = zip(*self._waiting, strict=True)
            hashes, offsets, times = (np.concatenate(column) for column in columns)
            self._put(IndexKeys(hashes, offsets, times))
        self._waiting.clear()
        self._n_waiting = 0

    def _put(self, keys: IndexKeys) -> None:
        offsets = keys.physical_offsets
        done = int(np.searchsorted(offsets, self._last_record))
        n_of_last_record = int(np.searchsorted(offsets, self._last_record, side="right")) - done
        done += min(n_of_last_record, self._n_items_of_last_record)
        while done < len(keys):
            if self._last is None or not self._last.room:
                if self._last is not None:
                    self._last.commit()
                    self._disk.flush(self._last.path)
                self._last = self._begin(self._last)
            count = min(self._last.room, len(keys) - done)
            self._last.put(keys.take(slice(done, done + count)))
            done += count

    def _begin(self, last: IndexFile | None) -> IndexFileAppender:
        name = next_name(None if last is None else last.path.name, datetime.now().astimezone())
        return IndexFileAppender.create(self._disk, self._folder / name, self._sizes, last)

    def flush(self) -> None:
        """Write all keys and wait until they are on the disk."""
        self._put_waiting()
        if self._last is not None:
            self._last.commit()
            self._disk.flush(self._last.path)
            self._disk.flush_folder(self._folder)


def _items_of(physical_offset: int, files: list[Path], sizes: IndexSizes) -> int:
    """Return how many items at the end of the index are of one record, over all files."""
    total = 0
    for path in reversed(files):
        file = IndexFile(path, sizes)
        count = file.items_at_end(physical_offset)
        total += count
        if count < file.n_items:
            break
    return total
