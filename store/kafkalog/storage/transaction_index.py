"""Transaction indexes, which tell the aborted transactions of a segment to a broker's consumers.

What a read of committed records gives is decided by the markers; the index is only shown and
compared with them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kafkalog.errors import CorruptBatchError
from rmqstore.storage.files.storage import Storage, read_small

_ENTRY: Final = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),  # of the marker, which lies in the segment
        ("last_stable_offset", ">i8"),  # when the entry was written
    ]
)
_VERSION: Final = 0
_MAX_BYTES: Final = 64 << 20


def read_transaction_index(storage: Storage, path: str) -> NDArray[np.void]:
    """Return the entries of a transaction index, with the fields of _ENTRY.

    Raises:
        FileNotFoundError: there is no such file, as where no transaction was aborted.
        UnreadableFileError: it cannot be read.
        CorruptBatchError: it ends within an entry, or the version of one is unknown.

    Source: TransactionIndex.java, AbortedTxn.java.
    """
    content = read_small(storage, path, _MAX_BYTES)
    count, left = divmod(len(content), _ENTRY.itemsize)
    entries = np.frombuffer(content, _ENTRY, count)
    odd = np.flatnonzero(entries["version"] != _VERSION)
    if len(odd):
        position, version = int(odd[0]) * _ENTRY.itemsize, int(entries["version"][odd[0]])
        raise CorruptBatchError(path, position, f"version {version} of an entry is unknown")
    if left:
        raise CorruptBatchError(path, len(content) - left, "the file ends within an entry")
    return entries
