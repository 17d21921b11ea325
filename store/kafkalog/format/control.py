"""Control records: the markers that end transactions."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from kafkalog.format.batch_heads import BatchHeads, Data
from kafkalog.format.reference import Record, records_of

_MAX_INFLATED_BYTES: Final = 64 << 10  # a marker has some 20 bytes, and is not compressed


class ControlType(IntEnum):
    """What a control record is. Others occur in the log of the cluster's metadata only.

    Source: ControlRecordType.java.
    """

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """The end of a transaction of a producer, which the head of its batch names."""

    offset: int
    is_commit: bool
    coordinator_epoch: int  # -1 if the record does not tell


def markers(data: Data, heads: BatchHeads) -> list[Marker]:
    """Return the markers in control batches; other control records are left out.

    The first record of a batch is its marker. A coordinator writes one record a batch, and
    consumers look at no other.

    Args:
        data: the data that was walked.
        heads: some of its heads; batches that are not control batches are left out.

    Raises:
        MalformedBytesError: a batch contradicts the format, or inflates to far more than a marker.

    Source: RecordBatch.java, CompletedFetch.java#containsAbortMarker.
    """
    found = []
    for row in np.flatnonzero(heads.is_control).tolist():
        records = records_of(data, heads[row : row + 1], _MAX_INFLATED_BYTES)
        first = next(records, None)
        marker = None if first is None else parse_marker(first)
        if marker is not None:
            found.append(marker)
    return found


def parse_marker(record: Record) -> Marker | None:
    """Return the marker that a control record is; None if it is something else.

    Source: EndTransactionMarker.java.
    """
    if record.key is None or len(record.key) < 4:
        return None
    version, kind = struct.unpack_from(">hh", record.key)
    if version < 0 or kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    epoch = -1
    if record.value is not None and len(record.value) >= 6:
        (epoch,) = struct.unpack_from(">i", record.value, 2)
    return Marker(record.offset, kind == ControlType.COMMIT, epoch)
