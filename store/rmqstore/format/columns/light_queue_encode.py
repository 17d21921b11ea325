"""The light message queues that records to be written name, and their offsets as a property."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import IllegalRowError
from rmqstore.format.columns.buffers import array_bytes, numbers
from rmqstore.format.columns.encode import LightQueues, Records, TopicColumn
from rmqstore.format.columns.heads import read_heads
from rmqstore.format.columns.pieces import join, lengths_of
from rmqstore.format.columns.property_encode import one_property
from rmqstore.format.layout import (
    MAX_PROPERTIES_BYTES,
    PROPERTIES_LENGTH_BYTES,
    PROPERTY_MULTI_QUEUE_OFFSET,
    Bytes,
    Positions,
)

_SEPARATOR: Final = ","  # Source: MixAll.java#LMQ_DISPATCH_SEPARATOR


def offset_strings(n: int, rows: Positions, queue_offsets: NDArray[np.int64]) -> pa.BinaryArray:
    """Return the property INNER_MULTI_QUEUE_OFFSET of n records, binary (n,).

    Args:
        rows: (m,), the record of each offset, never falling.
        queue_offsets: (m,).

    Source: LmqDispatch.java#wrapLmqDispatch.
    """
    bounds = np.searchsorted(rows, np.arange(n + 1)).astype(np.int32)
    lists = pa.ListArray.from_arrays(numbers(bounds), numbers(queue_offsets).cast(pa.string()))
    return one_property(PROPERTY_MULTI_QUEUE_OFFSET, pc.binary_join(lists, _SEPARATOR))


def require_short(lengths: NDArray[np.int64], first_row: int = 1) -> None:
    """Refuse property strings, of these lengths, that are longer than a record can say.

    Raises:
        IllegalRowError: one is.
    """
    if int(lengths.max(initial=0)) > MAX_PROPERTIES_BYTES:
        row = int(lengths.argmax())
        raise IllegalRowError(
            first_row + row,
            f"PROPERTIES_SIZE_EXCEEDED: properties of {int(lengths[row])} bytes with the offsets "
            f"in light message queues, at most {MAX_PROPERTIES_BYTES} are allowed; "
            "nothing was written",
        )


def require_plain_parents(
    topics: TopicColumn,
    light_queues: LightQueues,
    batch_topics: Collection[str],
    first_row: int = 1,
) -> None:
    """Refuse rows of batch topics that name light message queues.

    Raises:
        IllegalRowError: there is one. A broker would count an offset in these queues, and write
            no unit.
    """
    is_batch = np.array([topic in batch_topics for topic in topics.names], np.bool_)
    wrong = light_queues.rows[is_batch[topics.codes[light_queues.rows]]]
    if len(wrong):
        row = int(wrong[0])
        raise IllegalRowError(
            first_row + row,
            f"MESSAGE_ILLEGAL: {topics.names[int(topics.codes[row])]} has BatchConsumeQueues, "
            "whose messages are in no light message queue; nothing was written",
        )


def extend_properties(records: Records, strings: pa.BinaryArray) -> Records:
    """Return records with further properties at the end of theirs.

    Args:
        records: n records, whose properties end with a separator.
        strings: property strings, binary (n,), empty where a record gets none.

    Raises:
        IllegalRowError: the properties of a record become too long.
    """
    n = len(strings)
    sizes = np.diff(records.starts)
    heads, _ = read_heads(records.data, records.starts[:-1])
    lengths = heads.property_lengths + lengths_of(strings)
    require_short(lengths)
    stored = pa.Array.from_buffers(
        pa.binary(),
        n,
        [None, pa.py_buffer(records.starts.astype(np.int32)), pa.py_buffer(records.data)],
    )
    data, bounds = array_bytes(join([stored, strings], n))
    starts = bounds.astype(np.int64)
    _set(data, starts[:-1], (sizes + lengths_of(strings)).astype(">i4"))
    length_fields = heads.property_starts - heads.starts - PROPERTIES_LENGTH_BYTES
    _set(data, starts[:-1] + length_fields, lengths.astype(">i2"))
    return Records(data[: int(starts[-1])], starts, records.sys_flags)


def _set(data: Bytes, positions: Positions, values: NDArray[np.generic]) -> None:
    width = values.dtype.itemsize
    data[positions[:, None] + np.arange(width)] = values.view(np.uint8).reshape(-1, width)
