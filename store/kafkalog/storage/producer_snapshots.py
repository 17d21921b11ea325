"""Producer snapshots, which name the transactions that are open at an offset."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.errors import CorruptBatchError
from kafkalog.format.batch_headers import crc32c
from kafkalog.storage.names import SNAPSHOT
from kafkalog.storage.segments import files_of_segments
from rmqstore.errors import UnreadableFileError
from rmqstore.storage.files.storage import Storage, read_small

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_CRC_AT: Final = 2
_COUNT_AT: Final = 6  # the CRC covers everything from here on
_ENTRIES_AT: Final = 10
_ENTRY: Final = np.dtype(
    [
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("last_timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("transaction_start", ">i8"),  # -1 if none is open
    ]
)
_MAX_BYTES: Final = 256 << 20  # some 5 million producers


class ProducerSnapshot(NamedTuple):
    """What a snapshot says: the transactions that are open at an offset.

    Attributes:
        offset: the offset; what the log has from it on is not considered.
        open_since: first offset of the open transaction, by producer id.
    """

    offset: int
    open_since: dict[int, int]


def newest_snapshot(storage: Storage, folder: str, end_offset: int) -> ProducerSnapshot | None:
    """Return what the newest valid snapshot of a partition says; None if there is none.

    Args:
        storage: the storage to read from.
        folder: path of the partition folder.
        end_offset: of the log; newer snapshots are left out.

    Raises:
        UnreadableFileError: the folder cannot be listed.

    Source: ProducerStateManager.java#loadFromSnapshot.
    """
    for offset, path in sorted(snapshot_offsets(storage, folder).items(), reverse=True):
        if offset > end_offset:
            continue
        try:
            entries = read_snapshot(storage, path)
        except (FileNotFoundError, UnreadableFileError):
            continue
        except CorruptBatchError as err:
            logger.info("%s is left aside: it is not a valid snapshot (%s)", path, err.reason)
            continue
        starts = entries["transaction_start"]
        is_open = (starts >= 0) & (starts < offset)
        producers = entries["producer_id"][is_open].tolist()
        open_since = dict(zip(producers, starts[is_open].tolist(), strict=True))
        return ProducerSnapshot(offset, open_since)
    return None


def snapshot_offsets(storage: Storage, folder: str) -> dict[int, str]:
    """Return the paths of the snapshots of a partition, valid or not, by their offsets.

    Raises:
        UnreadableFileError: the folder cannot be listed.
    """
    files = files_of_segments(storage, folder)
    return {offset: stem + kind for offset, stem, kind in files if kind.endswith(SNAPSHOT)}


def read_snapshot(storage: Storage, path: str) -> NDArray[np.void]:
    """Return the entries of a snapshot: one for each producer, with the fields of _ENTRY.

    Raises:
        FileNotFoundError: there is no such file.
        UnreadableFileError: it cannot be read.
        CorruptBatchError: its version is unknown, or its length or its CRC is wrong.
    """
    content = read_small(storage, path, _MAX_BYTES)
    version = int.from_bytes(content[:_CRC_AT], "big")
    if len(content) < _ENTRIES_AT or version != _VERSION:
        raise CorruptBatchError(path, 0, f"version {version} of a producer snapshot is unknown")
    crc = int.from_bytes(content[_CRC_AT:_COUNT_AT], "big")
    if crc32c()(memoryview(content)[_COUNT_AT:]) != crc:
        raise CorruptBatchError(path, _CRC_AT, "the CRC is wrong")
    count = int.from_bytes(content[_COUNT_AT:_ENTRIES_AT], "big")
    if len(content) != _ENTRIES_AT + count * _ENTRY.itemsize:
        text = f"{count} producers do not take {len(content)} bytes"
        raise CorruptBatchError(path, _COUNT_AT, text)
    return np.frombuffer(content, _ENTRY, count, _ENTRIES_AT)
