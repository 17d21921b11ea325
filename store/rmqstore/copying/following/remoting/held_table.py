"""A table of a broker in memory."""

from __future__ import annotations

from typing import Final

import zstandard

_LEVEL: Final = 1


class HeldTable:
    """A table of a broker, compressed: several wait until the copy has come as far as they have.

    Two are equal if their contents are.

    Args:
        content: JSON, at most 64 MiB.
    """

    __slots__ = ("_packed",)

    def __init__(self, content: bytes) -> None:
        # What the library returns reserves as much memory as the content takes; a copy does not.
        self._packed = bytes(memoryview(zstandard.ZstdCompressor(_LEVEL).compress(content)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeldTable) and self._packed == other._packed

    __hash__ = None  # type: ignore[assignment]

    @property
    def content(self) -> bytes:
        """The table as the broker sent it, unpacked at each call."""
        return zstandard.ZstdDecompressor().decompress(self._packed)
