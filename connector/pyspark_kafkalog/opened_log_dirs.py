"""Opens the log directories that options name, on the driver and in tasks."""

from __future__ import annotations

from dataclasses import dataclass, field

import kafkalog
from kafkalog.opening import require_reachable
from pyspark_rmqstore.option_values import storage_options, store_path


@dataclass(frozen=True, slots=True)
class LogDirsRef:
    """Where the log directories of one broker lie.

    Attributes:
        paths: absolute local paths, or URIs in one storage.
        storage_options: how to reach the storage of URIs. They may be secrets, so no text shows
            them.
    """

    paths: tuple[str, ...]
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return ", ".join(self.paths)

    def open(self) -> kafkalog.LogDirs:
        """Open them.

        Raises:
            NotAStoreError: a path is not a log directory.
            StoreStateError: two directories hold the same partition.
        """
        return kafkalog.open(*self.paths, storage_options=dict(self.storage_options))


def parse_log_dirs(paths: list[str], given: dict[str, str]) -> LogDirsRef:
    """Return the log directories that options name.

    Args:
        paths: as they are named, at least one.
        given: the options by their documented spelling.

    Raises:
        OptionError: the paths lie in several storages, or an option of the storage is unknown.
        UnsupportedFeatureError: a URI is of a file system that is not known.
    """
    to_reach = storage_options(given)
    absolute = tuple(store_path(path) for path in paths)
    require_reachable(absolute, to_reach)
    return LogDirsRef(absolute, tuple(to_reach.items()))
