"""The open files of a reader: a limited number, however many files the store has."""

from __future__ import annotations

from collections import OrderedDict

from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import Closing, Storage, StoredFile


class OpenFiles(Closing):
    """Files that stay open until too many others are: a descriptor each, and a mapping for some.

    Args:
        storage: the storage to open the files in.
        at_once: maximum number of files that stay open.
    """

    __slots__ = ("_at_once", "_files", "storage")

    def __init__(self, storage: Storage = LOCAL, at_once: int = 2) -> None:
        self.storage = storage
        self._at_once = at_once
        self._files: OrderedDict[str, StoredFile] = OrderedDict()

    def open(self, path: str) -> StoredFile:
        """Return the open file of that name.

        Raises:
            FileNotFoundError: there is no such file.
            UnreadableFileError: it is not a regular file, or longer than any that RocketMQ can
                write.
        """
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        file = self._files[path] = self.storage.open(path)
        if len(self._files) > self._at_once:
            self._files.popitem(last=False)[1].close()
        return file

    def drop_outdated(self, path: str) -> None:
        """Close a file if it has to be opened again; see :meth:`StoredFile.is_outdated`."""
        file = self._files.get(path)
        if file is not None and file.is_outdated():
            self.drop(path)

    def drop(self, path: str) -> None:
        """Close a file if it is open."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
