"""Text columns that are UTF-8 for certain."""

from __future__ import annotations

import pyarrow as pa

from rmqstore.format.gather import array_bytes
from rmqstore.format.utf8 import decode_text


def valid_text(values: pa.Array) -> pa.Array:
    """Return the string array with every invalid byte sequence replaced by U+FFFD, as Java's decoder does.

    All-ASCII data, the usual case, costs one pass over the bytes.
    """
    data, _ = array_bytes(values)
    if not len(data) or data.max() < 0x80:
        return values
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        stored = values.cast(pa.binary()).to_pylist()
        return pa.array([None if text is None else decode_text(text) for text in stored], pa.string())
    return values
