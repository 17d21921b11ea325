"""The stream of a broker's port for replicas in default mode, as pieces of its log; no socket.

Source: DefaultHAConnection.java#WriteSocketService, DefaultHAClient.java#dispatchReadRequest.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final, NamedTuple

from rmqstore.errors import MalformedBytesError

# What is reported instead of an end that was copied: as an acknowledgement it counts nowhere. It is
# below every limit by which a broker takes a connection for a replica, and no difference to an
# offset of a log overflows.
NEVER: Final = -(1 << 62)
MAX_BODY_BYTES: Final = 16 << 20  # a slave in Java takes 4 MiB
_REPORT: Final = struct.Struct(">q")


class Piece(NamedTuple):
    """Bytes of the log from a physical offset on; empty for a heartbeat."""

    physical_offset: int
    data: memoryview

    @property
    def is_heartbeat(self) -> bool:
        """Whether the broker only says where it would go on."""
        return not self.data


class HaStream:
    """Takes the bytes that a broker sends, in any portions.

    Args:
        request: the physical offset that was asked for.

    Attributes:
        position: physical offset of the next byte of the log.
        has_begun: whether a header has come, so that the broker speaks this protocol.
    """

    _header_layout: ClassVar[struct.Struct] = struct.Struct(">qi")

    def __init__(self, request: int) -> None:
        self.position = request
        self.has_begun = False
        self._header = bytearray()
        self._left = 0  # bytes of the body that is under way

    def report(self, physical_offset: int) -> bytes:
        """Return the message of a slave: an offset, which the first time is a request."""
        return _REPORT.pack(physical_offset)

    def feed(self, data: memoryview) -> list[Piece]:
        """Return the pieces of the log in the next bytes, which the pieces refer to.

        Raises:
            MalformedBytesError: a header has another offset than follows, an impossible size, or
                something else that cannot be.
        """
        pieces: list[Piece] = []
        layout = self._header_layout
        done = 0
        while done < len(data):
            if self._left:
                taken = data[done : done + self._left]
                pieces.append(Piece(self.position, taken))
                self.position += len(taken)
                self._left -= len(taken)
                done += len(taken)
                continue
            if not self._header and len(data) - done >= layout.size:  # nearly always
                fields = layout.unpack_from(data, done)
                done += layout.size
            else:
                taken = data[done : done + layout.size - len(self._header)]
                self._header += taken
                done += len(taken)
                if len(self._header) < layout.size:
                    break
                fields = layout.unpack(self._header)
                self._header.clear()
            self._take_header(*fields)
            self.has_begun = True
            if not self._left:
                pieces.append(Piece(self.position, memoryview(b"")))
        return pieces

    def _take_header(self, *fields: int) -> None:
        """Check the fields of a header, and begin the body that follows it."""
        self._begin_body(*fields)

    def _begin_body(self, physical_offset: int, size: int) -> None:
        if physical_offset != self.position:
            raise MalformedBytesError(
                0, f"the broker sends physical offset {physical_offset} after {self.position}"
            )
        if not 0 <= size <= MAX_BODY_BYTES:
            raise MalformedBytesError(
                8, f"a body of {size} bytes; 0 to {MAX_BODY_BYTES} are possible"
            )
        self._left = size
