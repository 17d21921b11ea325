"""A connection to a broker's port for replicas."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

from rmqstore.copying.following.remoting.client import Address
from rmqstore.copying.following.streams.controller_stream import (
    GREETING_HEADER,
    Greeting,
    greeting_size,
    handshake,
    read_greeting,
)
from rmqstore.errors import MalformedBytesError

_SEND_SECONDS: Final = 1.0  # for a few bytes
_POLL_SECONDS: Final = 0.1


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
        peer = str(self._socket.getpeername()[0]).partition("%")[0]
        self.is_public = ip_address(peer).is_global

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
) -> Greeting:
    """Introduce the follower to a broker in controller mode, and return what the broker answers.

    In default mode a broker would take the id for an acknowledgement. It is so low a number that it
    counts nowhere.

    Args:
        connection: a new connection.
        learner_id: which no replica of the group has.
        seconds: how long the answer may take.
        gives_up: tells whether not to wait any longer.

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

    connection.send(handshake(learner_id))
    try:
        header = receive(GREETING_HEADER.size)
        return read_greeting(header, receive(greeting_size(header)))
    except MalformedBytesError as err:
        raise ConnectionEndedError(f"no handshake of controller mode: {err.reason}") from err
