"""Streams of a broker's HA port, in default and in controller mode, and a connection to that port.

In controller mode a replica begins with a handshake, which the broker answers with the epochs of
its log. After that the replica reports as in default mode, and the header of each chunk of the log
also has the epoch of the chunk.

Source: DefaultHAConnection.java#WriteSocketService; DefaultHAClient.java#dispatchReadRequest;
AutoSwitchHAConnection.java; AutoSwitchHAClient.java; HAConnectionState.java.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import ClassVar, Final, NamedTuple

from rmqstore.errors import MalformedBytesError
from rmqstore.remoting import Address
from rmqstore.storage.broker.epochs import Epoch
from rmqstore.storage.files.paths import MAX_OFFSET

_SEND_SECONDS: Final = 1.0  # for a few bytes
_POLL_SECONDS: Final = 0.1

# What is reported instead of an end that was copied: as an acknowledgement it counts nowhere. It is
# below every limit by which a broker takes a connection for a replica, and no difference to an
# offset of a log overflows.
NEVER: Final = -(1 << 62)
MAX_BODY_BYTES: Final = 16 << 20  # a slave in Java takes 4 MiB
_REPORT: Final = struct.Struct(">q")

_HANDSHAKE_STATE: Final = 1
_TRANSFER_STATE: Final = 2
_NOT_FROM_LAST_FILE: Final = 0
_LEARNER: Final = 1
_HANDSHAKE: Final = struct.Struct(">ihhq")
_ACKNOWLEDGEMENT: Final = struct.Struct(">iq")
_EPOCH: Final = struct.Struct(">iq")
_MAX_EPOCHS: Final = 1 << 16  # brokers up to 5.5 can send 1000
_NO_FILE: Final = -1  # where an empty log begins

HANDSHAKE_HEADER: Final = struct.Struct(">iiqi")


class Chunk(NamedTuple):
    """Bytes of the log from a physical offset on; a heartbeat, which has none, says the offset."""

    physical_offset: int
    data: memoryview


class HaStream:
    """Takes the bytes that a broker sends, in any portions.

    Args:
        request: the physical offset that was asked for.

    Attributes:
        position: physical offset of the next byte of the log.
        epochs: the epochs of the log, in controller mode.
        confirm_offset: physical offset up to which no switch of masters takes records back; -1 if
            the broker has not reported it.
    """

    _header_layout: ClassVar[struct.Struct] = struct.Struct(">qi")

    def __init__(self, request: int) -> None:
        self.position = request
        self.epochs: list[Epoch] = []
        self.confirm_offset = -1
        self._header = bytearray()
        self._left = 0  # bytes of the body that is under way

    def report(self, physical_offset: int) -> bytes:
        """Return the message of a slave: an offset, which the first time is a request."""
        return _REPORT.pack(physical_offset)

    def feed(self, data: memoryview) -> list[Chunk]:
        """Return the chunks of the log in the next bytes, which the chunks refer to.

        Raises:
            MalformedBytesError: a header has another offset than follows, an impossible size, or
                something else that cannot be.
        """
        chunks: list[Chunk] = []
        layout = self._header_layout
        done = 0
        while done < len(data):
            if self._left:
                taken = data[done : done + self._left]
                chunks.append(Chunk(self.position, taken))
                self.position += len(taken)
                self._left -= len(taken)
                done += len(taken)
                continue
            taken = data[done : done + layout.size - len(self._header)]
            self._header += taken
            done += len(taken)
            if len(self._header) < layout.size:
                break
            fields = layout.unpack(self._header)
            self._header.clear()
            self._take_header(*fields)
            if not self._left:
                chunks.append(Chunk(self.position, memoryview(b"")))
        return chunks

    def _take_header(self, *fields: int) -> None:
        """Check the fields of a header, and begin the body that follows it."""
        physical_offset, size = fields
        if physical_offset != self.position:
            raise MalformedBytesError(
                0, f"the broker sends physical offset {physical_offset} after {self.position}"
            )
        if not 0 <= size <= MAX_BODY_BYTES:
            raise MalformedBytesError(
                8, f"a body of {size} bytes; 0 to {MAX_BODY_BYTES} are possible"
            )
        self._left = size


class Handshake(NamedTuple):
    """The answer of a broker to a handshake.

    Attributes:
        end: physical offset of the end of its log.
        epochs: the epochs of its log, rising.
    """

    end: int
    epochs: list[Epoch]


def handshake_request(learner_id: int) -> bytes:
    """Return the first message of a replica that stays a learner, whom nobody waits for."""
    return _HANDSHAKE.pack(_HANDSHAKE_STATE, _NOT_FROM_LAST_FILE, _LEARNER, learner_id)


def handshake_size(header: bytes) -> int:
    """Return how many bytes follow the header of the answer to a handshake.

    Raises:
        MalformedBytesError: it is not such a header.
    """
    state, size, end, _ = HANDSHAKE_HEADER.unpack(header)
    if state != _HANDSHAKE_STATE:
        raise MalformedBytesError(0, f"the broker answers a handshake with state {state}")
    if size % _EPOCH.size or not 0 <= size <= _MAX_EPOCHS * _EPOCH.size:
        raise MalformedBytesError(4, f"the broker announces {size} bytes of epochs")
    if not 0 <= end < MAX_OFFSET:
        raise MalformedBytesError(8, f"the broker says that its log ends at {end}")
    return int(size)


def read_handshake(header: bytes, body: bytes) -> Handshake:
    """Return the answer to a handshake.

    Args:
        header: a header that :func:`handshake_size` takes.
        body: as many bytes as that says.

    Raises:
        MalformedBytesError: the epochs do not follow one another, or there is none.
    """
    _, _, end, last = HANDSHAKE_HEADER.unpack(header)
    epochs = [Epoch(*fields) for fields in _EPOCH.iter_unpack(body)]
    if not epochs:
        raise MalformedBytesError(4, "the broker has no epoch, so it was never a master")
    before = Epoch(-1, 0)
    for epoch in epochs:
        if epoch.number <= before.number or not before.start_offset <= epoch.start_offset <= end:
            raise MalformedBytesError(
                HANDSHAKE_HEADER.size,
                f"epoch {epoch.number} from {epoch.start_offset} cannot follow epoch "
                f"{before.number} from {before.start_offset} in a log that ends at {end}",
            )
        before = epoch
    if last != before.number:
        raise MalformedBytesError(16, f"the last epoch is {before.number}, not {last}")
    return Handshake(end, epochs)


class ControllerStream(HaStream):
    """Takes the bytes that a broker sends after a handshake, in any portions.

    Args:
        request: the physical offset that was asked for.
        epochs: the epochs of the broker's log by its answer to the handshake.
    """

    _header_layout: ClassVar[struct.Struct] = struct.Struct(">iiqiqq")

    def __init__(self, request: int, epochs: list[Epoch]) -> None:
        super().__init__(request)
        self.epochs = list(epochs)
        self._number = 0  # of the epoch of the last header, as an index into the epochs

    def report(self, physical_offset: int) -> bytes:
        return _ACKNOWLEDGEMENT.pack(_TRANSFER_STATE, physical_offset)

    def _take_header(self, *fields: int) -> None:
        state, size, physical_offset, number, epoch_start, confirm_offset = fields
        if state != _TRANSFER_STATE:
            raise MalformedBytesError(0, f"the broker sends state {state} instead of its log")
        if physical_offset == _NO_FILE and self.position == size == 0:
            physical_offset = 0
        super()._take_header(physical_offset, size)
        # A chunk never reaches into the next epoch. One that ends where that starts is sent as
        # one of it already, because the broker switches before it writes the header.
        epoch = Epoch(number, epoch_start)
        end = physical_offset + size
        last = len(self.epochs) - 1
        while self._number < last and self.epochs[self._number].number < epoch.number:
            self._number += 1
        current = self.epochs[self._number]
        least = max(physical_offset, current.start_offset)
        is_new = epoch.number > current.number and least <= epoch.start_offset <= end
        is_over = self._number < last and end > self.epochs[self._number + 1].start_offset
        if is_new and len(self.epochs) < _MAX_EPOCHS:
            self.epochs.append(epoch)
            self._number += 1
        elif epoch != current or epoch.start_offset > end or is_over:
            raise MalformedBytesError(
                16,
                f"the broker sends {physical_offset} to {end} as a part of epoch {epoch.number} "
                f"from {epoch.start_offset}, which does not fit its other epochs",
            )
        self.confirm_offset = max(confirm_offset, -1)


class ConnectionEndedError(Exception):
    """The connection ended, or is given up. The text says why."""


class Connection:
    """A connection.

    Args:
        address: the port.
        seconds: how long connecting may take.

    Raises:
        ConnectionEndedError: nobody answers there.

    Attributes:
        is_public: whether the other side has an address of the public internet.
    """

    def __init__(self, address: Address, seconds: float) -> None:
        try:
            self._socket = socket.create_connection((address.host, address.port), seconds)
        except OSError as err:
            raise ConnectionEndedError(f"no connection: {err}") from err
        try:
            peer = str(self._socket.getpeername()[0]).partition("%")[0]
        except OSError as err:
            self._socket.close()
            raise ConnectionEndedError(f"no connection: {err}") from err
        self.is_public = ip_address(peer).is_global

    def fileno(self) -> int:
        """Return the number of its socket, to wait for bytes."""
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Send a few bytes."""
        try:
            self._socket.settimeout(_SEND_SECONDS)
            self._socket.sendall(message)
        except OSError as err:  # also a time-out, after which a part of the message may be sent
            raise ConnectionEndedError(str(err)) from err

    def receive(self, buffer: memoryview, seconds: float) -> int:
        """Return how many bytes came, 0 if none did for some seconds."""
        try:
            self._socket.settimeout(seconds)
            count = self._socket.recv_into(buffer)
        except (TimeoutError, BlockingIOError):
            return 0
        except OSError as err:
            raise ConnectionEndedError(str(err)) from err
        if not count:
            raise ConnectionEndedError("the broker closed the connection")
        return count

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def shake_hands(
    connection: Connection, learner_id: int, seconds: float, gives_up: Callable[[], bool]
) -> Handshake:
    """Introduce the follower to a broker in controller mode, and return what the broker answers.

    In default mode a broker would take the id for an acknowledgement. It is so low a number that it
    counts nowhere.

    Args:
        connection: a new connection.
        learner_id: which no replica of the group has.
        seconds: how long the answer may take.
        gives_up: returns whether not to wait any longer.

    Raises:
        ConnectionEndedError: there is no such answer.
    """
    until = time.monotonic() + seconds

    def receive(count: int) -> bytes:
        buffer = memoryview(bytearray(count))
        n_come = 0
        while n_come < count:
            n_come += connection.receive(buffer[n_come:], _POLL_SECONDS)
            if n_come < count and (gives_up() or time.monotonic() > until):
                raise ConnectionEndedError("no answer to the handshake of controller mode")
        return bytes(buffer)

    connection.send(handshake_request(learner_id))
    try:
        header = receive(HANDSHAKE_HEADER.size)
        return read_handshake(header, receive(handshake_size(header)))
    except MalformedBytesError as err:
        raise ConnectionEndedError(f"no handshake of controller mode: {err.reason}") from err
