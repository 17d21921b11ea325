"""Releases of RocketMQ, and the earliest one that leaves the files of a store."""

from __future__ import annotations

import re

from rmqstore.errors import OptionError, about
from rmqstore.storage.broker.checkpoint import read_checkpoint
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import is_folder

Release = tuple[int, int]

_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d+)*", re.ASCII)
_SINCE_5_0 = ("timerwheel", "batchconsumequeue", "compaction", "epochFileCheckpoint")


def parse_release(text: str) -> Release:
    """Return the first two numbers of a release, such as those of ``5.3.3``.

    Raises:
        OptionError: it is none.
    """
    match = _RELEASE.fullmatch(text.strip())
    if match is None:
        raise OptionError(about("broker_version", f" {text!r}: must be a release such as 5.3.3"))
    return int(match[1]), int(match[2])


def earliest_release(paths: StorePaths) -> str:
    """Return the earliest release that makes all of these files, such as ``5.2``.

    No file names the release of the broker itself.
    """
    if read_checkpoint(paths).logics_phy_offset > 0:
        return "5.5"
    rocksdb_store = paths.root / "rocksdbstore"
    if is_folder(paths.storage, rocksdb_store) and paths.storage.list_folder(rocksdb_store):
        return "5.4"
    if paths.rocksdb_queues is not None:
        return "5.2"
    is_5 = any(paths.storage.exists(paths.root / name) for name in _SINCE_5_0)
    return "5.0" if is_5 else "3.2"
