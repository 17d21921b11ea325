"""Records of ``__consumer_offsets``: keys and values of committed offsets, in all their versions.

Other records of that topic, which describe groups and their members, are not parsed.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kafkalog.format.varints import read_unsigned
from rmqstore.errors import MalformedBytesError
from rmqstore.format.utf8 import decode_text

_OFFSET_KEYS: Final = (0, 1)  # versions of the key
_NEWEST_VALUE: Final = 4
_WITH_EXPIRY: Final = 1
_WITH_EPOCH: Final = 3  # versions of the value, from which on
_FLEXIBLE: Final = 4


class OffsetKey(NamedTuple):
    """What an offset is committed for."""

    group: str
    topic: str
    partition: int


class OffsetValue(NamedTuple):
    """What is committed. Times are ms since the epoch; the leader epoch is -1 if unknown."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1  # in version 1 only


def parse_offset_key(key: bytes) -> OffsetKey | None:
    """Return the key of a committed offset; None if the record is of another type.

    Raises:
        MalformedBytesError: the key contradicts its version.

    Source: OffsetCommitKey.json.
    """
    fields = _Fields(key)
    if fields.number(">h") not in _OFFSET_KEYS:
        return None
    return OffsetKey(fields.text(), fields.text(), fields.number(">i"))


def parse_offset_value(value: bytes) -> OffsetValue:
    """Return the value of a committed offset.

    Raises:
        MalformedBytesError: the value contradicts its version, or the version is unknown.

    Source: OffsetCommitValue.json.
    """
    fields = _Fields(value)
    version = fields.number(">h")
    if not 0 <= version <= _NEWEST_VALUE:
        raise MalformedBytesError(0, f"version {version} of a committed offset is unknown")
    offset = fields.number(">q")
    epoch = fields.number(">i") if version >= _WITH_EPOCH else -1
    metadata = fields.compact_text() if version >= _FLEXIBLE else fields.text()
    committed = fields.number(">q")
    expires = fields.number(">q") if version == _WITH_EXPIRY else -1
    return OffsetValue(offset, epoch, metadata, committed, expires)


class _Fields:
    """Reads one field after the other; what follows the last one, such as tagged ones, is left."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def number(self, form: str) -> int:
        n_bytes = struct.calcsize(form)
        (number,) = struct.unpack(form, self._take(n_bytes))
        return int(number)

    def text(self) -> str:
        return decode_text(self._take(self.number(">h")))

    def compact_text(self) -> str:
        length, self._position = read_unsigned(self._data, self._position)
        return decode_text(self._take(length - 1))

    def _take(self, n_bytes: int) -> bytes:
        start, end = self._position, self._position + n_bytes
        if not start <= end <= len(self._data):
            raise MalformedBytesError(start, f"a field of {n_bytes} bytes is cut off")
        self._position = end
        return self._data[start:end]
