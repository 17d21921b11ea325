"""A folder of a remote file system into which whole files are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmqstore.storage.remote.requests import Requests

Content: TypeAlias = bytes | NDArray[np.uint8]

_WITHOUT_FOLDERS: Final = ("s3", "gcs", "abfs")  # a name there needs no folder that was made


class RemoteFolder:
    """Writes, lists and deletes the files below one folder.

    A file appears when it is complete, or, in some file systems, is cut where its writer was
    interrupted. Nothing can be renamed, or be written to again.

    Args:
        requests: makes the requests to the file system.
        root: name of the folder, a URI.
        key: the path of the folder in the file system.
    """

    def __init__(self, requests: Requests, root: str, key: str) -> None:
        self._requests, self.root, self._key = requests, root, key
        self._filesystem = requests.filesystem
        self._needs_folders = self._filesystem.type_name not in _WITHOUT_FOLDERS

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files by their names below the folder.

        Raises:
            RemoteReadError: the folder cannot be listed.
        """
        infos = self._requests.list(self._key, self.root, recursive=True)
        prefix = f"{self._key}/"
        return {
            info.path.removeprefix(prefix): info.size or 0
            for info in infos
            if info.type.name == "File"
        }

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: there is no such file.
            RemoteReadError: it cannot be read.
        """

        def read() -> bytes:
            with self._filesystem.open_input_stream(f"{self._key}/{name}") as stream:
                content: bytes = stream.read()
            return content

        return self._requests.repeated(read, f"{self.root}/{name}")

    def write(self, name: str, pieces: Callable[[], Iterator[Content]]) -> None:
        """Write a file.

        Args:
            name: its name below the folder.
            pieces: returns its bytes; called again if the file has to be written again.

        Raises:
            RemoteReadError: it cannot be written.
        """
        key = f"{self._key}/{name}"

        def write() -> None:
            if self._needs_folders:
                self._filesystem.create_dir(key.rpartition("/")[0], recursive=True)
            with self._filesystem.open_output_stream(key) as stream:
                for piece in pieces():
                    stream.write(piece)

        self._requests.repeated(write, f"writing {self.root}/{name}")

    def make(self, name: str) -> None:
        """Make an empty folder, in object storage by an object that stands for it.

        Raises:
            RemoteReadError: it cannot be made.
        """
        key = f"{self._key}/{name}"
        self._requests.repeated(
            lambda: self._filesystem.create_dir(key, recursive=True), f"writing {self.root}/{name}"
        )

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens if there is none.

        Raises:
            RemoteReadError: it cannot be deleted.
        """

        def delete() -> Any:  # noqa: ANN401
            try:
                self._filesystem.delete_file(f"{self._key}/{name}")
            except FileNotFoundError:
                return

        self._requests.repeated(delete, f"deleting {self.root}/{name}")
